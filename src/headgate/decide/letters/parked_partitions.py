"""The partitions that have parked letters for a gateway, and whose turn it is to send some.

Partitions take turns, so none waits for a busier one; one whose letters are wanted later rests
alone, or goes on behind them where the gateway says that it may (paging.py). A partition that halts
stands still at a letter which is refused or damaged: its letters are read and sent one at a time,
so that nothing passes that one, and no other partition is read with it. Invariant: a partition is
behind from its first parked letter until a look for its letters has found none, with nothing parked
in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile

from headgate.decide.delivery.breaker import NEVER
from headgate.decide.delivery.steps import Redrive
from headgate.decide.letters.paging import Paging
from headgate.model.event import PartitionRef


@dataclass(frozen=True, slots=True)
class Page:
    """What came of the letters of one partition that were sent up to `last_seq`: something went
    `through`, or the `whole` page did. `wanted_seq`: see `GoOn`."""

    last_seq: int
    wanted_seq: int
    through: bool
    whole: bool


class Behind:
    """`refs` are those that have parked letters; `halted` says of some of them why they stand
    still."""

    def __init__(self, refs: Iterable[PartitionRef]) -> None:
        self.refs: set[PartitionRef] = set(refs)
        self.halted: dict[PartitionRef, str] = {}
        self._resting: dict[PartitionRef, float] = {}
        """The partitions whose letters are not to be sent before then."""
        self._following: set[PartitionRef] = set()
        """Those that rest because of letters of other partitions, which are on their way."""
        self._turn: PartitionRef | None = None
        """Whose letters were sent last."""
        self._turn_before: PartitionRef | None = None
        self._parked_meanwhile: set[PartitionRef] = set()
        """Those of which something was parked since letters were last looked for."""
        self._paging: dict[PartitionRef, Paging] = {}
        """Those that went on behind letters which are not settled."""
        self._looked_at: tuple[PartitionRef, ...] = ()

    def park(self, ref: PartitionRef) -> None:
        self.refs.add(ref)
        self._parked_meanwhile.add(ref)
        paging = self._paging.get(ref)
        if paging is not None and not paging.ahead:
            paging.ahead = True
            self._resting.pop(ref, None)

    def halt(self, ref: PartitionRef, why: str) -> None:
        self.halted.setdefault(ref, why)
        self._paging.pop(ref, None)

    def go_on(self, ref: PartitionRef) -> None:
        """The letter that the partition halted at is through."""
        self.halted.pop(ref, None)

    def rest(self, ref: PartitionRef, until_s: float) -> None:
        self._resting[ref] = until_s
        self._following.discard(ref)

    def hold(self, ref: PartitionRef, until_s: float, *, moving: bool = False) -> None:
        """Its letters have to wait for those of other partitions. Where it went on behind some,
        those may wait for these: all look at what came first, or they would wait in a circle."""
        self.rest(ref, until_s)
        if moving:
            self._following.add(ref)
        if (paging := self._paging.get(ref)) is not None:
            paging.held()

    def page(self, ref: PartitionRef, page: Page | None, *, now_s: float, longest_s: float) -> None:
        """Letters of `ref` were answered, and it may go on behind them with `page`; it pauses where
        that is of no use. None: it may not, the next letter is the oldest."""
        if page is None or ref not in self.refs or ref in self.halted:
            self._paging.pop(ref, None)
            if page is not None and not page.whole:
                self.rest(ref, now_s + longest_s)  # the same letter is next
            return
        paging = self._paging.get(ref)
        if paging is None:
            if page.whole:
                return
            paging = self._paging[ref] = Paging(page.last_seq)
        paging.answered(page.last_seq, page.wanted_seq, through=page.through, whole=page.whole)
        self._pause(ref, paging, now_s, longest_s)

    def page_empty(self, ref: PartitionRef, *, now_s: float, longest_s: float) -> None:
        """There were no letters where it was looked for some."""
        if (paging := self._paging.get(ref)) is not None:
            paging.empty(ahead=ref in self._parked_meanwhile)
            self._pause(ref, paging, now_s, longest_s)

    def _pause(self, ref: PartitionRef, paging: Paging, now_s: float, longest_s: float) -> None:
        if pause_s := paging.pause_s(longest_s):
            self._resting[ref] = now_s + pause_s

    def wake(self) -> None:
        """The gateway is another one: none has to rest, and all begin with the oldest."""
        self._resting.clear()
        self._paging.clear()

    def drained(self, refs: Iterable[PartitionRef]) -> None:
        """They had no letters at the last look."""
        for ref in set(refs) - self._parked_meanwhile:
            self.forget(ref)

    def forget(self, ref: PartitionRef) -> None:
        self.refs.discard(ref)
        self.halted.pop(ref, None)
        self._resting.pop(ref, None)
        self._following.discard(ref)
        self._paging.pop(ref, None)

    def due_s(self, may_s: float, waiting: Mapping[PartitionRef, int]) -> float:
        """When some letters may be sent, at `may_s` or later; not those of partitions of which
        something older is still `waiting`."""
        resting = self._resting
        free = (ref for ref in self.refs if not waiting.get(ref))
        return min((max(may_s, resting.get(ref, may_s)) for ref in free), default=NEVER)

    def is_moving(self, ref: PartitionRef, now_s: float) -> bool:
        """Are the partition's letters, or those that they wait for, sent as fast as they can be,
        with none refused or wanted later?"""
        if ref not in self.refs or ref in self.halted or ref in self._paging:
            return False
        return ref in self._following or self._resting.get(ref, now_s) <= now_s

    def next(self, now_s: float, waiting: Mapping[PartitionRef, int], *, limit: int) -> Redrive:
        """Up to `limit` letters, some of every partition in turn; one that halts goes alone, when
        it is reached. Only when some are due."""
        in_turn = self._in_turn(now_s, waiting)
        if in_turn[0] in self.halted:
            chosen, each = in_turn[:1], 1
        else:
            chosen = list(takewhile(lambda ref: ref not in self.halted, in_turn))[:limit]
            each = max(1, limit // len(chosen))
        self._turn_before, self._turn = self._turn, chosen[-1]
        self._parked_meanwhile.clear()
        self._looked_at = tuple(chosen)
        after_seqs = {ref: self._paging[ref].after_seq() for ref in chosen if ref in self._paging}
        return Redrive(self._looked_at, each, after_seqs)

    def again(self) -> None:
        """Nothing came of the last turn: the same partitions have the next one."""
        self._turn = self._turn_before
        for ref in self._looked_at:
            if ref in self._paging:
                self._paging[ref].again()

    def _in_turn(self, now_s: float, waiting: Mapping[PartitionRef, int]) -> list[PartitionRef]:
        ready = sorted(
            ref
            for ref in self.refs
            if not waiting.get(ref) and self._resting.get(ref, now_s) <= now_s
        )
        turn = self._turn
        begin = 0
        if turn is not None:
            begin = next((at for at, ref in enumerate(ready) if ref > turn), 0)
        return [*ready[begin:], *ready[:begin]]
