"""Settings that are right one by one and impossible together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from splitfl.config.error import shown

if TYPE_CHECKING:
    from splitfl.config.settings import JobSettings

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def conflicts(settings: JobSettings) -> Iterator[str]:
    """One line for each impossible combination, naming the settings, their values and what would be right."""
    yield from _model(settings)
    yield from _method(settings)
    yield from _training(settings)
    yield from _data(settings)
    yield from _server(settings)


def _model(settings: JobSettings) -> Iterator[str]:
    model = settings.model
    if model.example_shape is None:
        if model.assigned("example_dtype"):
            yield "[model] example_dtype: has no meaning without example_shape"
    elif len(model.example_dtype) not in (1, len(model.example_shape)):
        yield (
            f"[model] example_dtype = {shown(model.example_dtype)}: expected one dtype, "
            f"or {len(model.example_shape)}, one for each shape"
        )
    if len(set(model.cuts)) < len(model.cuts):
        yield f"[model] cut = {shown(model.cut)}: a place is named twice"
    if "auto" in model.cuts and len(model.cuts) > 1:
        yield f'[model] cut = {shown(model.cut)}: expected "auto" alone, or names of places'


def _method(settings: JobSettings) -> Iterator[str]:
    method, model, codec = settings.method.method(), settings.model, settings.codec
    wanted, batch = method.micro_batches, settings.training.batch_size
    if wanted != "auto" and wanted > batch:
        yield (
            f"[method] micro_batches = {wanted}: more than the samples of a mini-batch; expected 1 to {batch}, "
            f"since [training] batch_size = {batch}"
        )
    if method.distils and model.teacher is None:
        yield f'[model] teacher is missing: method {method.name} learns from one; name a function "file.py:function"'
    if settings.strategy is not None and (method.vertical or not method.takes_strategy):
        why = "clients hand their weights on and " if method.in_turn else ""
        why = "each layer has one holder and " if method.vertical else why
        yield (
            f"[strategy] name = {shown(settings.strategy.name)}: in method {method.name} {why}nothing is averaged; "
            "leave the section out"
        )
    if method.split:
        try:
            method.placement(len(model.cuts) + 1)
        except ValueError as error:
            yield f"[model] cut = {shown(model.cut)}: {error}"
        if method.server_keeps_activations and codec.transform is not None:
            yield (
                f"[codec] transform = {shown(codec.transform)}: in method {method.name} the server also computes on "
                "activations that it keeps, outside of a mini-batch; leave it out"
            )
        return
    if model.assigned("cut"):
        yield f"[model] cut = {shown(model.cut)}: method {method.name} trains the whole model on the client, uncut"
    for role in ("activation", "gradient", "transform"):
        if getattr(codec, role) is not None:
            yield f"[codec] {role} = {shown(getattr(codec, role))}: nothing crosses a cut in method {method.name}"


def _training(settings: JobSettings) -> Iterator[str]:
    training = settings.training
    if training.local_epochs is not None and training.local_steps is not None:
        yield (
            f"[training] local_steps = {training.local_steps}: a round is measured in local_epochs or in local_steps; "
            "leave one of them out"
        )


def _data(settings: JobSettings) -> Iterator[str]:
    data = settings.data
    if (data.name is None) == (data.load is None):
        given = "both are given" if data.name else "neither is given"
        yield f'[data] name, load: {given}; expected a built-in data set, or a function "file.py:function"'
    for option, owner in (("alpha", "dirichlet"), ("shards_per_client", "shards")):
        value = getattr(data, option)
        if data.split == owner and value is None:
            yield f"[data] {option}: missing; split = {shown(owner)} needs it"
        if data.split != owner and value is not None:
            yield f"[data] {option} = {shown(value)}: has no meaning with split = {shown(data.split)}"
    if data.shared is not None and data.split != "vertical":
        yield f"[data] shared = {shown(data.shared)}: has no meaning with split = {shown(data.split)}"
    method = settings.method.method()
    if method.vertical != (data.split == "vertical"):
        wanted = 'expected "vertical"' if method.vertical else "samples go with their features"
        yield f"[data] split = {shown(data.split)}: {wanted} with method {method.name}"


def _server(settings: JobSettings) -> Iterator[str]:
    server, client = settings.server, settings.client
    for section, tls, insecure in (("server", server.tls, server.insecure), ("client", client.tls, client.insecure)):
        if tls is not None and insecure:
            yield f"[{section}] insecure = true: has no meaning beside tls; leave one of them out"
    host = server.address.rpartition(":")[0]
    if server.tls is None and not server.insecure and host not in LOOPBACK:
        yield (
            f"[server] address = {shown(server.address)}: reachable from other machines without encryption; "
            "give tls = { certificate = ..., key = ... }, or allow plain text by insecure = true"
        )
    if server.observers and (server.tls is None or server.tls.client_ca is None):
        yield (
            f"[server] observers = {shown(server.observers)}: names count where clients show certificates; give "
            "tls.client_ca, or make tokens for observers"
        )
    if client.token is not None and client.tls is None and client.insecure:
        yield f"[client] token = {shown(client.token)}: plain text would give it away; give tls = {{ ca = ... }}"
    stragglers, clients = server.stragglers, settings.data.clients
    if settings.method.method().vertical and (stragglers.late == "skip" or stragglers.grace is not None):
        yield '[server] stragglers: late = "skip" and grace have no meaning where no sample is whole without a holder'
    if isinstance(stragglers.quorum, int) and stragglers.quorum > clients:
        yield f"[server] stragglers.quorum = {stragglers.quorum}: more than [data] clients = {clients}"
    deadlines = server.deadlines
    if deadlines.step > deadlines.round:
        yield (
            f"[server] deadlines.step = {deadlines.step:g}: longer than deadlines.round = {deadlines.round:g}; "
            "a round holds many steps"
        )
