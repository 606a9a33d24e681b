"""Where the coordinator keeps what must survive it."""

from __future__ import annotations

from typing import Protocol

from headgate.model.stored import StoredState


class CoordinationStore(Protocol):
    async def load(self) -> StoredState:
        """What was saved last; an empty state in a new cluster."""

    async def save(self, state: StoredState) -> None:
        """Replace the state, durably, before returning."""

    async def close(self) -> None: ...
