"""The section [compare] of a job file: which runs of the job stand side by side."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, model_validator

from splitfl.config.section import Positive, Section, Text
from splitfl.config.sections import CodecSettings, MethodSettings, OptimizerSettings


class RunSettings(Section):
    """One run: a method with options of its own, and what else is not the job's.

    method     a name of `splitfl.methods.METHODS`; what else the table holds are that method's options
    codec      as the section [codec], in place of it
    optimizer  as [training] optimizer, in place of it
    rounds     as [training] rounds, in place of it: rounds of different methods hold different amounts of work
    title      what the table calls the run; the method unless given
    """

    model_config = ConfigDict(extra="allow")

    method: Text
    codec: CodecSettings | None = None
    optimizer: OptimizerSettings | None = None
    rounds: Positive | None = None
    title: Text | None = None

    @model_validator(mode="after")
    def _known(self) -> Self:
        MethodSettings(name=self.method, **self.options())
        return self

    def options(self) -> dict[str, Any]:
        """The method's options."""
        return dict(self.model_extra or {})

    @property
    def name(self) -> str:
        """What the table calls the run."""
        return self.title or self.method


def _run(value: object) -> object:
    return {"method": value} if isinstance(value, str) else value


def _runs(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Run = Annotated[RunSettings, BeforeValidator(_run)]
"""A method's name, or a table."""


class CompareSettings(Section):
    """[compare]: for `splitfl compare`.

    runs     methods by name, or tables with a method, its options, a codec, rounds, a title
    seeds    each run is repeated with so many seeds, from [training] seed upwards, which also decide the data's split
    central  also train the whole model on the data of all clients together, without any federation
    """

    runs: Annotated[tuple[Run, ...], BeforeValidator(_runs)] = ()
    seeds: Positive = 3
    central: bool = True
