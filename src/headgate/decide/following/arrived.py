"""Items that have arrived and aren't taken yet, with the size of their documents.

Invariant: `size_bytes` is the sum over all that waits, whatever comes and goes at either end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from headgate.decide.conversation.wanted_later import Again

Entry = TypeVar("Entry")


class Arrived(deque[Entry], Generic[Entry]):
    """Entries are items, those that are wanted again, tuples that begin with an item, or errors."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        super().__init__()
        self.size_bytes = 0
        for entry in entries:
            self.append(entry)

    def append(self, entry: Entry) -> None:
        self.size_bytes += _bytes_of(entry)
        super().append(entry)

    def appendleft(self, entry: Entry) -> None:
        self.size_bytes += _bytes_of(entry)
        super().appendleft(entry)

    def extendleft(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.appendleft(entry)

    def popleft(self) -> Entry:
        entry = super().popleft()
        self.size_bytes -= _bytes_of(entry)
        return entry

    def clear(self) -> None:
        super().clear()
        self.size_bytes = 0


def _bytes_of(entry: object) -> int:
    item: Any = entry
    if type(entry) is tuple:
        item = entry[0]
    elif type(entry) is Again:
        item = entry.item
    raw = getattr(item, "raw", None)
    return 0 if raw is None else len(raw)
