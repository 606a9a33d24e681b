"""What a lane and its router leave to their successors, to go on while the coordinator is away.

Notes outlive the process that writes them, however it ends; they need not outlive the machine, nor
be seen from another one. Only the process that they are about writes them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from headgate.model.event import PartitionRef
from headgate.model.notes import Entry, Left, RouterMemory


class LaneNotes(Protocol):
    """The notes of one lane, and those that other lanes of its router have left."""

    def note(self, entry: Entry) -> None:
        """Write `entry` down, before the coordinator is told that this lane knows it; from any
        thread.

        Raises StorageFailed, once: then everything is torn up, and later entries go nowhere.
        """

    async def left(self, refs: Collection[PartitionRef]) -> Left:
        """What the last holders of `refs` have left, each where none of them lives.

        What can't be read was not left.
        """

    def give_sign(self) -> None:
        """This lane isn't frozen."""

    def tidy(self) -> None:
        """Remove what lanes that are gone have left and nobody could go on from any more."""

    def close(self, *, leave: bool) -> None:
        """The lane ends: `leave` its notes to others, or tear them up.

        They must be torn up by a lane that told the coordinator that it ends: from then on
        subscribers are told "subscribed" without it.
        """


class RouterNotes(Protocol):
    """What a router notes for its next start, and hears of its lanes while nobody else does."""

    def recall(self) -> RouterMemory:
        """What was noted last; nothing (window 0) where there is none."""

    async def remember(self, memory: RouterMemory) -> None:
        """Durable on return, after what was noted before; raises StorageFailed."""

    async def next_window(self, memory: RouterMemory) -> int:
        """Note what the window after `memory.window` is planned with, and return its number: the
        next one, or a higher one where another process of this router's name has given that out.

        Durable on return, after what was noted before; raises StorageFailed.
        """

    def tidy(self) -> None:
        """Remove what routers have left that nobody has heard of for long."""

    def waiting(self) -> list[str]:
        """A sentence for each lane that lives and waits."""


class NoNotes:
    """Implements LaneNotes where none can be kept: nobody can go on from them."""

    def note(self, entry: Entry) -> None:
        return

    async def left(self, refs: Collection[PartitionRef]) -> Left:
        return Left()

    def give_sign(self) -> None:
        return

    def tidy(self) -> None:
        return

    def close(self, *, leave: bool) -> None:
        return
