"""The coordinator's state within one process: the next coordinator that opens it finds it."""

from __future__ import annotations

import asyncio

import msgspec

from headgate.errors import Fenced
from headgate.model.stored import StoredState


class MemoryCoordination:
    """What is stored, and under which revision: the world outside the stores that share it."""

    def __init__(self) -> None:
        self.content = msgspec.json.encode(StoredState())
        self.revision = 0


class MemoryCoordinationStore:
    """Implements ports.coordination.CoordinationStore under the leadership of that `revision`: once
    a higher one has saved, this one can't."""

    def __init__(self, kept: MemoryCoordination, revision: int = 0) -> None:
        self._kept = kept
        self._revision = revision

    async def load(self) -> StoredState:
        await asyncio.sleep(0)
        return msgspec.json.decode(self._kept.content, type=StoredState)

    async def save(self, state: StoredState) -> None:
        content, kept = msgspec.json.encode(state), self._kept
        await asyncio.sleep(0)  # others have their turn meanwhile
        if self._revision < kept.revision:
            raise Fenced("another coordinator has taken over", epoch=kept.revision)
        kept.content, kept.revision = content, self._revision

    async def close(self) -> None: ...
