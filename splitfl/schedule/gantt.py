"""A walk drawn as text: one row per actor and lane, one column per unit of the clock."""

from __future__ import annotations

from splitfl.schedule.walk import Visit, Walk


def gantt(seen: Walk, *, columns: int = 110) -> str:
    """The grid of a walk, in panels no wider than `columns`; messages take no time and are not drawn.

        clock     0     1     2     3
        c0        F0    F1    .     B0
        server:0  .     F0    B0    F1

    A cell is operation and micro-batch (`.chunk` if not 0), with the stage in front where an actor runs several.
    A row `server:2` is the server's lane for client 2, `server:*` what it does for all clients at once.
    """
    drawn = [visit for visit in seen.visits if visit.end > visit.start]
    several = {actor for actor in seen.peaks if len({v.instruction.stage for v in drawn if v.actor == actor}) > 1}
    lanes = {actor: {v.lane for v in drawn if v.actor == actor} for actor in seen.peaks}
    grid: dict[str, dict[int, str]] = {}
    for visit in sorted(drawn, key=lambda v: (list(seen.peaks).index(v.actor), v.lane is None, v.lane or 0)):
        name = visit.actor
        if len(lanes[visit.actor]) > 1:
            name += ":*" if visit.lane is None else f":{visit.lane}"
        grid.setdefault(name, {})[visit.start] = _cell(visit, with_stage=visit.actor in several)
    cells = [cell for row in grid.values() for cell in row.values()]
    width = max([len(cell) for cell in cells] + [len(str(seen.clock))], default=1) + 1
    label = max([len(name) for name in grid] + [len("clock")]) + 2
    per_panel = max((columns - label) // width, 1)
    panels = [
        _panel(grid, range(first, min(first + per_panel, seen.clock)), width=width, label=label)
        for first in range(0, seen.clock, per_panel)
    ]
    return "\n".join(panels)


def _cell(visit: Visit, *, with_stage: bool) -> str:
    _, stage, _, micro, chunk, _, _ = visit.instruction
    where = "" if micro is None else f"{micro}.{chunk}" if chunk else str(micro)
    return f"{stage if with_stage else ''}{visit.instruction.op}{where}"


def _panel(grid: dict[str, dict[int, str]], clock: range, *, width: int, label: int) -> str:
    lines = ["clock".ljust(label) + "".join(str(unit).ljust(width) for unit in clock)]
    lines += [
        name.ljust(label) + "".join(row.get(unit, ".").ljust(width) for unit in clock) for name, row in grid.items()
    ]
    return "".join(f"{line.rstrip()}\n" for line in lines)
