"""Where parked and dead letters are kept, by all lanes of a cluster and for its operators.

Lanes in many processes write at once. A record is settled on the strength of `put`, so what it
returned for is on disk. Every call ends within a few seconds, with StorageFailed when the store is
full or away; what became of the call is then open, and doing it again is harmless. Large letters
that are there are changed in several transactions, each in that time, and what one has done stays
done. `put` is one: writers of letters write few megabytes at a time, fewer after a failure.

What a lane changes it changes under a fence per partition, like a position: the highest fence that
a partition was claimed under, or that anything was changed under, is kept with the letters, and a
lower one is refused in the same transaction: the call raises Fenced, which names the partition, and
changes nothing. So a lane that claims a partition knows all of its letters, and no other lane
changes them from then on; operators change only dead ones, which lanes only add to, and forget
damaged ones, which nobody can be sent; unless they delete the whole topic, which takes a fence of
its own. Letters of consumer groups are changed in
the same way, by the gateway that has the target, under the fence of the target's position; lanes
never see them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from headgate.model.event import Fence, PartitionRef
from headgate.model.letters import Letter, LetterCount, LetterQuery, NewLetter

Fences = Mapping[PartitionRef, Fence]
"""Under which fences the writer that changes letters holds the partitions that fence them."""
NO_SEQS: Mapping[PartitionRef, int] = MappingProxyType({})


class LetterStore(Protocol):
    # --- lanes and targets -----------------------------------------------------------------------

    async def claim(self, fences: Fences) -> dict[str, frozenset[PartitionRef]]:
        """Take the letters of these partitions: the former holder can't change them any more.

        Returns, per gateway, the partitions that have parked letters for it. Letters that an
        operator wants to be sent again don't count: nothing has to wait for them.
        """

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        """Write all of them, durably, in one transaction.

        Per gateway and record there is one parked letter in the order, and one dead letter per
        reason: a new one that says something else is joined with the one that is there, for whom
        either of them was, as if both were written now. So a lane that starts again may write what
        its predecessor wrote. A letter that was joined has another id: a lane that read it before,
        and sent it to fewer, can't remove it, and an operator who was shown less of it neither
        deletes nor revives it. A new one takes the place of one that is damaged; where that was
        parked, a dead letter of the record is kept besides, as it isn't known for whom it was.
        """

    async def parked(
        self,
        gateway_id: str,
        refs: Iterable[PartitionRef],
        *,
        each: int,
        after_seqs: Mapping[PartitionRef, int] = NO_SEQS,
    ) -> list[Letter]:
        """The letters that are parked for a gateway in the order: up to `each` of every partition,
        its oldest ones, or those above the one in `after_seqs`, by (topic, partition, seq). One
        that is damaged comes as `find` shows it, in its place: nothing may overtake it."""

    async def revived(
        self, refs: Iterable[PartitionRef], *, after_id: int, limit: int
    ) -> list[Letter]:
        """Up to `limit` letters of lanes that an operator wants to be sent again, with an id above
        `after_id`, by id; those that are damaged as `find` shows them."""

    async def remove(self, letters: Sequence[Letter], fences: Fences) -> None:
        """Parked letters that were delivered, or that nobody waits for any more."""

    async def bury(self, letters: Sequence[Letter], fences: Fences, *, now_ms: int) -> None:
        """Parked letters are dead from now on, with the reason, the attempts and the error that
        they have here. One that meets another dead letter of its record and reason is joined with
        it, and keeps its id. One that was shown as damaged stays so."""

    # --- operators -------------------------------------------------------------------------------

    async def find(
        self, query: LetterQuery, *, after_id: int = 0, limit: int = 100
    ) -> list[Letter]:
        """Up to `limit` letters with an id above `after_id`, by id; those that are damaged, too:
        without what can't be read, and with a word about it (`damage`)."""

    async def count(self, query: LetterQuery) -> int: ...

    async def counts(self) -> list[LetterCount]:
        """How many there are of every kind; a store that is away says so within a second."""

    async def revive(self, ids: Sequence[int], *, now_ms: int) -> list[int]:
        """Have dead letters sent again, outside the order: they are parked, as redeliveries.

        Returns those that were dead. Doing it twice does it once.
        """

    async def delete(self, ids: Sequence[int]) -> list[int]:
        """Forget dead letters, and parked ones that are damaged: nobody can be sent those. Returns
        those that were there; other parked ones stay."""

    async def sweep(self, *, before_ms: int, limit: int) -> int:
        """Forget some of the dead letters written before then, `limit` at most and fewer where they
        are large; returns how many: 0 when none is left, but for those that others change now."""

    async def abandon(self, fences: Fences, *, limit: int) -> int:
        """Forget some of the letters of these partitions, parked ones too, because their topic was
        deleted under these fences: `limit` at most, and fewer where they are large. Returns how
        many: 0 when none is left. Once the topic is back its lanes have higher ones, and keep what
        they wrote: that is Fenced."""

    async def close(self) -> None: ...
