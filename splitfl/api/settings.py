"""A job file made into what runs: the job, the data of every client, and the test data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import Dataset

from splitfl.aggregation import strategy_from
from splitfl.api.error import JobError
from splitfl.api.job import Job
from splitfl.api.optimizers import optimizer
from splitfl.codecs import codec
from splitfl.config import JobSettings, resolve
from splitfl.data import by_columns, by_user, columns, dirichlet, iid, load, shards, vertical
from splitfl.methods import Method
from splitfl.model import TRANSFORMS, Transform
from splitfl.run.blueprint import Deadlines
from splitfl.run.virtual import Fleet


@dataclasses.dataclass(frozen=True, slots=True)
class JobData:
    """The data of a job: one training set per client, and the test set (None where there is none)."""

    clients: list[Dataset[Any]]
    test: Dataset[Any] | None
    example_input: Any


def job_from(settings: JobSettings, *, example_input: Any = None) -> Job:
    """The job that `settings` describe. `example_input` serves where the file gives no example shape.

    Raises SplitflError, naming the setting, for what only shows when it is put together.
    """
    training = settings.training
    example = settings.model.example()
    if example is None:
        example = example_input
    if example is None:
        raise JobError("[model] example_shape is missing: say the shape of one sample, such as [1, 8, 8]")
    cuts = settings.model.cuts
    strategy = settings.strategy
    clients = settings.data.clients
    return Job(
        model=lambda: call(settings, settings.model.build, settings.model.args),
        teacher=_teacher(settings),
        teacher_cut=settings.model.teacher_cut,
        example_input=example[0] if isinstance(example, tuple) and len(example) == 1 else example,
        method=method_from(settings),
        loss=loss_from(settings),
        optimizer=optimizer(training.optimizer.name, **training.optimizer.options()),
        batch_size=training.batch_size,
        cut=cuts[0] if len(cuts) == 1 else cuts,
        strategy=strategy_from(strategy.name, strategy.options, clients=clients) if strategy else None,
        codec=codec(**settings.codec.model_dump(exclude={"transform"})),
        transform=transform_from(settings),
        shuffle=training.shuffle,
        drop_last=training.drop_last,
        local_epochs=training.local_epochs,
        local_steps=training.local_steps,
        optimizer_state=training.optimizer_state,
        deadlines=Deadlines(**settings.server.deadlines.model_dump()),
        device=training.device,
        seed=training.seed,
    )


def _teacher(settings: JobSettings) -> Callable[[], Any] | None:
    """What makes the teacher, where the method learns from one; others of the same file do without."""
    reference = settings.model.teacher
    if reference is None or not settings.method.method().distils:
        return None
    return lambda: call(settings, reference, settings.model.teacher_args)


def call(settings: JobSettings, reference: str, arguments: dict[str, Any]) -> Any:
    """What the user's function gives. Raises JobError, naming it and the arguments, for whatever it raises."""
    return _call(settings.resolve(reference), reference, arguments)


def _call(function: Callable[..., Any], reference: str, arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise JobError(f"{reference}({given}) raised {type(error).__name__}: {error}") from error


def transform_from(settings: JobSettings) -> Transform | str | None:
    """The transform of a job file: a name, or what the user's function gives. JobError where that is something else."""
    text = settings.codec.transform
    if text is None or text.partition(":")[0] in TRANSFORMS:
        return text
    made = call(settings, text, {})
    if not isinstance(made, Transform):
        raise JobError(f"[codec] transform = {text!r} gives {type(made).__name__}: expected a splitfl.model.Transform")
    return made


def method_from(settings: JobSettings) -> Method:
    """The method of a job file, with its schedule and its auxiliary networks looked for beside the file."""
    method = settings.method.method()
    if isinstance(method.auxiliary, str) and ":" in method.auxiliary:
        method = dataclasses.replace(method, auxiliary=settings.resolve(method.auxiliary))
    schedule = settings.method.schedule
    if schedule is None:
        return method
    if ":" in schedule:
        return dataclasses.replace(method, schedule=settings.resolve(schedule))
    return dataclasses.replace(method, schedule=settings.path(schedule)) if schedule.endswith(".sched") else method


def loss_from(settings: JobSettings) -> Callable[[Any, Any], torch.Tensor]:
    """The loss of a job file: one of torch.nn.functional, or the user's."""
    name = settings.training.loss
    return settings.resolve(name) if ":" in name else getattr(functional, name)


def fleet_from(settings: JobSettings) -> Fleet:
    """The devices and links that a job file plans for."""
    return Fleet(settings.planning.device, settings.planning.link)


def data_from(settings: JobSettings) -> JobData:
    """The data of a job file, split over its clients.

    A function of the user's gives (train, test), two data sets, or with `split = "by_user"` (train, test, users), the
    user of each training sample. Raises SplitflError where it gives something else, and where it cannot be split.
    """
    data = settings.data
    if data.load is None:
        found = load(str(data.name), **data.args)
        whole = JobData(_split(settings, found.train, None), found.test, found.example_input)
    else:
        train, test, users = _parts(call(settings, data.load, data.args), data.load)
        example = _example(train, source=f"[data] load = {data.load!r}")
        whole = JobData(_split(settings, train, users), test, example)
    if data.split != "vertical":
        return whole
    tests = None if whole.test is None else by_columns(whole.test, data.clients)
    return JobData(whole.clients, tests, columns(whole.example_input, data.clients))


def own_data(settings: JobSettings, *, index: int | None, reference: str | None) -> tuple[Dataset[Any], Any]:
    """One client's training data and an example of its inputs.

    `reference` names a function of no arguments that gives the data set of this machine; without it, `index` chooses a
    part of the job's own data. Raises JobError for neither, both, or an index that the split does not have.
    """
    if (index is None) == (reference is None):
        raise JobError("a client needs its data: --index N for a part of the job's data, or --data file.py:function")
    if reference is not None:
        dataset = _call(resolve(reference, Path.cwd()), reference, {})
        return dataset, _example(dataset, source=f"--data {reference}")
    data = data_from(settings)
    if index is None or index >= len(data.clients):
        raise JobError(
            f"--index {index}: the job has {len(data.clients)} clients, expected 0 to {len(data.clients) - 1}"
        )
    return data.clients[index], data.example_input


def _parts(given: Any, reference: str) -> tuple[Dataset[Any], Dataset[Any] | None, Sequence[Any] | None]:
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise JobError(
            f"[data] load = {reference!r} gives {type(given).__name__}: expected (train, test) or (train, test, users)"
        )
    return given[0], given[1], given[2] if len(given) == 3 else None


def _example(train: Dataset[Any], *, source: str) -> Any:
    """The inputs of the first sample, as a batch of one. JobError naming `source` for anything but a data set."""
    wanted = "expected a torch Dataset of (inputs, target) pairs"
    if isinstance(train, tuple):
        raise JobError(f"{source} gives a tuple: {wanted}")
    try:
        inputs, _ = torch.utils.data.default_collate([train[0]])
    except Exception as error:
        raise JobError(f"{source}: its first sample raised {type(error).__name__} ({error}); {wanted}") from error
    return inputs


def _split(settings: JobSettings, train: Dataset[Any], users: Sequence[Any] | None) -> list[Dataset[Any]]:
    data, count = settings.data, settings.data.clients
    if data.split == "dirichlet":
        return list(dirichlet(train, count, alpha=float(data.alpha or 0), seed=data.seed))
    if data.split == "shards":
        return list(shards(train, count, shards_per_client=int(data.shards_per_client or 0), seed=data.seed))
    if data.split == "vertical":
        merging = settings.method.method().merging
        owner = merging.labels_at if merging else 0
        return list(vertical(train, count, shared=data.shared or 1.0, labels_at=owner, seed=data.seed))
    if data.split == "by_user":
        if users is None:
            raise JobError('[data] split = "by_user": the function that loads the data must give (train, test, users)')
        return list(by_user(train, users))
    return list(iid(train, count, seed=data.seed))
