"""What a consumer's user wants again later, and what stands behind it.

Everything in here was handed to this consumer and isn't processed, though nobody works on it.
Invariant: while an item waits for its time, nothing of its key that stands behind it in the log is
handed out; they come out in the order of the log. Items without a key hold nobody.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

from headgate.model.client_messages import Item, Resync, is_redelivery, seq_of

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

    def put(self, item: Item, due_s: float) -> None:
        """It comes again then, or later: not before what stands ahead of it. Putting it twice
        changes only the time."""
        self.drop(lambda one: place_of(one) == place_of(item))
        line = self._lines.setdefault(_key(item), [])
        insort(line, _Waiting(due_s, item), key=lambda one: log_order(one.item))

    def holds(self, item: Item) -> bool:
        """Whether it has to wait, behind one of its key; then it does."""
        line = self._lines.get(_key(item))
        if line is None or log_order(line[0].item) > log_order(item):
            return False
        self.put(item, -math.inf)
        return True

    def find(self, place: Place) -> Item | None:
        return next((item for item in self.items() if place_of(item) == place), None)

    def take_due(self, now_s: float, *, but_of: Container[int] = ()) -> list[Again]:
        """All whose time has come, leaving out those targets."""
        found: list[Again] = []
        for key, line in list(self._lines.items()):
            while line and line[0].due_s <= now_s and line[0].item.target not in but_of:
                found.append(Again(line.pop(0).item))
            if not line:
                del self._lines[key]
        return found

    def next_s(self, *, but_of: Container[int] = ()) -> float:
        """When something is due, leaving out those targets."""
        first = [line[0] for line in self._lines.values()]
        return min((one.due_s for one in first if one.item.target not in but_of), default=math.inf)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def drop(self, is_gone: Callable[[Item], bool]) -> None:
        for key, line in list(self._lines.items()):
            line[:] = [one for one in line if not is_gone(one.item)]
            if not line:
                del self._lines[key]

    def items(self) -> Iterator[Item]:
        """All that waits."""
        return (one.item for line in self._lines.values() for one in line)


def place_of(item: Item) -> Place:
    return item.target, item.partition, seq_of(item), is_redelivery(item)


def log_order(item: Item) -> tuple[int, int, bool]:
    """Of those of one key, which is in another partition under another version of its topic."""
    return item.version, seq_of(item), not is_redelivery(item)


def _key(item: Item) -> object:
    """What it shares with those that it must not be overtaken by."""
    if isinstance(item, Resync) or item.key is None:
        return place_of(item)
    return item.target, item.collection, item.key
