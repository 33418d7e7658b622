"""The front door: what `import splitfl` offers. A change here is a change for users."""

from __future__ import annotations

from types import ModuleType

import splitfl

NAMES = {
    "Access", "ClientTLS", "Deadlines", "Holding", "Job", "JobError", "Result", "ServerTLS", "SplitflError",
    "__version__", "adam", "by_user", "codec", "dirichlet", "iid", "join", "load", "methods", "observe", "optimizer",
    "partition", "possible_cuts", "serve", "sgd", "shards", "simulate", "Stragglers", "vertical",
}  # fmt: skip

METHOD_NAMES = {
    "METHODS", "AuxiliarySource", "Merging", "Method", "Phase", "Registry", "ScheduleSource", "ampere",
    "asynchronous", "block_local", "cse_fsl", "ecofed", "epsl", "fedavg", "fsl_sage", "gas", "gpsl", "local_loss",
    "mergesfl", "parallel_sl", "pipar", "pipe_bd", "pipe_sgd", "scala", "sl", "splitfed_v1", "splitfed_v2",
    "splitfed_v3", "u_shaped", "vertical_sl",
}  # fmt: skip


def offered(module: ModuleType) -> set[str]:
    """What a module exports: names that are not private, and no sub-modules that an import happened to leave there."""
    return {
        name
        for name, value in vars(module).items()
        if (not name.startswith("_") or name == "__version__")
        and (not isinstance(value, ModuleType) or name == "methods")
        and name not in ("annotations", "Callable", "Literal")
    }


def test_the_names_of_the_package():
    assert offered(splitfl) == NAMES


def test_the_names_of_the_methods():
    assert offered(splitfl.methods) == METHOD_NAMES
