"""Flower's strategies by name, with settings that suit a known set of clients, and what they need to run here."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from splitfl.aggregation.flower import STRATEGIES, Strategy
from splitfl.aggregation.memory import wrapped
from splitfl.aggregation.values import AggregationError

MINIMA = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
FRACTIONS = ("fraction_train", "fraction_evaluate")


class StrategyError(AggregationError):
    """A strategy that does not exist, or a setting that it cannot have."""


def strategy_names() -> list[str]:
    """The names that `strategy_from` knows."""
    return sorted(name for name, made in STRATEGIES.items() if not clips_on_clients(made))


def strategy_from(name: str, options: Mapping[str, Any] | None = None, *, clients: int | None = None) -> Strategy:
    """The strategy `name` of flwr.serverapp.strategy (any case) with `options`.

    Unless options say otherwise, all clients take part and one is enough to go on. A strategy that wraps another takes
    it as option `strategy`: a name, a mapping with `name` and options, or a strategy; FedAvg if left out. Where it
    wants to know how many clients are sampled, that is `clients`.

    Raises StrategyError naming the strategy or option and what would be right.
    """
    known = {each.lower(): each for each in strategy_names()}
    if name.lower() not in known:
        close = get_close_matches(name.lower(), known, n=1)
        hint = f"; did you mean {known[close[0]]!r}?" if close else ""
        raise StrategyError(f"strategy = {name!r}: expected one of {', '.join(known.values())}{hint}")
    name = known[name.lower()]
    accepted = inspect.signature(STRATEGIES[name]).parameters
    chosen = {**_defaults(accepted, clients), **(options or {})}
    if "strategy" in accepted:
        chosen["strategy"] = _inner(chosen.get("strategy", "FedAvg"), clients)
    _check(name, chosen, accepted, clients)
    try:
        return STRATEGIES[name](**chosen)
    except (TypeError, ValueError) as error:
        raise StrategyError(f"strategy {name}: {error}") from error


def _defaults(accepted: Mapping[str, Any], clients: int | None) -> dict[str, Any]:
    defaults: dict[str, Any] = {**dict.fromkeys(FRACTIONS, 1.0), **dict.fromkeys(MINIMA, 1)}
    if clients is not None:
        defaults["num_sampled_clients"] = clients
    return {key: value for key, value in defaults.items() if key in accepted}


def _inner(given: Any, clients: int | None) -> Strategy:
    if isinstance(given, Strategy):
        return given
    options = {"name": given} if isinstance(given, str) else dict(given)
    return strategy_from(options.pop("name", "FedAvg"), options, clients=clients)


def _check(
    name: str, chosen: Mapping[str, Any], accepted: Mapping[str, inspect.Parameter], clients: int | None
) -> None:
    """Raise StrategyError for the first option that `name` does not take, lacks, or cannot have."""
    for key, value in chosen.items():
        if key not in accepted:
            raise StrategyError(f"strategy {name}: unknown option {key!r}, expected some of {', '.join(accepted)}")
        wanted = {float: int | float, int: int, str: str}.get(accepted[key].annotation)
        if wanted is not None and (isinstance(value, bool) or not isinstance(value, wanted)):
            kind = "a text" if wanted is str else "a whole number" if wanted is int else "a number"
            raise StrategyError(f"strategy {name}: {key} = {value!r}, expected {kind}")
        if key in FRACTIONS and not 0 <= value <= 1:
            raise StrategyError(f"strategy {name}: {key} = {value!r}, expected a number from 0 to 1")
        if key in MINIMA and (value < 1 or (clients is not None and value > clients)):
            raise StrategyError(
                f"strategy {name}: {key} = {value!r}, expected 1 to {clients or 'the number of clients'}"
            )
    lacking = [key for key, each in accepted.items() if each.default is each.empty and key not in chosen]
    if lacking:
        raise StrategyError(f"strategy {name}: option {lacking[0]!r} is missing, it has no default")


def requirement(strategy: Strategy) -> tuple[str, int]:
    """The setting of `strategy`, or of one that it wraps, that asks for the most clients, and how many; 0 if none."""
    asked = [
        (name, int(getattr(part, name, 0)))
        for part in wrapped(strategy)
        for name in ("min_available_nodes", "min_train_nodes")
    ]
    return max(asked, key=lambda each: each[1])


def weight_key(strategy: Strategy) -> str:
    """The metric under which `strategy`, or one that it wraps, looks for the number of samples."""
    keys = [str(part.weighted_by_key) for part in wrapped(strategy) if hasattr(part, "weighted_by_key")]
    return keys[0] if keys else "num-examples"


def adds_noise(strategy: Strategy) -> bool:
    """Whether `strategy` promises differential privacy."""
    return any(name.startswith("DifferentialPrivacy") for part in wrapped(strategy) for name in _ancestry(type(part)))


def clips_on_clients(strategy: type[Strategy]) -> bool:
    """Whether `strategy` relies on clients to clip their updates. Ours do not, so its promise would be false."""
    return any(name.startswith("DifferentialPrivacyClientSide") for name in _ancestry(strategy))


def _ancestry(strategy: type) -> list[str]:
    return [each.__name__ for each in strategy.__mro__]
