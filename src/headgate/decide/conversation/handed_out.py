"""What a consumer itself has been handed and has processed, whatever became of its targets.

What a gateway hasn't heard to be processed is given out again, after a lost connection or to the
next owner. Invariants: what was processed here, before or after the target was lost, isn't handed
out here again, unless another consumer may have had the target meanwhile: that one may have begun
again with older events, and what was processed here stands before those, so all that is behind them
comes again, too. What is remembered is bounded: what is forgotten comes again. What the user works
on is known as such until it is acknowledged or given back, also when its target was lost and is
owned again: then it may be there twice, under two epochs, and each is worked on by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

MOST_REMEMBERED = 10_000
"""Items of targets that were lost, which may still be acknowledged or come again."""

Place = tuple[int, int, int]
"""Target, partition and seq."""
Copy = tuple[int, int, int, bool, int]
"""One that the user works on: target, partition, seq, whether it is a redelivery, which is no
position, and the epoch. A plain tuple, because there is one for each item that comes."""


class Hands:
    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        """Per target the one under which it was ours last."""
        self._done: dict[tuple[int, int], int] = {}
        """Per target and partition the seq up to which all is processed."""
        self._held: set[Place] = set()
        """Handed out before the target was lost, not acknowledged."""
        self._processed: set[Place] = set()
        """Acknowledged, which no gateway has heard; they come again."""
        self._begun_anew: dict[tuple[int, int], int] = {}
        """Per target and partition that went back, the epoch it goes on under."""
        self._at_work: dict[Copy, int] = {}
        """What the user has, and which delivery of it that is; 0 of what can't fail."""
        self._times: Counter[Copy] = Counter()
        """How many of them the user has besides: one record may be redelivered twice at a time."""

    # --- what the user works on ------------------------------------------------------------------

    def take(self, copy: Copy, deliveries: int) -> None:
        """The user has it now."""
        if len(self._at_work) >= MOST_REMEMBERED:
            self._at_work.clear()
            self._times.clear()
        if copy in self._at_work:
            self._times[copy] += 1
        self._at_work[copy] = deliveries

    def give_back(self, copy: Copy) -> bool:
        """The user is done with the item, or wants it later; returns whether the user had it."""
        if self._times and self._times[copy]:
            self._times -= Counter((copy,))
            return True
        return self._at_work.pop(copy, None) is not None

    def works_on(self, target: int) -> bool:
        return any(copy[0] == target for copy in self._at_work)

    @property
    def at_work(self) -> Mapping[Copy, int]:
        """What the user has, with which delivery of it that is."""
        return self._at_work

    # --- what is processed -----------------------------------------------------------------------

    def reached(self, target: int, partition: int, seq: int) -> None:
        """All up to there is processed."""
        where = target, partition
        self._done[where] = max(seq, self._done.get(where, 0))

    def let_go(self, unsettled: Iterable[tuple[Place, bool]]) -> None:
        """These come again, here or elsewhere; each is in hand, or was acknowledged already."""
        for place, in_hand in unsettled:
            (self._held if in_hand else self._processed).add(place)
        if len(self._held) + len(self._processed) > MOST_REMEMBERED:
            self._held.clear()
            self._processed.clear()

    def acknowledge(self, place: Place) -> bool:
        """Whether it is from before its target was lost, or settled."""
        if place in self._held:
            self._held.discard(place)
            self._processed.add(place)
            return True
        target, partition, seq = place
        return place in self._processed or seq <= self._done.get((target, partition), 0)

    def is_new(self, place: Place, *, stands_for_others: bool = False) -> bool:
        """Whether the item at `place` is to be handed out; False: it is processed already. An item
        that `stands_for_others` says that no item up to there comes: it is handed out even if the
        one at its own place was processed ahead of the others."""
        target, partition, seq = place
        self._held.discard(place)
        if place in self._processed:
            self._processed.discard(place)
            if not stands_for_others:
                return False
        return seq > self._done.get((target, partition), 0)

    def goes_back(self, target: int, partition: int, seq: int, *, epoch: int) -> None:
        """The log has lost its history, or an operator wants records again: it goes on after `seq`.
        That is to be handed out, and what follows, under `epoch` and later ones, is new, whatever
        was here under the same seqs."""
        where = target, partition
        self._begun_anew[where] = epoch
        self._done[where] = min(seq - 1, self._done.get(where, 0))
        for places in (self._held, self._processed):
            places.difference_update([place for place in places if place[:2] == where])

    def is_lost(self, target: int, partition: int, *, epoch: int) -> bool:
        """Whether what came under that epoch was lost with the history of its log, so that its seq
        means another record now, or comes again."""
        return epoch < self._begun_anew.get((target, partition), 0)

    def assigned(self, target: int, positions: Mapping[int, int], *, epoch: int) -> None:
        """What stands up to `positions` doesn't come again. An epoch between this one and the one
        under which it was ours last may have been another consumer's."""
        if epoch > self._epochs.get(target, epoch) + 1:
            self._forget(target)
        self._epochs[target] = epoch
        for places in (self._held, self._processed):
            stale = [
                place
                for place in places
                if place[0] == target and place[2] <= positions.get(place[1], 0)
            ]
            places.difference_update(stale)

    def _forget(self, target: int) -> None:
        """Forget the items of `target` that were processed, and those that may still be."""
        self._done = {where: seq for where, seq in self._done.items() if where[0] != target}
        for places in (self._held, self._processed):
            places.difference_update([place for place in places if place[0] == target])
