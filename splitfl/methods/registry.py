"""Methods by name: the built-in ones, and those that installed packages offer as entry points.

A package adds a method with two lines of its pyproject.toml and one function that returns a `Method`:

    [project.entry-points."splitfl.methods"]
    my-method = "my_package.my_module:my_method"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

from splitfl.methods.method import Method

GROUP = "splitfl.methods"
"""The group of entry points that is looked at."""

Make = Callable[..., Method]


class Registry(Mapping[str, Make]):
    """Name -> the function that makes a method; a package is imported when its method is first asked for.

    A built-in name cannot be taken by a package. Raises ValueError, when asked for it, for an entry point that cannot
    be imported or is no function.
    """

    def __init__(self, built_in: Mapping[str, Make]) -> None:
        self._built_in = dict(built_in)

    @cached_property
    def _offered(self) -> dict[str, EntryPoint]:
        found = {each.name: each for each in entry_points(group=GROUP)}
        return {name: each for name, each in sorted(found.items()) if name not in self._built_in}

    def __getitem__(self, name: str) -> Make:
        if name not in self._offered:
            return self._built_in[name]
        try:
            made = self._offered[name].load()
        except (ImportError, AttributeError) as error:
            raise ValueError(f"method {name!r}: {self._offered[name].value} cannot be imported: {error}") from error
        if not callable(made):
            raise ValueError(f"method {name!r}: {self._offered[name].value} is no function that makes a Method")
        return made  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._built_in, *self._offered])

    def __len__(self) -> int:
        return len(self._built_in) + len(self._offered)
