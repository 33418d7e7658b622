"""Running a job: the actor that interprets schedules, and the two ends of a session. Start at `actor`."""
