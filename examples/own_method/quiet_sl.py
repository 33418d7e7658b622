"""A method in a package of its own: split learning on the last mini-batch only.

The front learns from a small auxiliary network all round long; the tail hears of it once in `every` mini-batches. Each
client does its forwards first and sends them, then its backwards, so that the tail can begin early.
"""

from splitfl.methods import Method
from splitfl.schedule import arrange, backwards, forwards


def quiet_sl(*, every: int = 10, micro_batches: int = 2) -> Method:
    """Local losses with a linear auxiliary network; activations in every `every`-th mini-batch."""
    return Method(
        name="quiet-sl",
        schedule=sends_first,
        micro_batches=micro_batches,
        shared_tail=True,
        local_losses="cut",
        auxiliary="linear",
        upload_every=every,
        front_trained_by="auxiliary loss",
        source="docs/add-a-method.md",
    )


def sends_first(topology):
    """All forwards of the front, then its backwards, then the tail."""
    return arrange(topology, one_client)


def one_client(topology, client):
    stages = range(topology.stages)
    for micro in topology.micro(client):
        yield from forwards(topology, client, micro, stages[:1])
    for micro in topology.micro(client):
        yield from backwards(topology, client, micro, stages[:1])
    for micro in topology.micro(client):
        yield from forwards(topology, client, micro, stages[1:])
        yield from backwards(topology, client, micro, stages[1:])
