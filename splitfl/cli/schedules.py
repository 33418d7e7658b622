"""`splitfl methods`, `splitfl show` and `splitfl check`: schedules as text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitfl.api.job import method_named
from splitfl.api.settings import data_from, fleet_from, job_from
from splitfl.cli import console
from splitfl.cli.options import Json
from splitfl.config import load_job
from splitfl.errors import SplitflError
from splitfl.methods import METHODS, Method, Phase
from splitfl.run.turn_plan import plan_group
from splitfl.schedule import GENERATORS, Topology, build, check, gantt, parse, text

Clients = Annotated[int, typer.Option("--clients", min=1, help="Number of clients.")]
MicroBatches = Annotated[int | None, typer.Option("--micro-batches", min=1, help="Micro-batches per mini-batch.")]
Stages = Annotated[
    int | None, typer.Option("--stages", min=1, help="Number of stages; as few as the method can have unless given.")
]

PhaseName = Annotated[
    str | None, typer.Option("--phase", help="train, front or upload; that of the first round unless given.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("methods")(methods)
    app.command("show")(show)
    app.command("check")(check_command)


def methods(as_json: Json = False) -> None:
    """List the methods: what is split, who trains what, and what is averaged."""
    rows = [_row(make()) for make in METHODS.values()]
    if as_json:
        console.emit("methods", methods=rows)
        return
    shown = ("method", "schedule", "trained by", "tail", "averaged", "source")
    brief = [{**row, "trained by": row["front trained by"].removesuffix("'s gradient")} for row in rows]
    title = "trained by: whose loss or gradient trains the front, the client-side partition"
    console.table(title, shown, [[row[column] for column in shown] for row in brief], numbers=False)


def show(
    name: Annotated[str, typer.Argument(metavar="METHOD", help="A method, a generator, or a .sched file.")],
    clients: Clients = 2,
    micro_batches: MicroBatches = None,
    stages: Stages = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Mini-batches in the round.")] = 1,
    step_only: Annotated[bool, typer.Option("--step-only", help="The mini-batch without loads and averages.")] = False,
    phase: PhaseName = None,
    grid: Annotated[bool, typer.Option("--gantt", help="Draw it as a grid too.")] = False,
) -> None:
    """Print the schedule of a round; the text can be saved as a .sched file, edited, checked and run."""
    method = named(name)
    chosen = _phase(method, phase)
    topology = _topology(method, clients, micro_batches, stages, steps, chosen)
    if step_only:
        topology = topology.without_aggregation()
    schedule = build(method.generator(chosen), topology)
    console.say(text(schedule).rstrip())
    if grid:
        console.say("\n" + gantt(check(schedule, topology)).rstrip())


def check_command(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A .sched file, or a job file.", show_default=False)],
    method: Annotated[str, typer.Option("--method", help="The method whose rules a .sched file must keep.")] = "pipar",
    clients: Clients = 2,
    micro_batches: MicroBatches = None,
    stages: Stages = None,
    phase: PhaseName = None,
) -> None:
    """Prove a schedule file, or a whole job: model, cut, shapes, loss and schedule."""
    if path.suffix == ".sched":
        made = method_named(method)
        topology = _topology(made, clients, micro_batches, stages, 1, _phase(made, phase))
        written = parse(path.read_text(encoding="utf-8"))
        whole = any(str(at.op) == "A" for program in written.values() for at in program)
        if not whole:
            topology = topology.without_aggregation()
        seen = check(written, topology) if _lowered(written) else check(build(lambda _: written, topology), topology)
        console.say(f"{path}: sound; {len(seen.visits)} instructions, {seen.clock} steps of the clock")
        return
    settings = load_job(path)
    data = data_from(settings)
    blueprint = job_from(settings, example_input=data.example_input).blueprint(fleet_from(settings))
    sizes = {client: len(each) for client, each in enumerate(data.clients)}  # type: ignore[arg-type]
    plan = plan_group(blueprint, sizes)
    cuts = ", ".join(blueprint.partition.cuts) or "uncut"
    console.say(
        f"{path}: sound; {blueprint.method.name}, cut: {cuts}, {blueprint.micro_batches} micro-batches, "
        f"loss: {blueprint.reduction}, {len(sizes)} clients with {min(sizes.values())} to {max(sizes.values())} "
        f"samples, {len(plan.steps)} mini-batches a round"
    )


def named(name: str) -> Method:
    """A method by its name, or the plainest one that runs a generator or a .sched file. SplitflError otherwise."""
    if name in METHODS:
        return METHODS[name]()
    if name in GENERATORS or name.endswith(".sched"):
        return Method(name=name, schedule=name)
    known = ", ".join([*METHODS, *(key for key in GENERATORS if key not in METHODS)])
    raise SplitflError(f"{name!r} is no method and no generator: expected one of {known}, or the path of a .sched file")


def _phase(method: Method, name: str | None) -> Phase:
    """The phase of that name, or that of the method's first round. SplitflError for one in which no client is asked."""
    if name is None:
        return method.phase(1, 2)
    known = [each.value for each in Phase if each is not Phase.SERVER]
    if name not in known:
        raise SplitflError(f"--phase {name}: expected one of {', '.join(known)}")
    return Phase(name)


def _lowered(written: object) -> bool:
    return any(at.kind is not None for program in written.values() for at in program)  # type: ignore[attr-defined]


def _topology(
    method: Method,
    clients: int,
    micro_batches: int | None,
    stages: int | None,
    steps: int,
    phase: Phase = Phase.TRAIN,
) -> Topology:
    if stages is not None and method.split and stages < method.least_stages:
        raise SplitflError(f"--stages {stages}: method {method.name} has {method.least_stages} stages or more")
    count = micro_batches or (method.micro_batches if method.micro_batches != "auto" else 4)
    return method.topology(
        tuple(range(clients)),
        stages=(stages or method.least_stages) if method.split else 1,
        micro_batches=count,
        steps=steps,
        phase=phase,
    )


def _row(method: Method) -> dict[str, str]:
    """A line of the methods' table, by column."""
    front, tail = ("front, head", "body") if method.head_on_client else ("front", "tail")
    averaged = [part for part, is_ in ((front, method.average_front), (tail, method.average_tail)) if is_]
    if not method.split:
        averaged = ["whole model"]
    elif not method.trains_front:
        averaged = ["-"]
    elif method.shared_tail:
        averaged = ["handed on"] if method.in_turn else ["front"]
    return {
        "method": method.name,
        "placement": _placement(method),
        "schedule": _schedule(method) + (", in turn" if method.in_turn else ""),
        "front trained by": method.front_trained_by,
        "tail": "-" if not method.split else "shared" if method.shared_tail else "replica",
        "averaged": ", ".join(averaged),
        "source": method.source,
    }


def _schedule(method: Method) -> str:
    return str(method.schedule) if method.trains_front else "transfer"


def _placement(method: Method) -> str:
    if not method.split:
        return "whole model on client"
    return "front and head on client, body on server" if method.head_on_client else "front on client, tail on server"
