"""Run after run of the lab: `python -m tests.faults.chaos --seed 1 --runs 200`, or `--minutes 30`.

Every run must end, with the bits of the undisturbed run where nobody was dropped (and where somebody was, with those
of the run in which this client took no part from then on). The exit status is 1 where one did not; what the processes
of such a run wrote is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.faults.lab import Lab, Outcome
from tests.faults.plan import plan


def main() -> int:
    """Carry out the runs; returns the exit status."""
    options = _options()
    logging.getLogger("splitfl").setLevel(logging.CRITICAL)  # of the reference; the processes have logs of their own
    keep = Path(options.keep or tempfile.mkdtemp(prefix="splitfl-chaos-"))
    end = time.monotonic() + 60 * options.minutes if options.minutes else None
    outcomes: list[Outcome] = []
    seed = options.seed
    while (time.monotonic() < end) if end else (len(outcomes) < options.runs):
        folder = keep / f"seed-{seed}"
        outcome = asyncio.run(Lab(plan(seed), folder).run())
        outcomes.append(outcome)
        say(outcome, verbose=options.verbose)
        if outcome.problem is None:
            shutil.rmtree(folder)
        seed += 1
    return summarize(outcomes, keep)


def say(outcome: Outcome, *, verbose: bool) -> None:
    """One line for a run, more where it went wrong."""
    plan = outcome.plan
    fine = "bit-equal" if outcome.undisturbed else "bit-equal without the dropped"
    verdict = outcome.problem or ("no step was done twice" if outcome.counted else fine)
    what = ", ".join(outcome.fired) or "nothing happened"
    if outcome.unaware:
        verdict += f", but {', '.join(outcome.unaware)} did not hear that training is complete"
    print(f"seed {plan.seed}: {plan.method}, {outcome.seconds:.1f} s: {what}: {verdict}", flush=True)
    if outcome.problem or verbose:
        for line in (*map(str, plan.events), *outcome.failures):
            print(f"    {line}", flush=True)


def summarize(outcomes: list[Outcome], keep: Path) -> int:
    """Print the sums; returns the exit status."""
    wrong = [outcome for outcome in outcomes if outcome.problem is not None]
    whole = sum(outcome.undisturbed and outcome.problem is None for outcome in outcomes)
    faults = Counter(name for outcome in outcomes for name in outcome.fired)
    print(f"\n{len(outcomes)} runs, {sum(faults.values())} faults: {', '.join(f'{n} {k}' for k, n in faults.items())}")
    print(
        f"{whole} runs in which nobody was dropped, all of them bit-equal; {len(outcomes) - whole - len(wrong)} others"
    )
    if wrong:
        print(f"{len(wrong)} WENT WRONG: seeds {[outcome.plan.seed for outcome in wrong]}; their logs are in {keep}")
    return 1 if wrong or not outcomes else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each next one has the next")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=None, help="go on for so long, instead of for --runs")
    parser.add_argument("--keep", default=None, help="folder for what failing runs leave")
    parser.add_argument("--verbose", action="store_true", help="list the faults of every run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
