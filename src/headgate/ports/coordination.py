"""Where the coordinator keeps what must survive it.

One coordinator writes at a time. What has become of a save that failed is open: all of it, a part
of it or nothing may be stored. Whatever it is can be loaded, and the next save on the same store
finds out before it writes.
"""

from __future__ import annotations

from typing import Protocol

from headgate.model.stored import StoredState


class CoordinationStore(Protocol):
    async def load(self) -> StoredState:
        """What was saved last; an empty state in a new cluster.

        The values of a field come in the order of what tells them apart (names, partitions, ids):
        the order in which they were saved carries no meaning. Raises StorageFailed.
        """

    async def save(self, state: StoredState) -> None:
        """Replace the state, durably, before returning.

        Raises Fenced when another coordinator has taken over, which is for ever, and StorageFailed
        within a bounded time when the store is away.
        """

    async def close(self) -> None: ...
