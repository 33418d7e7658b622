"""Several methods on one job, each with several seeds: how accurate, over how many bytes, in how much time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from splitfl.api.override import override
from splitfl.api.result import Result
from splitfl.api.settings import data_from, job_from
from splitfl.api.simulation import simulate
from splitfl.config import JobSettings, RunSettings, parse_job
from splitfl.errors import SplitflError
from splitfl.run.record import History

CENTRAL = "central"
"""What the run without any federation is called."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One line of a comparison: a run, and what each of its seeds came to.

    accuracies  after the last round, by seed; none where the job has no test data or no classes
    problems    why a seed did not come to an end, such as a loss that is not finite
    """

    name: str
    accuracies: tuple[float, ...]
    histories: tuple[History, ...]
    problems: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float | None:
        """The mean over the seeds."""
        return fmean(self.accuracies) if self.accuracies else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds."""
        return pstdev(self.accuracies) if self.accuracies else None

    @property
    def rounds(self) -> int:
        """Rounds of each seed that came to its end; 0 where none did."""
        return len(self.histories[0].rounds) if self.histories else 0

    def per_round(self, figure: str) -> float:
        """The mean over rounds and seeds of a figure of the round's record, such as `bytes_up`."""
        values = [getattr(record, figure) for history in self.histories for record in history.rounds]
        return fmean(values) if values else 0.0


@dataclass(slots=True)
class _Line:
    """A line as it grows."""

    name: str
    results: list[Result] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def compared(self) -> Compared:
        accuracies = tuple(result.accuracy for result in self.results if result.accuracy is not None)
        return Compared(self.name, accuracies, tuple(result.history for result in self.results), tuple(self.problems))


def compare(
    settings: JobSettings, *, rounds: int | None = None, on_seed: Callable[[str, int, int], None] = lambda *_: None
) -> Iterator[Compared]:
    """The lines of the comparison that [compare] asks for, in its order, `central` first; each as soon as it is done.

    `rounds` stand in place of the file's, and of those of every run. `on_seed` hears what begins: the run, the number
    of its seed, and how many there are. A run that fails for one seed is a line with a problem, so that the others are
    not lost. Raises SplitflError for a section that cannot be run.
    """
    chosen = settings.compare
    if chosen is None or not (chosen.runs or chosen.central):
        raise SplitflError('[compare] runs is missing: name the methods, such as runs = ["fedavg", "pipar"]')
    jobs = [(run.name, _of_run(settings, run, rounds)) for run in chosen.runs]
    if chosen.central:
        jobs.insert(0, (CENTRAL, _central(settings, rounds)))
    for name, job in jobs:
        line = _Line(name)
        for number in range(chosen.seeds):
            on_seed(name, number + 1, chosen.seeds)
            try:
                line.results.append(_train(name, _seeded(job, number)))
            except SplitflError as error:
                line.problems.append(f"seed {job.training.seed + number}: {error}")
        yield line.compared()


def _of_run(settings: JobSettings, run: RunSettings, rounds: int | None) -> JobSettings:
    switched = override(settings, method=run.method, rounds=run.rounds if rounds is None else rounds)
    content = switched.model_dump(exclude_unset=True)
    content["method"] = {"name": run.method, **_kept(switched, run), **run.options()}
    if run.codec is not None:
        content["codec"] = run.codec.model_dump(exclude_unset=True)
    if run.optimizer is not None:
        content["training"]["optimizer"] = run.optimizer.model_dump(exclude_unset=True)
    return _parsed(content, settings)


def _kept(switched: JobSettings, run: RunSettings) -> dict[str, Any]:
    """The file's own options, where the run is of the file's own method."""
    return switched.method.options() if switched.method.name == run.method else {}


def _central(settings: JobSettings, rounds: int | None) -> JobSettings:
    content = override(settings, method="fedavg", rounds=rounds, clients=1).model_dump(exclude_unset=True)
    data = content["data"]
    for name in ("alpha", "shards_per_client"):
        data.pop(name, None)
    data["split"] = "iid"
    content.pop("server", None)
    return _parsed(content, settings)


def _seeded(settings: JobSettings, number: int) -> JobSettings:
    content = settings.model_dump(exclude_unset=True)
    content["training"]["seed"] = settings.training.seed + number
    content["data"]["seed"] = settings.data.seed + number
    return _parsed(content, settings)


def _parsed(content: dict[str, Any], settings: JobSettings) -> JobSettings:
    content.pop("compare", None)
    return parse_job(content, base=settings.base, name="job")


def _train(name: str, settings: JobSettings) -> Result:
    data = data_from(settings)
    return simulate(
        job_from(settings, example_input=data.example_input),
        clients=data.clients,
        rounds=settings.training.rounds,
        test=data.test,
        devices=settings.planning.device,
        link=settings.planning.link,
        title=name,
    )


def table(lines: Sequence[Compared]) -> list[dict[str, Any]]:
    """The lines as plain values: accuracies as shares, rounds, bytes and seconds of each of them."""
    return [
        {
            "run": line.name,
            "accuracy": line.accuracy,
            "spread": line.spread,
            "accuracies": list(line.accuracies),
            "rounds": line.rounds,
            "bytes_up": line.per_round("bytes_up"),
            "bytes_down": line.per_round("bytes_down"),
            "seconds": line.per_round("seconds"),
            "problems": list(line.problems),
        }
        for line in lines
    ]
