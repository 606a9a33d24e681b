"""One target that a consumer owns, seen from the consumer: what it was handed and what is done.

Invariant: a position is the highest seq of its partition with everything handed out up to it
acknowledged, in whatever order the acknowledgements came; positions only grow. A redelivery is in
hand like any other item, moves no position, and is acknowledged by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from headgate import errors
from headgate.model.client_messages import Item, is_redelivery, seq_of

EMPTY: Mapping[int, int] = MappingProxyType({})
Held = tuple[int, int, bool]
"""Partition, seq, and whether it is a redelivery."""


class OwnedTarget:
    """It begins after `positions`. `leaving`: the gateway has asked for it back."""

    def __init__(self, target: int, epoch: int, positions: Mapping[int, int] = EMPTY) -> None:
        self.target = target
        self.epoch = epoch
        self.leaving = False
        self.held: set[Held] = set()
        """What the gateway was last told to be held back here."""
        self._order: dict[int, deque[int]] = {}
        self._open: dict[int, set[int]] = {}
        self._last = dict(positions)
        self._unsaid: dict[int, int] = {}
        self._again: set[tuple[int, int]] = set()
        """Redeliveries that are in hand, by partition and seq."""
        self._again_unsaid: dict[int, list[int]] = {}
        self._processed_unsaid: dict[int, list[int]] = {}

    @property
    def in_hand(self) -> int:
        """Items that were handed out and not acknowledged."""
        return sum(map(len, self._open.values())) + len(self._again)

    def unsettled(self) -> Iterator[tuple[int, int, bool]]:
        """Partition and seq of all that isn't behind a position, and whether it is in hand; the
        rest was acknowledged before something that stands ahead of it."""
        for partition, seqs in self._order.items():
            for seq in seqs:
                yield partition, seq, seq in self._open[partition]

    def hand_out(self, partition: int, seq: int) -> None:
        self._order.setdefault(partition, deque()).append(seq)
        self._open.setdefault(partition, set()).add(seq)
        self._last[partition] = seq

    def hand_out_again(self, partition: int, seq: int) -> None:
        self._again.add((partition, seq))

    def acknowledge_again(self, partition: int, seq: int) -> None:
        """A redelivery is processed; one that isn't in hand was acknowledged before."""
        if (partition, seq) in self._again:
            self._again.discard((partition, seq))
            self._again_unsaid.setdefault(partition, []).append(seq)

    def has_in_hand(self, item: Item) -> bool:
        place = item.partition, seq_of(item)
        return place in self._again if is_redelivery(item) else self.holds(*place)

    def holds(self, partition: int, seq: int) -> bool:
        """Whether it is in hand: also by a copy that was handed out under another epoch."""
        return seq in self._open.get(partition, ())

    def was_handed_out(self, partition: int, seq: int) -> bool:
        return seq <= self._last.get(partition, 0)

    def acknowledge(self, partition: int, seq: int) -> int:
        """Returns the position that this brings the partition to; 0: it stays where it is.

        Acknowledging twice is fine. Raises InvalidRequest for what was never handed out.
        """
        if not self.was_handed_out(partition, seq):
            raise errors.InvalidRequest(
                f"nothing of partition {partition} of target {self.target} was handed out"
                if partition not in self._last
                else f"partition {partition} of target {self.target} was handed out up to seq "
                f"{self._last[partition]}, so {seq} can't be acknowledged"
            )
        waiting, order = self._open.get(partition), self._order.get(partition)
        if waiting is None or order is None:
            return 0
        waiting.discard(seq)
        position = 0
        while order and order[0] not in waiting:
            position = order.popleft()
        if position:
            self._unsaid[partition] = position
        return position

    def say_processed(self, partition: int, seq: int) -> None:
        """The gateway waits for this one alone, which no position reaches yet."""
        self._processed_unsaid.setdefault(partition, []).append(seq)

    def unsaid(self) -> dict[str, Any]:
        """What the gateway hasn't been told yet, positions and redeliveries, if anything; it counts
        as told from now on."""
        said: dict[str, Any] = {}
        if self._unsaid:
            said["positions"] = {str(partition): seq for partition, seq in self._unsaid.items()}
            self._unsaid.clear()
        if self._again_unsaid:
            said["redelivered"] = {str(number): seqs for number, seqs in self._again_unsaid.items()}
            self._again_unsaid = {}
        if self._processed_unsaid:
            said["processed"] = {
                str(number): seqs for number, seqs in self._processed_unsaid.items()
            }
            self._processed_unsaid = {}
        return said
