"""Items that a consumer's user wants again later, and the items that stand behind them.

Everything in here was handed to this consumer and isn't processed, though nobody works on it.
Invariant: while an item waits for its time, nothing of its key that stands behind it in the log is
handed out; they come out in the order of the log. What is about a whole collection is about every
key of it, a rename about those of both names: it waits for those of its partition that stand before
it, and holds those behind it. Other items without a key hold none.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

from headgate.decide.connectors.whole_collection import collections_of
from headgate.model.client_messages import Item, Resync, is_redelivery, seq_of
from headgate.model.event import WHOLE_COLLECTION

Place = tuple[int, int, int, bool]
"""Target, partition, seq, and whether it is a redelivery."""


@dataclass(frozen=True, slots=True)
class Again:
    """One that was in the consumer's hands already."""

    item: Item


@dataclass(frozen=True, slots=True)
class _Waiting:
    due_s: float
    item: Item


class Later:
    def __init__(self) -> None:
        self._lines: dict[object, list[_Waiting]] = {}
        """Per key, in the order of the log: only the first one can be due."""
        self._wholes: set[object] = set()
        """The lines of what is about a whole collection."""

    def put(self, item: Item, due_s: float) -> None:
        """The item comes again then, or later: not before the items ahead of it. Putting it twice
        changes only the time."""
        self.drop(lambda one: place_of(one) == place_of(item))
        line = self._lines.setdefault(_key(item), [])
        insort(line, _Waiting(due_s, item), key=lambda one: log_order(one.item))
        if _is_about_all(item):
            self._wholes.add(_key(item))

    def holds(self, item: Item) -> bool:
        """Whether it has to wait, behind one of its key, or because one of the two is about a whole
        collection; then it does."""
        line = self._lines.get(_key(item))
        is_free = line is None or log_order(line[0].item) > log_order(item)
        if is_free and not self._is_barred(item):
            return False
        self.put(item, -math.inf)
        return True

    def _is_barred(self, item: Item) -> bool:
        """Must an item of another key go before it? The first of a line goes before all others of
        the line, so where the first need not, none has to."""
        keys = self._lines.keys() if _is_about_all(item) else self._wholes
        return any(_goes_before(self._lines[key][0].item, item) for key in keys)

    def find(self, place: Place) -> Item | None:
        return next((item for item in self.items() if place_of(item) == place), None)

    def take_due(self, now_s: float, *, but_of: Container[int] = ()) -> list[Again]:
        """All whose time has come, leaving out those targets."""
        found: list[Again] = []
        while some := self._taken_now(now_s, but_of):  # each lets others go
            found += some
        return found

    def _taken_now(self, now_s: float, but_of: Container[int]) -> list[Again]:
        found: list[Again] = []
        for key, line in list(self._lines.items()):
            while line and line[0].due_s <= now_s and self._may_come(line[0].item, but_of):
                found.append(Again(line.pop(0).item))
            self._forget_if_empty(key)
        return found

    def _may_come(self, item: Item, but_of: Container[int]) -> bool:
        return item.target not in but_of and not self._is_barred(item)

    def next_s(self, *, but_of: Container[int] = ()) -> float:
        """When something is due, leaving out those targets."""
        first = [line[0] for line in self._lines.values()]
        return min(
            (one.due_s for one in first if self._may_come(one.item, but_of)), default=math.inf
        )

    def __bool__(self) -> bool:
        return bool(self._lines)

    def drop(self, is_gone: Callable[[Item], bool]) -> None:
        for key, line in list(self._lines.items()):
            line[:] = [one for one in line if not is_gone(one.item)]
            self._forget_if_empty(key)

    def _forget_if_empty(self, key: object) -> None:
        if not self._lines[key]:
            del self._lines[key]
            self._wholes.discard(key)

    def items(self) -> Iterator[Item]:
        """All that waits."""
        return (one.item for line in self._lines.values() for one in line)


def place_of(item: Item) -> Place:
    return item.target, item.partition, seq_of(item), is_redelivery(item)


def log_order(item: Item) -> tuple[int, int, bool]:
    """Of those of one key, which is in another partition under another version of its topic."""
    return item.version, seq_of(item), not is_redelivery(item)


def _key(item: Item) -> object:
    """The same for all items that must not overtake each other."""
    if isinstance(item, Resync) or item.key is None:
        return place_of(item)
    return item.target, item.collection, item.key


def _is_about_all(item: Item) -> bool:
    """Is it about every key of its collection?"""
    return not isinstance(item, Resync) and item.op in WHOLE_COLLECTION


def _goes_before(one: Item, other: Item) -> bool:
    """Whether one of the two is about the other's key, and `one` stands before it: in the same
    partition, or under an earlier version of the topic."""
    if isinstance(one, Resync) or isinstance(other, Resync):
        return False
    if one.target != other.target:
        return False
    theirs = collections_of(other.op, other.collection, other.raw)
    if not any(name in theirs for name in collections_of(one.op, one.collection, one.raw)):
        return False
    is_comparable = one.version != other.version or one.partition == other.partition
    return is_comparable and log_order(one) < log_order(other)
