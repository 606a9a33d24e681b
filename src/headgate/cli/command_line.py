"""Commands out of functions: each parameter says by its annotation what it is on the command line.

    def create(
        name: Annotated[str, Argument(metavar="NAME", help="The topic.")],
        partitions: Annotated[int | None, Option(min=1, help="How many partitions.")] = None,
    ) -> None:
        \"\"\"Create a topic.\"\"\"

A flag is a `bool`, a choice a `StrEnum`, what may be given several times a `list`; what has a
default may be left out. click does the parsing.

Invariant: nothing is imported here but click. Every command waits for this module, `headgate
--help` for little else, and libraries that make the same of annotations bring one that checks
values, half a second of every command (docs/adr/0038-commands-wait-for-click-alone.md).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import click

Run = TypeVar("Run", bound=Callable[..., None])


class _Given:
    """What an annotation says of a parameter besides its type."""

    def __init__(
        self,
        *,
        help: str = "",  # noqa: A002  # what everybody calls it
        metavar: str | None = None,
        min: float | None = None,  # noqa: A002  # likewise
        max: float | None = None,  # noqa: A002  # likewise
        callback: Callable[[Any], Any] | None = None,
    ) -> None:
        self.help = help
        self.metavar = metavar
        self.min = min
        self.max = max
        self.callback = callback

    def parameter(self, name: str, kind: Any, default: Any) -> click.Parameter:
        raise NotImplementedError

    def _common(self, kind: Any, default: Any) -> dict[str, Any]:
        if isinstance(default, Enum):
            default = default.value  # as it is written, and shown
        return {
            "type": _type_of(kind, self),
            "help": self.help or None,
            "metavar": self.metavar,
            "callback": _called(self.callback) if self.callback else None,
            "required": default is inspect.Parameter.empty,
            **({} if default is inspect.Parameter.empty else {"default": default}),
        }


class Argument(_Given):
    """What is given by its place. `min` and `max` are for numbers; `callback` gets the value and
    returns what the function gets."""

    def parameter(self, name: str, kind: Any, default: Any) -> click.Argument:
        element = _element_of(kind)
        common = self._common(element or kind, default)
        return click.Argument([name], nargs=1 if element is None else -1, **common)


class Option(_Given):
    """What is given by its name, which is that of the parameter unless `names` say otherwise."""

    def __init__(
        self,
        *names: str,
        show_default: bool = True,
        hidden: bool = False,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self.names = names
        self.show_default = show_default
        self.hidden = hidden

    def parameter(self, name: str, kind: Any, default: Any) -> click.Option:
        element = _element_of(kind)
        return click.Option(
            [name, *(self.names or (f"--{name.replace('_', '-')}",))],
            is_flag=kind is bool or None,
            multiple=element is not None,
            show_default=self.show_default and default not in ("", None),
            hidden=self.hidden,
            **self._common(element or kind, default),
        )


class Group(click.Group):
    """Commands under a common name."""

    def __init__(self, *, help: str) -> None:  # noqa: A002  # what everybody calls it
        super().__init__(help=help, no_args_is_help=True)

    def command(self, name: str = "") -> Callable[[Run], Run]:  # type: ignore[override]
        """Add the decorated function, which stays what it is: the library's would replace it."""

        def add(run: Run) -> Run:
            self.add_command(command_of(run, name))
            return run

        return add


def command_of(run: Callable[..., None], name: str = "") -> click.Command:
    """`run` as a command, with its docstring as the help; its own name is the default."""
    hints = get_type_hints(run, include_extras=True)
    parameters = inspect.signature(run).parameters.values()
    lists = frozenset(one.name for one in parameters if _element_of(_plain(hints[one.name])))
    return click.Command(
        name or run.__name__.replace("_", "-"),
        callback=lambda **values: run(**_listed(values, lists)),
        params=[_parameter(one, hints[one.name]) for one in parameters],
        help=inspect.getdoc(run),
    )


def _listed(values: Mapping[str, Any], lists: frozenset[str]) -> dict[str, Any]:
    """What may be given several times, and wasn't once, is None."""
    return {
        name: (list(value or ()) or None) if name in lists else value
        for name, value in values.items()
    }


def _parameter(one: inspect.Parameter, hint: Any) -> click.Parameter:
    given = next(part for part in get_args(hint)[1:] if isinstance(part, _Given))
    return given.parameter(one.name, _plain(hint), one.default)


def _plain(hint: Any) -> Any:
    """The type without what is said about it, and without None."""
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(kind) in (UnionType, Union):
        (kind,) = (one for one in get_args(kind) if one is not NoneType)
    return kind


def _element_of(kind: Any) -> Any:
    """Of which type there may be several, or None."""
    return get_args(kind)[0] if get_origin(kind) is list else None


def _type_of(kind: Any, given: _Given) -> click.ParamType[Any]:
    if kind is bool:
        return click.BOOL
    if kind is str:
        return click.STRING
    if kind is Path:
        return click.Path(path_type=Path)
    if kind in (int, float):
        return _Number(kind, given.min, given.max)
    assert issubclass(kind, Enum), f"no option has the type {kind}"
    return _Choice(kind)


def _called(callback: Callable[[Any], Any]) -> Callable[[Any, Any, Any], Any]:
    return lambda _context, _parameter, value: callback(value)


class _Number(click.ParamType[float]):
    """An `int` or a `float` within its bounds."""

    def __init__(self, kind: type[int | float], least: float | None, most: float | None) -> None:
        self.name = "integer" if kind is int else "number"
        self._kind, self._least, self._most = kind, least, most

    def convert(self, value: Any, param: Any, ctx: Any) -> int | float:
        try:
            number = self._kind(value)
        except ValueError:
            self.fail(f"{value!r} must be a valid {self.name}", param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} must be a finite number", param, ctx)
        if self._least is not None and number < self._least:
            self.fail(f"must be at least {self._least}", param, ctx)
        if self._most is not None and number > self._most:
            self.fail(f"must be at most {self._most}", param, ctx)
        return number


class _Choice(click.Choice[str]):
    """A member of an enumeration, by its value."""

    def __init__(self, members: type[Enum]) -> None:
        super().__init__(_values(members))
        self._members = members

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return self._members(super().convert(value, param, ctx))


def _values(members: type[Enum]) -> Sequence[str]:
    return [str(member.value) for member in members]
