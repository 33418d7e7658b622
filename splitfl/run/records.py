"""What a client trains on: its data set as it is, or the samples of it that all holders have, once they are linked."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from splitfl.data.linkage import Holding
from splitfl.errors import SplitflError
from splitfl.run.blueprint import Blueprint
from splitfl.run.linkage import pack, unpack
from splitfl.transport.messages import Welcome


class Records:
    """A client's data set, with its ids' digests where the method links records.

    Raises SplitflError for a data set, or a key, that cannot be linked where that is needed.
    """

    def __init__(self, blueprint: Blueprint, dataset: Dataset[Any], *, key: bytes, client: str) -> None:
        self._blueprint = blueprint
        self._dataset = dataset
        self._key = key
        self.links = ""
        if not blueprint.holders:
            return
        if not isinstance(dataset, Holding):
            raise SplitflError(
                f"{client}: method {blueprint.method.name} trains on features of samples that others hold too, got "
                f"{type(dataset).__name__}: expected a splitfl.Holding(features, ids)"
            )
        self.links = pack(dataset.digests(key))

    @property
    def samples(self) -> int:
        """Samples that are here, linked or not."""
        return len(self._dataset)  # type: ignore[arg-type]

    def linked(self, welcome: Welcome) -> Dataset[Any]:
        """The data set to train on as the client that `welcome` names.

        Raises SplitflError where it does not fit the input that the client holds, or has not the labels that it should.
        """
        if not isinstance(self._dataset, Holding) or not self._blueprint.holders:
            return self._dataset
        port = self._blueprint.stage(0, welcome.client).inputs[0]
        found, wanted = (
            f"{str(dtype).removeprefix('torch.')}{list(shape)}"
            for dtype, shape in (
                (self._dataset.features.dtype, self._dataset.features.shape[1:]),
                (port.dtype, port.shape),
            )
        )
        if found != wanted:
            raise SplitflError(
                f"c{welcome.client} holds features {found}, expected {wanted}, those of {port.name!r}: clients hold "
                "the model's inputs in the order of their names"
            )
        merging = self._blueprint.method.merging
        if merging is not None and welcome.client == merging.labels_at and self._dataset.labels is None:
            raise SplitflError(f"c{welcome.client} has no labels, expected them there: see the method's labels_at")
        return self._dataset.aligned(unpack(welcome.links), self._key)
