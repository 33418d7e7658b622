"""What every section of a job file has in common, and the kinds of setting that several of them use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from splitfl.config.error import suggestion
from splitfl.config.reference import split_reference


class Section(BaseModel):
    """A section: frozen, of exact types, without settings that nobody asked for."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def assigned(self, name: str) -> bool:
        """Whether the file sets `name` itself, rather than leaving it to its default."""
        return name in self.model_fields_set


def _reference(text: str) -> str:
    split_reference(text)
    return text


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError('expected "host:port" with a port from 1 to 65535')
    return text


def _number_or_auto(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError('expected a whole number from 1, or "auto"')


def _text_or_list(value: object) -> object:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, (list, tuple)) and value and all(isinstance(part, str) and part for part in value):
        return tuple(value)
    raise ValueError("expected a text, or a list of texts")


def among(known: Iterable[str]) -> AfterValidator:
    """A name, or each of several, that is one of `known`."""
    names = tuple(known)

    def checked(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for name in (value,) if isinstance(value, str) else value:
            if name not in names:
                raise ValueError(suggestion(name, names))
        return value

    return AfterValidator(checked)


Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]
Reference = Annotated[str, AfterValidator(_reference)]
Address = Annotated[str, AfterValidator(_address)]
NumberOrAuto = Annotated[int | Literal["auto"], BeforeValidator(_number_or_auto)]
Names = Annotated[str | tuple[str, ...], BeforeValidator(_text_or_list)]
