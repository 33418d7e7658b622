"""Flower's strategies over our own sessions: the only file that knows Flower.

Written against flwr 1.42. A strategy speaks to its clients through a `Grid`, in messages that hold records of numpy
arrays. `SplitGrid` is such a grid: it turns the messages of a round into assignments, has the engine train them, and
turns the updates into replies, so that any message-based strategy runs unchanged and without a Flower server.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

# Read when Flower is imported: a library must not phone home on its user's behalf.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import flwr.serverapp.strategy as strategies
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from splitfl.aggregation.mean import wide
from splitfl.aggregation.values import AggregationError, Assignment, Evaluate, Refusal, Tensors, Train, Update

__all__ = [
    "STRATEGIES",
    "ArrayRecord",
    "ConfigRecord",
    "Message",
    "SplitGrid",
    "Strategy",
    "to_record",
    "to_tensors",
]

UNSUITED = {"FedXgbBagging", "FedXgbCyclic", "Result", "Strategy"}

STRATEGIES: dict[str, type[Strategy]] = {
    name: getattr(strategies, name) for name in strategies.__all__ if name not in UNSUITED
}
"""Flower's strategies for models made of tensors, by class name."""

WEIGHT_KEY = "num-examples"


def to_record(state: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """Tensors as Flower's arrays, floating point in double precision.

    numpy knows neither bfloat16 nor float8, and strategies compute in the type they are given: in half or single
    precision a weighted sum of equal values would not give the value back. Costs 8 bytes per number for one round.
    """
    record = ArrayRecord()
    for name, value in state.items():
        record[name] = HeldArray(_to_numpy(value))  # given to the constructor, it would be copied into bytes
    return record


class HeldArray(Array):
    """An array that stays in this process, so it is put into bytes only for whoever asks for them.

    Flower's own class writes every array in numpy's file format and reads it back at each use, which took four fifths
    of a round's aggregation.
    """

    def __init__(self, held: np.ndarray[Any, Any]) -> None:
        self._held = held
        self.dtype, self.shape, self.stype = str(held.dtype), tuple(held.shape), "numpy.ndarray"

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy: strategies compute in place."""
        return self._held.copy()

    @property
    def data(self) -> bytes:  # type: ignore[override]  # a plain attribute there, which nobody writes once it is made
        """The bytes that Flower's own class would hold."""
        return bytes(Array.from_numpy_ndarray(self._held).data)


def _to_numpy(value: torch.Tensor) -> np.ndarray[Any, Any]:
    plain = value.detach().cpu()
    if plain.dtype.is_floating_point or plain.dtype.is_complex:
        plain = plain.to(wide(plain.dtype))
    array: np.ndarray[Any, Any] = plain.contiguous().numpy()
    return array


def to_tensors(record: Mapping[str, Array], template: Mapping[str, torch.Tensor]) -> Tensors:
    """The arrays of `record` as tensors in the dtypes of `template`; AggregationError names one that is not in it."""
    unknown = sorted(set(record) - set(template))
    if unknown:
        raise AggregationError(f"array {unknown[0]!r} is no tensor of the model, expected names of its state")
    return {name: torch.from_numpy(array.numpy()).to(template[name].dtype) for name, array in record.items()}


class SplitGrid(Grid):
    """Flower's view of the clients that are in session with us; node ids are client ids.

    train        trains assignments and returns what the clients hand over; blocks
    clients      id -> name of those who can be asked; read anew at every use, so it may change between rounds
    template     dtypes of the model's tensors, and the values of those that no message carries (buffers)
    weighted_by  key under which a strategy looks for the number of samples
    evaluate     evaluates on the clients; without it, such messages are answered with an error
    patience     seconds that a strategy may wait for more clients than there are

    Messages that go to one client in one push are one assignment: the blocks of layers that it holds. Replies are in
    the order of client ids. Whatever is pushed is answered when the push returns, so nothing here waits by itself.
    """

    def __init__(
        self,
        train: Train,
        clients: Mapping[int, str],
        *,
        template: Mapping[str, torch.Tensor],
        weighted_by: str = WEIGHT_KEY,
        evaluate: Evaluate | None = None,
        patience: float = 5.0,
    ) -> None:
        _identify_task()
        self._train = train
        self._clients = clients
        self._template = template
        self._weighted_by = weighted_by
        self._evaluate = evaluate
        self._patience = patience
        self._run = Run.create_empty(TaskIdentity.run_id)
        self._replies: dict[str, Message] = {}
        self._sent = 0
        self._waiting_since: float | None = None

    def set_run(self, run: Run) -> None:
        """Keep `run`, which Flower describes its runs with."""
        self._run = run

    @property
    def run(self) -> Run:
        """What `set_run` was given, or an empty description."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message to the client `dst_node_id`."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of the clients, ascending.

        Strategies ask again and again until there are enough. AggregationError where one still asks after `patience`
        seconds without having sent anything: nobody joins in the middle of a round.
        """
        now = time.monotonic()
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        if now - self._waiting_since > self._patience:
            raise AggregationError(
                f"the strategy waited {self._patience:g} s for more clients than the {len(self._clients)} that are "
                f"there: lower its min_available_nodes and min_train_nodes to {len(self._clients)}, or start more"
            )
        return sorted(self._clients)

    def start_patience(self) -> None:
        """Forget how long a strategy has waited: it is about to be asked for messages."""
        self._waiting_since = None

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have `messages` carried out; returns their ids, by which the replies can be pulled."""
        self.start_patience()
        ordered = sorted(messages, key=lambda message: message.metadata.dst_node_id)
        for message in ordered:
            self._sent += 1
            message.metadata.__dict__["_message_id"] = str(self._sent)
        for kind in dict.fromkeys(message.metadata.message_type for message in ordered):
            batch = [message for message in ordered if message.metadata.message_type == kind]
            for request, reply in zip(batch, self._carry_out(kind, batch), strict=True):
                self._replies[request.metadata.message_id] = reply
        return [message.metadata.message_id for message in ordered]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to the messages with `message_ids`, each handed out once."""
        return [self._replies.pop(key) for key in message_ids if key in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push `messages` and pull their replies. How long clients may take is the engine's to decide."""
        del timeout
        return self.pull_messages(self.push_messages(messages))

    def _carry_out(self, kind: str, requests: Sequence[Message]) -> list[Message]:
        """One reply per request, in their order."""
        action = kind.partition(".")[0]
        known = [request for request in requests if request.metadata.dst_node_id in self._clients]
        answer: Callable[[Message], Message]
        if action == MessageType.TRAIN:
            answer = self._trained(known)
        elif action == MessageType.EVALUATE and self._evaluate is not None:
            answer = self._evaluated(self._evaluate, known)
        else:
            return [_error(request, f"does not take {kind!r} messages") for request in requests]
        return [answer(request) if request in known else _error(request, "is not in session") for request in requests]

    def _assignments(self, requests: Sequence[Message]) -> list[Assignment]:
        """Requests merged by client, sharing tensors. What no message carries, such as buffers, is the template's."""
        merged: dict[int, Assignment] = {}
        unpacked: dict[int, Tensors] = {}
        for request in requests:
            client = request.metadata.dst_node_id
            job = merged.setdefault(client, Assignment(client, dict(self._template)))
            for record in request.content.array_records.values():
                if id(record) not in unpacked:
                    unpacked[id(record)] = to_tensors(record, self._template)
                job.state.update(unpacked[id(record)])
            for options in request.content.config_records.values():
                job.config.update(options)
        return [merged[client] for client in sorted(merged)]

    def _trained(self, requests: Sequence[Message]) -> Callable[[Message], Message]:
        replies = self._train(self._assignments(requests)) if requests else []
        by_client = {reply.client: reply for reply in replies}
        shared = _shared_metrics([reply.metrics for reply in replies if isinstance(reply, Update)])

        def answer(request: Message) -> Message:
            reply = by_client.get(request.metadata.dst_node_id)
            if reply is None or isinstance(reply, Refusal):
                return _error(request, reply.reason if reply else "gave no update")
            (key, record), *_ = request.content.array_records.items()
            lacking = [name for name in record if name not in reply.state]
            if lacking:
                return _error(request, f"lacks tensor {lacking[0]!r}")
            arrays = to_record({name: reply.state[name] for name in record})
            numbers = {name: reply.metrics[name] for name in shared}
            return Message(
                RecordDict({key: arrays, "metrics": self._metrics(numbers, reply.samples)}), reply_to=request
            )

        return answer

    def _evaluated(self, evaluate: Evaluate, requests: Sequence[Message]) -> Callable[[Message], Message]:
        found = evaluate(self._assignments(requests)) if requests else {}
        shared = _shared_metrics([metrics for _, metrics in found.values()])

        def answer(request: Message) -> Message:
            if request.metadata.dst_node_id not in found:
                return _error(request, "gave no evaluation")
            samples, metrics = found[request.metadata.dst_node_id]
            numbers = {name: metrics[name] for name in shared}
            return Message(RecordDict({"metrics": self._metrics(numbers, samples)}), reply_to=request)

        return answer

    def _metrics(self, numbers: Mapping[str, float], samples: int) -> MetricRecord:
        return MetricRecord({**{name: float(value) for name, value in numbers.items()}, self._weighted_by: samples})


def _identify_task() -> None:
    """Messages are stamped with the run they belong to, which only a Flower process knows; elsewhere, with ones."""
    for name in ("run_id", "node_id", "task_id"):
        if vars(TaskIdentity)[f"_{name}"] is None:
            setattr(TaskIdentity, name, 1)


def _error(request: Message, reason: str) -> Message:
    return Message(Error(code=0, reason=f"client {request.metadata.dst_node_id} {reason}"), reply_to=request)


def _shared_metrics(found: Sequence[Mapping[str, float]]) -> list[str]:
    """The metrics that every client reports: strategies refuse replies whose keys differ."""
    return sorted(set(found[0]).intersection(*found[1:])) if found else []
