"""Where parked and dead letters are kept, by all lanes of a cluster and for its operators.

Lanes in many processes write at once. A record is settled on the strength of `put`, so what it
returned for is on disk. Every call ends within a few seconds, with StorageFailed when the store is
full or away; what became of the call is then open, and doing it again is harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from headgate.model.event import PartitionRef
from headgate.model.letters import Letter, LetterCount, LetterQuery, LetterReason, NewLetter


class LetterStore(Protocol):
    # --- lanes -----------------------------------------------------------------------------------

    async def put(self, letters: Sequence[NewLetter], *, now_ms: int) -> None:
        """Write all of them, durably, in one transaction.

        One letter per (gateway, topic, partition, seq, state): where there is one already, the new
        one is left out, so that a lane that starts again may write what its predecessor wrote.
        """

    async def behind(self, refs: Iterable[PartitionRef]) -> dict[str, frozenset[PartitionRef]]:
        """Per gateway, those of `refs` that have parked letters for it. Redeliveries don't count:
        nothing has to wait for them."""

    async def revived(self, refs: Iterable[PartitionRef]) -> frozenset[str]:
        """The gateways for which `refs` have redeliveries."""

    async def parked(
        self, gateway_id: str, refs: Iterable[PartitionRef], *, limit: int
    ) -> list[Letter]:
        """The parked letters for a gateway: redeliveries first, then the oldest of each partition,
        by (topic, partition, seq)."""

    async def remove(self, ids: Sequence[int]) -> None:
        """They were acknowledged, or nobody waits for them any more."""

    async def bury(
        self, ids: Sequence[int], reason: LetterReason, *, attempts: int, error: str, now_ms: int
    ) -> None:
        """Parked letters that were refused for good are dead from now on."""

    # --- operators -------------------------------------------------------------------------------

    async def find(
        self, query: LetterQuery, *, after_id: int = 0, limit: int = 100
    ) -> list[Letter]:
        """Up to `limit` letters with an id above `after_id`, by id."""

    async def count(self, query: LetterQuery) -> int: ...

    async def counts(self) -> list[LetterCount]:
        """How many there are of every kind."""

    async def revive(self, ids: Sequence[int], *, now_ms: int) -> list[int]:
        """Park dead letters again, as redeliveries; returns those that were dead.

        Doing it twice does it once.
        """

    async def delete(self, ids: Sequence[int]) -> list[int]:
        """Forget dead letters; returns those that were there. Parked ones stay."""

    async def sweep(self, *, before_ms: int, limit: int) -> int:
        """Forget up to `limit` dead letters written before then; returns how many."""

    async def close(self) -> None: ...
