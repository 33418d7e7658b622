"""The sections of a job file, one class each; what concerns several sections together is in `conflicts`."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Annotated, Any, Literal, Self, get_type_hints

import torch
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from splitfl.codecs import CODECS, CodecError, codec
from splitfl.config.error import suggestion
from splitfl.config.loss import check_loss
from splitfl.config.optimizer import check_optimizer
from splitfl.config.reference import split_reference
from splitfl.config.section import Names, NumberOrAuto, Positive, Reference, Section, Text, among
from splitfl.data import NAMES
from splitfl.methods import METHODS, Method
from splitfl.model import TRANSFORMS, TransformError, expected_transform, parse_transform
from splitfl.planning import DEVICES, LINKS
from splitfl.schedule import GENERATORS

DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
"""Names of torch's dtypes."""


def _shapes(value: object) -> object:
    nested = isinstance(value, (list, tuple)) and value and all(isinstance(part, (list, tuple)) for part in value)
    shapes = value if nested else [value]
    for shape in shapes:  # type: ignore[attr-defined]
        sizes = isinstance(shape, (list, tuple)) and all(type(size) is int and size >= 1 for size in shape)
        if not sizes:
            raise ValueError("expected the shape of one sample such as [1, 8, 8], or a list of shapes, one per input")
    return tuple(tuple(shape) for shape in shapes)  # type: ignore[attr-defined]


def _dtypes(value: object) -> object:
    names = value if isinstance(value, (list, tuple)) else [value]
    for name in names:
        if name not in DTYPES:
            raise ValueError(suggestion(str(name), DTYPES))
    return tuple(names)


def _device(name: str) -> str:
    try:
        torch.device(name)
    except RuntimeError:
        raise ValueError('expected a torch device such as "cpu", "cuda" or "cuda:1"') from None
    return name


def _loss(name: str) -> str:
    check_loss(name)
    return name


def _schedule(name: str) -> str:
    if ":" in name:
        split_reference(name)
    elif not name.endswith(".sched") and name not in GENERATORS:
        raise ValueError(f'{suggestion(name, GENERATORS)}; or a path "mine.sched", or a function "file.py:function"')
    return name


def _codec(role: str, name: str) -> str:
    close = suggestion(name, CODECS)
    if name.isalnum() and name not in CODECS and close.startswith("did you mean"):
        raise ValueError(close)
    try:
        codec(**{role: name})
    except CodecError as error:
        raise ValueError(str(error).removeprefix(f"codec: {role} = {name!r}: ")) from None
    return name


def _transform(text: str) -> str:
    kind, colon, _ = text.partition(":")
    if kind not in TRANSFORMS and colon:
        try:
            split_reference(text)
        except ValueError as error:
            raise ValueError(f"{expected_transform()}; or, for one of your own, {error}") from None
        return text
    try:
        parse_transform(text)
    except TransformError as error:
        raise ValueError(str(error).removeprefix(f"transform = {text!r}: ")) from None
    return text


class ModelSettings(Section):
    """[model]: the module, an example of what goes in, and where it is cut.

    build          reference to a function that makes the module
    args           keyword arguments of that function
    example_shape  shape of one sample, without the batch dimension; a list of shapes for several inputs; left out where
                   the data set gives the example
    example_dtype  dtype of each input; one for all, or one per input
    cut            "auto", a place as `splitfl cuts` lists them, or a list of places
    teacher        reference to a function that makes the trained model that methods such as pipe-bd learn from
    teacher_args   keyword arguments of that function
    teacher_cut    where it is cut, as `cut`; at the same places unless given
    """

    build: Reference
    args: dict[str, Any] = Field(default_factory=dict)
    example_shape: Annotated[tuple[tuple[int, ...], ...] | None, BeforeValidator(_shapes)] = None
    example_dtype: Annotated[tuple[str, ...], BeforeValidator(_dtypes)] = ("float32",)
    cut: Names = "auto"
    teacher: Reference | None = None
    teacher_args: dict[str, Any] = Field(default_factory=dict)
    teacher_cut: Names | None = None

    @property
    def cuts(self) -> tuple[str, ...]:
        """The places of `cut`, as a tuple whichever way they are written."""
        return (self.cut,) if isinstance(self.cut, str) else self.cut

    def example(self, batch: int = 1) -> tuple[torch.Tensor, ...] | None:
        """Zeros of the example's shapes, [batch, *shape] each; None where the file gives no shape."""
        if self.example_shape is None:
            return None
        dtypes = self.example_dtype * (len(self.example_shape) if len(self.example_dtype) == 1 else 1)
        pairs = zip(self.example_shape, dtypes, strict=True)
        return tuple(torch.zeros(batch, *shape, dtype=DTYPES[dtype]) for shape, dtype in pairs)


class MethodSettings(Section):
    """[method]: a name of `splitfl.methods.METHODS` and that method's own options.

    schedule       a built-in generator, the path of a `.sched` file, or a reference to a generator
    micro_batches  parts of a mini-batch in flight together, or "auto"
    """

    model_config = ConfigDict(extra="allow")

    name: str
    micro_batches: NumberOrAuto | None = None
    schedule: Annotated[str, AfterValidator(_schedule)] | None = None

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.name not in METHODS:
            raise ValueError(f"name = {self.name!r}: {suggestion(self.name, METHODS)}")
        accepted = inspect.signature(METHODS[self.name]).parameters
        for option in self.options():
            if option not in accepted:
                raise ValueError(f"{option}: method {self.name} has no such option: {suggestion(option, accepted)}")
        self._check_types()
        self.method()
        return self

    def _check_types(self) -> None:
        hints = get_type_hints(METHODS[self.name])
        for option, value in self.options().items():
            try:
                TypeAdapter(hints.get(option, Any)).validate_python(value, strict=True)
            except ValidationError as error:
                wanted = " or ".join(
                    dict.fromkeys(each["msg"].removeprefix("Input should be ") for each in error.errors())
                )
                raise ValueError(f"{option} = {value!r}: expected {wanted}") from None

    def method(self) -> Method:
        """The method as the file asks for it; its `schedule` is still text where the file gives one."""
        return METHODS[self.name](**self.options())

    def options(self) -> dict[str, Any]:
        """Keyword arguments for `METHODS[name]`: what the file sets, nothing else."""
        return {key: value for key, value in self if key != "name" and value is not None}


class OptimizerSettings(Section):
    """[training] optimizer: a name of torch.optim in lower case, and its options as torch names them."""

    model_config = ConfigDict(extra="allow")

    name: str

    @model_validator(mode="after")
    def _accepted(self) -> Self:
        check_optimizer(self.name, self.options())
        return self

    def options(self) -> dict[str, Any]:
        """The options that the file sets; a list as a tuple, as torch documents pairs."""
        return {key: tuple(value) if isinstance(value, list) else value for key, value in self if key != "name"}


class TrainingSettings(Section):
    """[training]: rounds, batches, loss and optimizer.

    rounds           rounds of federation
    batch_size       samples in a mini-batch of one client
    local_epochs, local_steps  passes over the local data in a round, or mini-batches; one pass unless given
    loss             a loss of torch.nn.functional, or a reference to (output, target) -> mean over the samples
    optimizer_state  "reset": a fresh optimizer every round; "keep": each replica goes on with its own
    device           of this end, such as "cpu" or "cuda"
    """

    rounds: Positive
    batch_size: Positive
    optimizer: OptimizerSettings
    loss: Annotated[str, AfterValidator(_loss)] = "cross_entropy"
    local_epochs: Positive | None = None
    local_steps: Positive | None = None
    shuffle: bool = True
    drop_last: bool = False
    seed: Annotated[int, Field(ge=0)] = 0
    optimizer_state: Literal["reset", "keep"] = "reset"
    device: Annotated[str, AfterValidator(_device)] = "cpu"

    @property
    def epochs(self) -> int | None:
        """Passes over the local data in a round; None where a round is measured in steps."""
        return None if self.local_steps else self.local_epochs or 1


class StrategySettings(Section):
    """[strategy]: a message-based strategy of Flower by its class name, and its keyword arguments."""

    name: Text = "FedAvg"
    options: dict[str, Any] = Field(default_factory=dict)


class DataSettings(Section):
    """[data]: a built-in data set, or a function of the user's, and how it is spread over the clients.

    name, load         a built-in data set, or a reference to a function that gives one (exactly one of the two)
    args               keyword arguments of that function
    split              "iid", "dirichlet" (labels by Dirichlet(alpha)), "shards", "by_user", or "vertical" (by columns)
    alpha              concentration of the Dirichlet split: small is uneven
    shards_per_client  label-sorted pieces that each client gets
    shared             share of the samples that each holder of columns has, drawn for each on its own
    clients            number of clients
    seed               of the split, so that every process deals the same cards
    """

    name: Annotated[Text, among(NAMES)] | None = None
    load: Reference | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    split: Literal["iid", "dirichlet", "shards", "by_user", "vertical"] = "iid"
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    shards_per_client: Positive | None = None
    shared: Annotated[float, Field(gt=0, le=1)] | None = None
    clients: Positive = 1
    seed: Annotated[int, Field(ge=0)] = 0


class CodecSettings(Section):
    """[codec]: how tensors are encoded on the wire, by role; what is left out keeps every bit.

    activation, gradient  what crosses a cut, forwards and backwards
    update                weights on their way to and from the server
    transform             what is done to activations at the cut in training: a name, or a reference to a function that
                          makes a `splitfl.model.Transform`
    """

    activation: Annotated[Text, AfterValidator(partial(_codec, "activation"))] | None = None
    gradient: Annotated[Text, AfterValidator(partial(_codec, "gradient"))] | None = None
    update: Annotated[Text, AfterValidator(partial(_codec, "update"))] | None = None
    transform: Annotated[Text, AfterValidator(_transform)] | None = None


class PlanningSettings(Section):
    """[planning]: profiles of the clients' device and of their link, for the simulator and for "auto" settings.

    One name for all clients, or a list that is dealt out to them in turn.
    """

    device: Annotated[Names, among(DEVICES)] = "laptop"
    link: Annotated[Names, among(LINKS)] = "wifi-50"
