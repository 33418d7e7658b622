"""How many blocks live on the clients: as many as make a round shortest, as the simulator predicts it.

Blocks that learn on losses of their own form a pipeline without a way back, and its slowest end sets the pace.
(Pipe-BD, arXiv 2301.12443, section IV, divides blocks so that its devices are equally busy.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from splitfl.api.auto import CLIENTS, STEPS
from splitfl.methods import Method
from splitfl.run.blueprint import Blueprint
from splitfl.run.turn_plan import plan_group
from splitfl.run.virtual import Fleet, predictor

SLOTS = 4
"""Compute slots of the server that is compared."""


def balanced(method: Method, build: Callable[[Method], Blueprint], fleet: Fleet) -> Method:
    """`method` with the number of front stages that is predicted to be fastest; of equally fast ones the smallest.

    `build` makes the blueprint of a method that says how many.
    """
    fixed = replace(method, balance=False)
    last = build(fixed).stages - method.head_on_client
    choices = [replace(fixed, front_stages=count) for count in range(method.front_stages, last)]
    return min(choices, key=lambda choice: round(_seconds(build(choice), fleet), 9))


def _seconds(blueprint: Blueprint, fleet: Fleet) -> float:
    """Predicted seconds of a round of `STEPS` mini-batches with a few clients."""
    blueprint = replace(blueprint, training=replace(blueprint.training, epochs=1, steps=None))
    samples = dict.fromkeys(CLIENTS, STEPS * blueprint.training.batch_size)
    together = bool(blueprint.topology(CLIENTS).shared)
    groups = [samples] if together else [{client: count} for client, count in samples.items()]
    plans = [plan_group(blueprint, group) for group in groups]
    return predictor(blueprint, fleet, slots=SLOTS)(plans).makespan
