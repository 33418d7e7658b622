"""A job as its file says it: all sections together, and what the two ends of a session must agree on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from splitfl.config.compare import CompareSettings
from splitfl.config.conflicts import conflicts
from splitfl.config.ends import ClientSettings, ServerSettings
from splitfl.config.reference import resolve
from splitfl.config.section import Section
from splitfl.config.sections import (
    CodecSettings,
    DataSettings,
    MethodSettings,
    ModelSettings,
    PlanningSettings,
    StrategySettings,
    TrainingSettings,
)

# What decides the weights at either end. Each end's own affairs (device, addresses, deadlines) and what only the server
# decides (rounds, strategy) are not part of it.
AGREED = ("batch_size", "local_steps", "shuffle", "drop_last", "loss", "optimizer_state", "seed")


class JobSettings(Section):
    """A whole job file. `base` is the folder that its relative paths count from; it is not part of the text."""

    model: ModelSettings
    method: MethodSettings
    training: TrainingSettings
    data: DataSettings
    strategy: StrategySettings | None = None
    codec: CodecSettings = Field(default_factory=CodecSettings)
    server: ServerSettings = Field(default_factory=ServerSettings)
    client: ClientSettings = Field(default_factory=ClientSettings)
    planning: PlanningSettings = Field(default_factory=PlanningSettings)
    compare: CompareSettings | None = None
    base: Path = Field(default=Path(), exclude=True, repr=False)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        found = list(conflicts(self))
        if found:
            raise ValueError("\n".join(found))
        return self

    def path(self, text: str) -> Path:
        """A path of the file, made whole."""
        return self.base / Path(text).expanduser()

    def resolve(self, reference: str) -> Callable[..., Any]:
        """The function that a reference of the file names. Raises ConfigError as `splitfl.config.resolve`."""
        return resolve(reference, self.base)

    def to_json(self) -> str:
        """What the file sets, as one line of JSON; `parse_job` makes equal settings of it."""
        return self.model_dump_json(exclude_unset=True)

    def contract(self) -> dict[str, Any]:
        """What server and clients must agree on, as plain JSON values; a difference can be named by its key.

        A default that the file leaves out and the same value written down make the same contract.
        """
        agreed: dict[str, Any] = {key: getattr(self.training, key) for key in AGREED}
        method = self.method.method()
        agreed["local_epochs"] = self.training.epochs
        agreed["method"] = {"name": method.name, "schedule": method.schedule, "micro_batches": method.micro_batches}
        agreed["optimizer"] = self.training.optimizer.model_dump(mode="json")
        agreed["codec"] = self.codec.model_dump(mode="json")
        return agreed
