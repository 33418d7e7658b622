"""`splitfl cuts` and `splitfl doctor`: looking at a model, and at this machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Annotated

import torch
import typer

from splitfl.api.settings import data_from, job_from
from splitfl.cli import console
from splitfl.cli.options import JobFile, Json
from splitfl.config import load_job
from splitfl.model import possible_cuts
from splitfl.version import __version__

NEEDED = ("torch", "flwr", "grpcio", "protobuf", "numpy", "pydantic", "typer", "rich", "safetensors", "cryptography")
EXTRAS = {"scikit-learn": "data", "prometheus-client": "monitor", "plotly": "report", "jinja2": "report"}


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("cuts")(cuts)
    app.command("doctor")(doctor)


def cuts(
    job: JobFile,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Samples that the bytes are for.")] = 1,
    as_json: Json = False,
) -> None:
    """List the places where the job's model can be cut, and what each would cost."""
    settings = load_job(job)
    example = settings.model.example()
    made = job_from(settings, example_input=None if example else data_from(settings).example_input)
    found = possible_cuts(made.build_model(), made.example_input)
    if as_json:
        fields = ("place", "aliases", "parameters", "flops", "tensors", "bytes", "gradient_bytes", "uncounted")
        console.emit("cuts", cuts=[{name: getattr(cut, name) for name in fields} for cut in found])
        return
    rows = [
        (
            cut.place,
            console.count_text(cut.parameters[0]),
            console.count_text(cut.parameters[1]),
            console.count_text(cut.flops[0] * samples),
            console.count_text(cut.flops[1] * samples),
            console.bytes_text(cut.bytes * samples + cut.fixed_bytes),
            str(cut.tensors),
        )
        for cut in found
    ]
    columns = ("cut after", "weights front", "tail", "FLOP front", "tail", "smashed", "tensors")
    counted = "one sample" if samples == 1 else f"{samples:,} samples"
    console.table(f"smashed data, and FLOP of a forward, for {counted}", columns, rows)


def doctor(as_json: Json = False) -> None:
    """Say whether this machine has what splitfl needs."""
    found = {name: _version(name) for name in (*NEEDED, *EXTRAS)}
    facts = {
        "splitfl": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "devices": ", ".join(_devices()),
        **{name: version or "missing" for name, version in found.items()},
    }
    missing = [name for name in NEEDED if found[name] is None]
    if as_json:
        console.emit("doctor", facts=facts, missing=missing)
    else:
        console.table("", ("what", "found"), facts.items(), numbers=False)
        for name, extra in EXTRAS.items():
            if found[name] is None:
                console.say(f"{name} is missing: pip install 'splitfl[{extra}]' brings it")
        console.say(f"missing: {', '.join(missing)}" if missing else "everything that splitfl needs is here")
    if missing:
        raise typer.Exit(code=2)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> list[str]:
    return [
        "cpu",
        *(f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())),
    ]
