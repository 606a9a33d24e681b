"""What lanes leave to those who must go on while no coordinator is there: on the disk of their
router's machine, which outlives all of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterator
from typing import cast

from headgate.decide.lane.notes import (
    Known,
    NotedOwner,
    is_of_use,
    last_holders,
    silent_pid,
    together,
)
from headgate.model.event import Fence, PartitionRef
from headgate.model.notes import Entry, Left
from tests.sim.scheduler import Process, Scheduler


class Notebook:
    """That of one router's lanes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.pages: dict[str, Page] = {}
        self._numbers = itertools.count()

    def page(self) -> Page:
        """For the lane of whose process this is called."""
        process = cast("Process", asyncio.get_running_loop())
        return Page(f"{process.name} {next(self._numbers)}", process, self)


class Page:
    """Implements ports.notes.LaneNotes."""

    def __init__(self, name: str, process: Process, book: Notebook) -> None:
        self._name = name
        self._process = process
        self._book = book
        self._known = Known()
        self._signed_s = book.scheduler.now_s
        self._is_over = False

    def note(self, entry: Entry) -> None:
        if not self._is_over:
            self._known.read(entry)
            self._book.pages[self._name] = self

    async def left(self, refs: Collection[PartitionRef]) -> Left:
        await asyncio.sleep(0)
        pages = {name: page for name, page in self._book.pages.items() if page is not self}
        holders = [page._holder for page in pages.values()]
        last = {ref: last_holders(holders, ref) for ref in refs}
        held = {ref: silent_pid(them) for ref, them in last.items() if any(h.lives for h in them)}
        left = {ref: them for ref, them in last.items() if them and ref not in held}
        fences = {ref: frozenset(_fences(them, ref)) for ref, them in left.items()}
        gone = {holder.name for them in left.values() for holder in them}
        return together(fences, [pages[name]._known for name in sorted(gone)], held)

    def give_sign(self) -> None:
        self._signed_s = self._book.scheduler.now_s

    def tidy(self) -> None:
        holders = [page._holder for page in self._book.pages.values()]
        for holder in [one for one in holders if not one.lives]:
            if not is_of_use(holder, [one for one in holders if one is not holder]):
                del self._book.pages[holder.name]

    def close(self, *, leave: bool) -> None:
        self._is_over = True
        if not leave:
            self._book.pages.pop(self._name, None)

    @property
    def _holder(self) -> NotedOwner:
        lives = not self._is_over and self._process.state != "killed"
        known, sign_s = self._known, self._book.scheduler.now_s - self._signed_s
        return NotedOwner(
            self._name, self._process.number, lives, sign_s, known.holds, known.claims
        )


def _fences(holders: Collection[NotedOwner], ref: PartitionRef) -> Iterator[Fence]:
    return (fence for one in holders if (fence := one.fence(ref)) is not None)
