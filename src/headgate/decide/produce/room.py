"""How much of the requests of others is held at a time, in bytes.

Invariants: what is held never exceeds `limit_bytes`, but for one request that is alone, or a large
one could never pass. Bodies of which more has to come have half of that at most, so that slow
senders leave the other half to those whose requests come whole. Nobody waits for room: a sender
that gets none is told so, and comes back with the whole request.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from headgate.errors import Overloaded


class Room:
    """`setting` is the name of the setting that gives its size."""

    def __init__(self, limit_bytes: int, *, setting: str) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self._arriving_bytes = 0
        self._setting = setting

    def take(self, size_bytes: int) -> None:
        """Raises Overloaded, and takes nothing, where that is too much now."""
        if self.taken_bytes and self.taken_bytes + size_bytes > self.limit_bytes:
            raise self._overloaded()
        self.taken_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.taken_bytes -= size_bytes

    def arriving(self) -> Arriving:
        """For one body, from its first byte on."""
        return Arriving(self)

    def grow(self, before_bytes: int, size_bytes: int, *, whole: bool) -> None:
        """A body of which more had to come has `size_bytes` now."""
        others_bytes = self.taken_bytes - before_bytes
        others_arriving_bytes = self._arriving_bytes - before_bytes
        if others_bytes and others_bytes + size_bytes > self.limit_bytes:
            raise self._overloaded()
        slow_bytes = others_arriving_bytes + size_bytes
        if not whole and others_arriving_bytes and slow_bytes > self.limit_bytes // 2:
            raise self._overloaded()
        self.taken_bytes = others_bytes + size_bytes
        self._arriving_bytes = others_arriving_bytes if whole else slow_bytes

    def drop(self, size_bytes: int, *, whole: bool) -> None:
        self.taken_bytes -= size_bytes
        if not whole:
            self._arriving_bytes -= size_bytes

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            f"the requests that wait here have {self.taken_bytes} bytes already, and "
            f"{self._setting} is {self.limit_bytes}; nothing was done, try again later",
            waiting_bytes=self.taken_bytes,
            limit_bytes=self.limit_bytes,
        )


class Arriving:
    """A body's part of a room, while the block lasts. `arrived` is told how much there is of it."""

    __slots__ = ("_room", "_whole", "size_bytes")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._whole = False
        self.size_bytes = 0

    def arrived(self, size_bytes: int, whole: bool) -> None:  # a callback of two
        """Raises Overloaded where there is no room for that much."""
        self._room.grow(self.size_bytes, size_bytes, whole=whole)
        self.size_bytes, self._whole = size_bytes, whole

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._room.drop(self.size_bytes, whole=self._whole)
        self.size_bytes = 0
