"""The settings as a flat list of dotted keys, derived from the schema.

A key knows how its value is written, read and described, so that the sources, the error sentences,
`config show` and the documentation all say the same. Nothing here is written down twice: what a key
is called and may be is in the schema alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Literal, TypeGuard, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from headgate.config.address import ENV_PREFIX
from headgate.config.schema import Config
from headgate.config.sections.section import Section
from headgate.config.units import DurationUnit, NotAllowed, SizeUnit
from headgate.config.value_types import Secret, Several, Wording
from headgate.decide.links.concealing import HIDDEN, without_credentials, without_passwords

_KIND_WORDS = {int: "a whole number", float: "a number", str: "text", Path: "a path"}


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: `name` is its dotted key, `field` what the schema says about it."""

    name: str
    field: FieldInfo

    @property
    def env_name(self) -> str:
        return ENV_PREFIX + self.name.upper().replace(".", "__")

    @property
    def section(self) -> str:
        """The top-level section, "general" for the keys above all sections."""
        section, dot, _ = self.name.partition(".")
        return section if dot else "general"

    @property
    def default(self) -> object:
        return self.field.default

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.field.annotation) if _is_literal(self.field) else ()

    @property
    def _unit(self) -> DurationUnit | SizeUnit | None:
        units = (mark for mark in self.field.metadata if isinstance(mark, DurationUnit | SizeUnit))
        return next(units, None)

    @property
    def allowed(self) -> str:
        """What a value must be, as the end of a sentence that begins with "must be"."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.field.annotation is bool:
            return "true or false"
        for mark in self.field.metadata:
            if isinstance(mark, Wording):
                return mark.allowed
        words = self._unit.example if self._unit else _KIND_WORDS[self.field.annotation]  # type: ignore[index]  # the schema has no other types
        return words + self._bounds()

    def _bounds(self) -> str:
        # The tightest bound is the last one: an alias's own comes before the field's.
        marks = self.field.metadata
        above = [mark.gt for mark in marks if isinstance(mark, Gt)][-1:]
        least = [mark.ge for mark in marks if isinstance(mark, Ge)][-1:]
        most = [mark.le for mark in marks if isinstance(mark, Le)][-1:]
        if least and most:
            return f" from {self.text(least[0])} to {self.text(most[0])}"
        if least:
            return f", at least {self.text(least[0])}"
        return f", more than {self.text(above[0])}" if above else ""

    def text(self, value: object) -> str:
        """How a user would write `value`; `parse` takes it back."""
        match self._unit, value:
            case DurationUnit() as unit, int() | float():
                return unit.format(value)
            case SizeUnit() as unit, int():
                return unit.format(value)
            case _, bool():
                return str(value).lower()
        return str(value)

    @property
    def is_secret(self) -> bool:
        return bool(self._secrets)

    @property
    def _secrets(self) -> list[Secret]:
        return [mark for mark in self.field.metadata if isinstance(mark, Secret)]

    def shown(self, value: object) -> str:
        """`value` as anybody may see it: like `text`, without a password."""
        text = self.text(value)
        if any(mark.whole for mark in self._secrets):
            return HIDDEN if text else ""
        if any(mark.lone for mark in self._secrets):
            return without_credentials(text)
        return without_passwords(text) if self.is_secret else text

    def json_value(self, value: object) -> object:
        """`value` for JSON: numbers and booleans as they are, durations, sizes, paths as text."""
        shown = self._unit or self.is_secret or isinstance(value, Path)
        return self.shown(value) if shown else value

    def parse(self, raw: object) -> object:
        """`raw` in the unit the code works with; the schema checks type and bounds after that."""
        if isinstance(raw, list) and self._is_several(raw):
            return ",".join(raw)
        if raw is None or isinstance(raw, list | dict | set):
            raise NotAllowed(self.allowed)
        if isinstance(raw, bool) and self.field.annotation is not bool:
            # Otherwise the schema would take true for 1.
            raise NotAllowed(self.allowed)
        if self._unit:
            try:
                return self._unit.parse(raw)
            except NotAllowed as refusal:
                raise NotAllowed(refusal.allowed + self._bounds()) from refusal
        if self.field.annotation is Path:
            if not isinstance(raw, str | Path) or not str(raw).strip():
                raise NotAllowed(self.allowed)
            return Path(raw).expanduser()
        if self.field.annotation is str and not isinstance(raw, str):
            raise NotAllowed(f"{self.allowed}, in quotes")
        return raw

    def _is_several(self, raw: list[object]) -> TypeGuard[list[str]]:
        listed = any(isinstance(mark, Several) for mark in self.field.metadata)
        return listed and all(isinstance(one, str) for one in raw)

    def of(self, config: Config) -> object:
        """This key's value in `config`."""
        value: object = reduce(getattr, self.name.split("."), config)
        return value


def _is_literal(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is Literal


def _walk(section: type[Section], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}", field
        if (inner := _section_of(field)) is not None:
            yield from _walk(inner, f"{prefix}{name}.")


def _section_of(field: FieldInfo) -> type[Section] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


_ALL = tuple(_walk(Config, ""))
KEYS: Mapping[str, Key] = {
    name: Key(name, field) for name, field in _ALL if _section_of(field) is None
}
SECTIONS: frozenset[str] = frozenset(name for name, field in _ALL if _section_of(field))


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The word a user probably meant."""
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return close[0] if close else None


def nearest_key(name: str) -> str | None:
    """The key or section a user probably meant: its last part may be all they wrote."""
    last = name.rsplit(".", 1)[-1]
    same_end = [key for key in KEYS if key.rsplit(".", 1)[-1] == last]
    if len(same_end) == 1:
        return same_end[0]
    return nearest(name, [*KEYS, *SECTIONS])
