"""What a consumer has been handed of one target, what of that it has processed, and how far that
brings the target's positions.

Invariant: a position is the highest seq with everything up to it acknowledged, or known not to
concern the target; positions only grow. Never more is acknowledged than was handed out. What is
kept back from the consumer is in hand, and no acknowledgement means it. What an operator has
delivered again is in hand like everything else, but moves no position: it is acknowledged by
itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Mapping

from headgate.decide.log.lineage import Lineage
from headgate.errors import InvalidRequest


class InHand:
    """`starts` are the seqs after which each partition begins, `saved` what the store has."""

    def __init__(self, starts: Mapping[int, int], saved: Mapping[int, int]) -> None:
        self._open: dict[int, deque[int]] = {partition: deque() for partition in starts}
        self._last = dict(starts)
        self._done = dict(starts)
        self._saved = dict(saved)
        self._kept_back: set[Hashable] = set()
        """Places of records, and marks of redeliveries."""
        self._count = 0
        self._again: dict[Hashable, tuple[int, int]] = {}
        """Where each redelivery stands that is in hand, by its mark."""
        self._sizes: dict[Hashable, int] = {}
        """Of the documents in hand, by place or mark."""
        self.size_bytes = 0

    def __len__(self) -> int:
        """Items that were handed out and not acknowledged."""
        return self._count + len(self._again)

    def __contains__(self, mark: object) -> bool:
        """Is the redelivery with this mark in hand?"""
        return mark in self._again

    def hand_out(self, partition: int, seq: int, size_bytes: int = 0) -> None:
        """Nothing changes for one that was handed out before."""
        if seq <= self._last.get(partition, 0):
            return
        self._last[partition] = seq
        self._done.setdefault(partition, 0)
        self._open.setdefault(partition, deque()).append(seq)
        self._count += 1
        self._weigh((partition, seq), size_bytes)

    def hand_out_again(self, partition: int, seq: int, mark: Hashable, size_bytes: int = 0) -> None:
        self._again[mark] = partition, seq
        self._weigh(mark, size_bytes)

    def _weigh(self, thing: Hashable, size_bytes: int) -> None:
        self._unweigh(thing)
        if size_bytes:
            self._sizes[thing] = size_bytes
            self.size_bytes += size_bytes

    def _unweigh(self, thing: Hashable) -> None:
        self.size_bytes -= self._sizes.pop(thing, 0)

    def acknowledge_again(self, seqs: Mapping[int, Collection[int]]) -> list[Hashable]:
        """The redeliveries of these records are processed; what isn't in hand may have been
        acknowledged before. Returns the marks of those that were in hand."""
        marks = [
            mark
            for mark, (partition, seq) in self._again.items()
            if seq in seqs.get(partition, ()) and mark not in self._kept_back
        ]
        for mark in marks:
            del self._again[mark]
            self._unweigh(mark)
        return marks

    def settle(self, partition: int, seq: int) -> None:
        """That one alone needs no acknowledgement any more."""
        self.hand_over((partition, seq))
        if self.holds(partition, seq):
            waiting = self._open[partition]
            waiting.remove(seq)
            self._count -= 1
            self._unweigh((partition, seq))
            if not waiting or waiting[0] > seq:
                self._done[partition] = max(seq, self._done[partition])

    def keep_back(self, thing: Hashable) -> None:
        """A record, by its place, or a redelivery, by its mark: it was handed out, and the consumer
        doesn't get it, not yet or never."""
        self._kept_back.add(thing)

    def is_kept_back(self, thing: Hashable) -> bool:
        return thing in self._kept_back

    def hand_over(self, thing: Hashable) -> None:
        """The consumer gets it after all."""
        self._kept_back.discard(thing)

    def settle_again(self, mark: Hashable) -> None:
        self.hand_over(mark)
        self._again.pop(mark, None)
        self._unweigh(mark)

    def holds(self, partition: int, seq: int) -> bool:
        """Is this record in hand, by itself and not as a redelivery?"""
        return seq in self._open.get(partition, ())

    def places(self) -> list[tuple[int, int]]:
        """Partition and seq of everything in hand, redeliveries aside."""
        return [(partition, seq) for partition, seqs in self._open.items() for seq in seqs]

    def marks(self, partition: int, seq: int) -> list[Hashable]:
        """Of the redeliveries of that record which are in hand."""
        return [mark for mark, place in self._again.items() if place == (partition, seq)]

    def again(self) -> list[Hashable]:
        """The marks of all redeliveries in hand."""
        return list(self._again)

    def acknowledge(self, positions: Mapping[int, int]) -> None:
        """Everything up to `positions` is processed, redeliveries aside.

        Raises InvalidRequest, and takes none of them, for what was never handed out.
        """
        for partition, seq in positions.items():
            last = self._last.get(partition)
            if last is None:
                raise InvalidRequest(f"there is no partition {partition}", partition=partition)
            if seq > last:
                raise InvalidRequest(
                    f"partition {partition} was sent up to seq {last}, so {seq} can't be "
                    "acknowledged",
                    partition=partition,
                    sent=last,
                )
        for partition, seq in positions.items():
            waiting = self._open[partition]
            kept: list[int] = []
            while waiting and waiting[0] <= seq:
                first = waiting.popleft()
                if (partition, first) in self._kept_back:
                    kept.append(first)
                else:
                    self._count -= 1
                    self._unweigh((partition, first))
            waiting.extendleft(reversed(kept))
            self._done[partition] = max(seq, self._done[partition])

    def positions(self, through: Mapping[int, int]) -> dict[int, int]:
        """How far each partition is; `through` is up to where all that concerns the target was
        handed out."""
        return {partition: self._position(partition, through) for partition in self._done}

    def _position(self, partition: int, through: Mapping[int, int]) -> int:
        waiting, done = self._open[partition], self._done[partition]
        if waiting:
            return min(done, waiting[0] - 1)
        return max(done, through.get(partition, 0))

    def unsaved(self, through: Mapping[int, int], lineage: Lineage | None = None) -> dict[int, int]:
        """The positions that are to be saved next. Of a version there is none before all of the
        former ones that may have the same keys is processed, and saved: a consumer that goes on
        from these begins with older events of a key only where the newer ones come again, too."""
        found = self.positions(through)
        news = {p: seq for p, seq in found.items() if seq > self._saved.get(p, 0)}
        if lineage is None or not news:  # as for most targets, most of the time
            return news
        wanted = {p: self._behind_elders(p, found, lineage) for p in news}
        return {p: seq for p, seq in wanted.items() if seq > self._saved.get(p, 0)}

    def _behind_elders(self, partition: int, found: Mapping[int, int], lineage: Lineage) -> int:
        position = found[partition]
        for version, begin in lineage.begins(partition):
            elders = lineage.before(version, partition)
            if begin < position and any(self._lacks(*one, found) for one in elders.items()):
                return begin
        return position

    def _lacks(self, partition: int, last: int, found: Mapping[int, int]) -> bool:
        """Whether something up to `last` is in hand, or processed and not saved."""
        waiting = self._open.get(partition)
        if waiting and waiting[0] <= last:
            return True
        return self._saved.get(partition, 0) < min(last, found.get(partition, 0))

    def saved(self, partition: int, seq: int) -> None:
        self._saved[partition] = max(seq, self._saved.get(partition, 0))

    def store_has(self, partition: int, seq: int) -> None:
        """The store was read and has `seq`; it may have lost a later one that was saved."""
        self._saved[partition] = seq
