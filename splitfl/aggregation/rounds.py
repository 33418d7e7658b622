"""One round of a strategy at a time: ask, train, check, aggregate, check again.

state ──> configure_train ──> grid ──> clients ──> guard_updates ──> aggregate_train ──> guard_result ──> state
                                                        └── buffers, by a rule of their own ────────────────┘
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal

import torch

from splitfl.aggregation.blocks import Block, blocks_of
from splitfl.aggregation.buffers import buffer_names, split_buffers
from splitfl.aggregation.calls import aggregate, configure
from splitfl.aggregation.draws import secret_seed, seed_for, seeded
from splitfl.aggregation.flower import Message, SplitGrid, Strategy
from splitfl.aggregation.guards import guard_result, guard_updates
from splitfl.aggregation.mean import mean
from splitfl.aggregation.memory import Snapshot, from_checkpoint, roll_back, snapshot, to_checkpoint
from splitfl.aggregation.strategies import adds_noise, clips_on_clients, requirement, weight_key
from splitfl.aggregation.values import AggregationError, Assignment, Outcome, Refusal, Reply, Tensors, Train, Update

ALWAYS_SENT = {"server-round"}
"""What every strategy tells its clients, and what needs nothing from them."""


def handover(updates: Sequence[Reply], state: Mapping[str, torch.Tensor]) -> Outcome:
    """Vanilla split learning: what the one client of a turn has trained is handed on to the next.

    A refused update leaves `state` as it was. AggregationError for more than one update.
    """
    if len(updates) > 1:
        names = ", ".join(update.name for update in updates)
        raise AggregationError(f"{len(updates)} clients ({names}) in one turn of a relay, expected 1")
    accepted, refused = guard_updates(updates, state)
    if not accepted:
        return Outcome(dict(state), refused=tuple(refused))
    return Outcome({name: accepted[0].state[name] for name in state}, accepted[0].metrics)


class StrategyRounds:
    """Runs the rounds of a job through a Flower strategy.

    strategy    any message-based strategy; it is copied where there are several blocks of layers
    template    tensors with the names, shapes and dtypes of the aggregated state
    seed        decides which clients are sampled in which round
    noise_seed  decides privacy noise; None draws a secret one every round, as noise that a client can draw again
                protects nobody
    buffers     names beyond the obvious ones that stay out of the strategy (see `buffers`)
    holds       client id -> names it hands over, where that differs between clients
    honors      keys of the strategy's configuration that the clients act on; a strategy that sends another is refused
    on_refusal  "continue" without a refused client, or "stop" the round

    Raises AggregationError for a strategy that could not keep what it promises.
    """

    def __init__(
        self,
        strategy: Any,
        template: Mapping[str, torch.Tensor],
        *,
        seed: int = 0,
        noise_seed: int | None = None,
        buffers: Collection[str] = (),
        holds: Mapping[int, Collection[str]] | None = None,
        honors: Collection[str] = (),
        on_refusal: Literal["continue", "stop"] = "continue",
    ) -> None:
        if on_refusal not in ("continue", "stop"):
            raise AggregationError(f'on_refusal = {on_refusal!r}: expected "continue" or "stop"')
        self._template = {name: value.detach().clone() for name, value in template.items()}
        self._buffers = buffer_names(template, buffers=buffers)
        self._holds = holds
        self._blocks = blocks_of((name for name in template if name not in self._buffers), holds)
        _require_suitable(strategy, template, buffers=self._buffers, blocks=self._blocks)
        self._strategies: list[Strategy] = [strategy] + [deepcopy(strategy) for _ in self._blocks[1:]]
        self._made = [snapshot(each) for each in self._strategies]
        self._seed, self._noise_seed = seed, noise_seed
        self._understood = ALWAYS_SENT | set(honors)
        self._stop = on_refusal == "stop"

    def round(
        self,
        number: int,
        state: Mapping[str, torch.Tensor],
        train: Train,
        clients: Mapping[int, str] | Iterable[int],
        *,
        config: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Round `number` (from 1): the weights that follow `state`, which itself is not touched.

        train    trains assignments, in ascending order of clients, and returns their updates; blocks
        clients  those who can be asked: id -> name, or just ids
        config   what to tell the clients beside what the strategy tells them

        Raises AggregationError, naming round and reason, where no new weights come of it. The strategy then remembers
        what it did before, and the round can be tried again.
        """
        names = dict(clients) if isinstance(clients, Mapping) else {client: f"c{client}" for client in clients}
        before = guard_result(state, self._template, source=f"round {number}: the state to start from")
        self._require_clients(number, names)
        remembered: list[Snapshot] = [snapshot(each) for each in self._strategies]
        try:
            return self._round(number, before, train, names, config or {})
        except BaseException:
            for each in remembered:
                roll_back(each)
            raise

    def _round(
        self, number: int, before: Tensors, train: Train, clients: Mapping[int, str], config: Mapping[str, Any]
    ) -> Outcome:
        accepted: list[Update] = []
        refused: list[Refusal] = []

        def guarded(assignments: list[Assignment]) -> list[Reply]:
            asked = [self._share(job, config) for job in assignments]
            good, bad = guard_updates(train(asked), before, asked=[job.client for job in asked], holds=self._holds)
            accepted.extend(good)
            refused.extend(bad)
            return [*good, *bad]

        key = weight_key(self._strategies[0])
        grid = SplitGrid(guarded, clients, template=before, weighted_by=key)
        requests = self._requests(number, before, grid, config)
        replies = grid.send_and_receive([request for _, request in requests])
        self._require_updates(number, accepted, refused)
        of_block = {request.metadata.message_id: index for index, request in requests}
        answers: list[list[Message]] = [[] for _ in self._blocks]
        for reply in replies:
            if not reply.has_error():
                answers[of_block[reply.metadata.reply_to_message_id]].append(reply)
        after, metrics = self._aggregate(number, before, answers)
        _, buffers = split_buffers(before, self._buffers)
        return Outcome({**before, **after, **mean(accepted, buffers)}, metrics, tuple(refused))

    def _requests(
        self, number: int, before: Tensors, grid: SplitGrid, config: Mapping[str, Any]
    ) -> list[tuple[int, Message]]:
        """The messages to send, each with the index of its block. Every block is seeded alike: it samples the same."""
        requests = []
        for index, (block, strategy) in enumerate(zip(self._blocks, self._strategies, strict=False)):
            part = {name: before[name] for name in block.names}
            with seeded(seed_for(self._seed, "sample", number)):
                messages = configure(strategy, number, part, grid, config)
            holders = block.holders
            requests += [(index, each) for each in messages if holders is None or each.metadata.dst_node_id in holders]
            for message in messages:
                self._require_understood(number, strategy, message, config)
        return requests

    def _share(self, job: Assignment, config: Mapping[str, Any]) -> Assignment:
        """The assignment with what its client holds, and without Flower's own entries."""
        held = job.state if self._holds is None else self._holds.get(job.client, ())
        told = {key: value for key, value in job.config.items() if key not in ALWAYS_SENT or key in config}
        return Assignment(job.client, {name: value for name, value in job.state.items() if name in held}, told)

    def _aggregate(
        self, number: int, before: Tensors, answers: Sequence[list[Message]]
    ) -> tuple[Tensors, dict[str, float]]:
        """The new values of every block that somebody answered for, and the metrics over the most clients."""
        after: Tensors = {}
        metrics: dict[str, float] = {}
        widest = max((len(replies) for replies in answers), default=0)
        for index, (block, strategy) in enumerate(zip(self._blocks, self._strategies, strict=False)):
            if not (answers[index] and block.names):
                continue
            count = len(answers[index])
            part = {name: before[name] for name in block.names}
            with seeded(self._aggregation_seed(number, strategy)):
                result, found = aggregate(strategy, number, answers[index], part)
            source = f"round {number}: the result of strategy {type(strategy).__name__}"
            after |= guard_result(result, part, source=source)
            metrics = metrics or (found if count == widest else {})
        return after, metrics

    def _aggregation_seed(self, number: int, strategy: Strategy) -> int:
        if self._noise_seed is not None:
            return seed_for(self._noise_seed, "noise", number)
        return secret_seed() if adds_noise(strategy) else seed_for(self._seed, "aggregate", number)

    def _require_clients(self, number: int, clients: Mapping[int, str]) -> None:
        setting, needed = requirement(self._strategies[0])
        if len(clients) < max(needed, 1):
            what = f"{setting} = {needed}" if needed else "1 or more"
            raise AggregationError(
                f"round {number}: strategy {type(self._strategies[0]).__name__} needs {what} clients, "
                f"{len(clients)} are there: start more clients, or lower {setting}"
            )

    def _require_updates(self, number: int, accepted: Sequence[Update], refused: Sequence[Refusal]) -> None:
        reasons = "; ".join(map(str, refused))
        if refused and self._stop:
            raise AggregationError(f'round {number}: an update was refused and on_refusal is "stop" ({reasons})')
        if not accepted:
            why = f"no update counts ({reasons})" if refused else "no client sent an update"
            raise AggregationError(f"round {number}: {why}; the weights before the round stay")

    def _require_understood(self, number: int, strategy: Strategy, message: Message, config: Mapping[str, Any]) -> None:
        for record in message.content.config_records.values():
            unknown = sorted(set(record) - self._understood - set(config))
            if unknown:
                raise AggregationError(
                    f"round {number}: strategy {type(strategy).__name__} asks clients for {unknown[0]!r}, which "
                    f"they do not act on (they know {', '.join(sorted(self._understood))})"
                )

    def checkpoint(self) -> tuple[Tensors, dict[str, Any]]:
        """What the strategy remembers, as tensors and a record for JSON: with the state, all that a resume needs."""
        tensors: Tensors = {}
        records = []
        for index, (strategy, made) in enumerate(zip(self._strategies, self._made, strict=True)):
            found, record = to_checkpoint(strategy, since=made)
            tensors |= {f"{index}/{name}": value for name, value in found.items()}
            records.append(record)
        return tensors, {"blocks": records}

    def resume(self, tensors: Mapping[str, torch.Tensor], record: Mapping[str, Any]) -> None:
        """Take up what `checkpoint` gave. AggregationError where the strategy or the blocks are other ones."""
        records = record.get("blocks", [])
        if len(records) != len(self._strategies):
            raise AggregationError(
                f"the checkpoint has {len(records)} blocks of layers, the job {len(self._strategies)}: resume with the "
                "cuts it was started with"
            )
        for index, (strategy, each) in enumerate(zip(self._strategies, records, strict=True)):
            prefix = f"{index}/"
            own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            from_checkpoint(strategy, own, each)


def _require_suitable(
    strategy: Any, template: Mapping[str, torch.Tensor], *, buffers: Collection[str], blocks: Sequence[Block]
) -> None:
    """Raise AggregationError for a strategy that is none, or that could not keep its promise here."""
    name = type(strategy).__name__
    if not isinstance(strategy, Strategy):
        raise AggregationError(f"strategy = {strategy!r}: expected one of flwr.serverapp.strategy, such as FedAvg()")
    if clips_on_clients(type(strategy)):
        raise AggregationError(
            f"strategy {name} relies on clients to clip their updates, which they do not: "
            f"use {name.replace('Client', 'Server')}"
        )
    if not adds_noise(strategy):
        return
    plain = [each for each in buffers if template[each].dtype.is_floating_point]
    if plain:
        raise AggregationError(
            f"strategy {name} adds no noise to {min(plain)!r}, which would tell on single samples: use a model without "
            "running statistics (GroupNorm instead of BatchNorm)"
        )
    if len(blocks) > 1:
        raise AggregationError(f"strategy {name} bounds one update per client, but the cuts make {len(blocks)} blocks")
