"""Remembers how filters are written, so that the next one of the same make needn't be parsed.

Subscriptions come by the hundred thousand from a few places in a client's program, and differ in
the plain numbers and strings between otherwise equal words. Those are cut out with one regular
expression; what is left is looked up. A parse takes 20 to 50 µs, this 2 to 4.

Invariants. The result is the same as parsing the text: a text is only recognised when another one
with the same words around literals of the same kinds was parsed before, and literals that aren't
slots of the shape (in patterns, indexes, arithmetic) are words here. What is remembered is bounded,
and no answer depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from headgate.decide.filter.check import check
from headgate.decide.filter.fast import Constants
from headgate.decide.filter.parser import parse
from headgate.decide.filter.shape import Source, constants_of, generalise
from headgate.decide.filter.syntax import MAX_TEXT_CHARS, Expression, ListOf, Literal
from headgate.decide.filter.values import instant_of, key_of

T = TypeVar("T")

MAX_TEMPLATES = 4_096

# Strings without escapes and numbers without frills; whatever else looks like a literal stays a
# word. The number of digits keeps integers within 64 bits and doubles finite.
_PLAIN_LITERAL = re.compile(
    r"""("[^"\\\n\r]*"|'[^'\\\n\r]*'|(?<![\w.])(?:[0-9]{1,15}\.[0-9]{1,15}|[0-9]{1,18})(?![\w.]))"""
)
_MISLEADING = re.compile(r"""["'`\\]|//""")

Pieces = list[str]
"""A text cut at its plain literals: words at even places, literals at odd ones."""
_Read = Callable[[Pieces], object]


class _Unrecognised(Exception):
    """The text has to be parsed after all."""


@dataclass(frozen=True, slots=True)
class _Template(Generic[T]):
    made: T
    reads: tuple[_Read, ...]


@dataclass(frozen=True, slots=True)
class _Wording(Generic[T]):
    """All texts with the same words; `fixed` are the places of literals that are no slots."""

    fixed: tuple[int, ...]
    templates: dict[tuple[str, ...], _Template[T]] = field(default_factory=dict)


class Templates(Generic[T]):
    """`make` turns a shape into whatever its user needs; it is called once per template."""

    def __init__(self, make: Callable[[Expression], T]) -> None:
        self._make = make
        self._wordings: dict[tuple[object, ...], _Wording[T] | None] = {}
        self._size = 0

    def compiled(self, text: str) -> tuple[T, Constants]:
        """What was made of the shape of `text`, and its constants. Raises InvalidFilter."""
        if len(text) > MAX_TEXT_CHARS:
            return self._parsed(text)[:2]
        pieces = _PLAIN_LITERAL.split(text)
        literals = pieces[1::2]
        wording_key = (*pieces[::2], *map(_kind, literals))
        wording = self._wordings.get(wording_key)
        if wording is not None:
            template = wording.templates.get(tuple([pieces[place] for place in wording.fixed]))
            if template is not None:
                try:
                    return template.made, tuple([read(pieces) for read in template.reads])
                except _Unrecognised:
                    return self._parsed(text)[:2]
        made, constants, sources = self._parsed(text)
        if wording is not None or wording_key not in self._wordings:
            self._remember(wording_key, text, pieces, made, sources)
        return made, constants

    def _parsed(self, text: str) -> tuple[T, Constants, tuple[Source, ...]]:
        expression = parse(text)
        check(expression)
        shape, sources = generalise(expression)
        return self._make(shape), constants_of(sources), sources

    def _remember(
        self,
        wording_key: tuple[object, ...],
        text: str,
        pieces: Pieces,
        made: T,
        sources: tuple[Source, ...],
    ) -> None:
        if self._size >= MAX_TEMPLATES:
            self._wordings.clear()
            self._size = 0
        self._size += 1
        if not _is_plain(pieces):
            self._wordings[wording_key] = None
            return
        places = _Places(text, pieces)
        reads = tuple(places.read(source) for source in sources)
        fixed = tuple(place for place in range(1, len(pieces), 2) if place not in places.used)
        wording = self._wordings.get(wording_key)
        if wording is None:
            wording = self._wordings[wording_key] = _Wording(fixed)
        assert wording.fixed == fixed  # the same words and kinds parse to the same tree
        wording.templates[tuple([pieces[place] for place in fixed])] = _Template(made, reads)


def _kind(literal: str) -> str:
    first = literal[0]
    if first in "\"'":
        return "string"
    return "double" if "." in literal else "int"


def _is_plain(pieces: Pieces) -> bool:
    """Did the cuts fall where the lexer's would? Not beside comments, escapes, …"""
    for place in range(0, len(pieces), 2):
        words = pieces[place]
        if _MISLEADING.search(words):
            return False
        if place not in (0, len(pieces) - 1) and not words.strip():
            return False
    return True


class _Places:
    """Finds the piece that a literal of the tree was read from."""

    def __init__(self, text: str, pieces: Pieces) -> None:
        self._text = text
        self._pieces = pieces
        self.used: set[int] = set()
        self._starts: dict[int, int] = {}
        at = 0
        for place, piece in enumerate(pieces):
            if place % 2:
                self._starts[at] = place
            at += len(piece)

    def read(self, source: Source) -> _Read:
        if isinstance(source.node, ListOf):
            items = [self._item(cast("Literal", item)) for item in source.node.items]
            return lambda pieces: frozenset([item(pieces) for item in items])
        if source.instant:
            text = self._literal(source.node)

            def instant(pieces: Pieces) -> object:
                found = instant_of(text(pieces))
                if found is None:
                    raise _Unrecognised
                return found

            return instant
        return self._literal(source.node)

    def _item(self, node: Literal) -> _Read:
        if node.value is None or isinstance(node.value, bool):
            key = key_of(node.value)
            return lambda _pieces: key
        return self._literal(node)

    def _literal(self, node: Literal) -> _Read:
        at = node.position
        negative = self._text[at] == "-"
        while negative and at < len(self._text) and at not in self._starts:
            at += 1
        place = self._starts.get(at)
        if place is None or (negative and self._text[node.position + 1 : at].strip()):
            constant = node.value  # written in a way that isn't plain, so it is one of the words
            return lambda _pieces: constant
        self.used.add(place)
        if node.kind == "string":
            return lambda pieces: pieces[place][1:-1]
        sign, convert = (-1 if negative else 1), (float if node.kind == "double" else int)
        return lambda pieces: sign * convert(pieces[place])
