"""A schedule as a graph: which instructions must be complete before each one may start.

Three things hold an instruction back: the one before it in its lane, the ones in other lanes where they meet, and for
a RECV the SEND at the other end. The walk and the simulator both run this graph.
"""

from __future__ import annotations

from typing import NamedTuple

from splitfl.schedule.error import ScheduleError
from splitfl.schedule.instruction import Instruction, Op, Schedule, Value
from splitfl.schedule.lanes import lanes
from splitfl.schedule.topology import Topology


class Node(NamedTuple):
    """One instruction of one actor; `before` numbers the nodes that must be complete first.

    The node before it in the same lane, if any, comes first in `before`, and `sent` is the SEND that a RECV waits for.
    """

    actor: str
    lane: int | None
    position: int
    instruction: Instruction
    before: tuple[int, ...]
    sent: int | None = None


def graph(schedule: Schedule, topology: Topology) -> tuple[Node, ...]:
    """The nodes of `schedule`, actor by actor in program order.

    Raises ScheduleError where a RECV and a SEND do not pair up.
    """
    first: dict[str, int] = {}
    count = 0
    for actor, program in schedule.items():
        first[actor] = count
        count += len(program)
    sent = pairs(schedule, topology)
    nodes: list[Node | None] = [None] * count
    for actor, program in schedule.items():
        base = first[actor]
        for key, entries in lanes(program, topology).items():
            before: tuple[int, ...] = ()
            for position, instruction, after in entries:
                number = base + position
                if after:
                    before += tuple(base + earlier for earlier in after)
                source = None
                if instruction.op is Op.RECV:
                    sender, out = sent[actor, position]
                    source = first[sender] + out
                    before += (source,)
                nodes[number] = Node(actor, key, position, instruction, before, source)
                before = (number,)
    return tuple(node for node in nodes if node is not None)


def pairs(schedule: Schedule, topology: Topology) -> dict[tuple[str, int], tuple[str, int]]:
    """The SEND (actor, position) of every RECV (actor, position).

    A message is named by sender, receiver and value; within a round that name is used once per mini-batch, and uses
    are told apart by their number. Raises ScheduleError for a SEND without its RECV, a RECV without its SEND, and a
    name that is used more often than the round has mini-batches.
    """
    sends: dict[tuple[str, str, Value], list[int]] = {}
    recvs: dict[tuple[str, str, Value], list[int]] = {}
    for actor, program in schedule.items():
        for position, instruction in enumerate(program):
            peer = instruction.peer or ""
            if instruction.op is Op.SEND:
                sends.setdefault((actor, peer, instruction.value), []).append(position)
            elif instruction.op is Op.RECV:
                recvs.setdefault((peer, actor, instruction.value), []).append(position)
    found: dict[tuple[str, int], tuple[str, int]] = {}
    for name in sends | recvs:
        sender, receiver, value = name
        outs, ins = sends.get(name, []), recvs.get(name, [])
        if len(outs) > len(ins):
            spare = outs[len(ins)]
            problem = f"{value} is sent, but {receiver} has no RECV for it"
            raise ScheduleError(problem, actor=sender, position=spare, instruction=schedule[sender][spare])
        if len(ins) > len(outs):
            spare = ins[len(outs)]
            problem = f"waits for {value}, but {sender} has no SEND for it"
            raise ScheduleError(problem, actor=receiver, position=spare, instruction=schedule[receiver][spare])
        if len(outs) > topology.steps:
            spare = outs[topology.steps]
            problem = f"{value} is sent {len(outs)} times, expected {topology.steps}, once per mini-batch"
            raise ScheduleError(problem, actor=sender, position=spare, instruction=schedule[sender][spare])
        found.update({(receiver, to): (sender, out) for out, to in zip(outs, ins, strict=True)})
    return found
