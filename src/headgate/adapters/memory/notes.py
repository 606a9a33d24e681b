"""What a router notes, in memory: it outlives the router for as long as this object is kept."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.model.notes import RouterMemory


class MemoryRouterNotes:
    """Implements ports.notes.RouterNotes; `lanes_wait` is what lanes have said that they wait
    for."""

    def __init__(self, memory: RouterMemory | None = None) -> None:
        self.memory = memory or RouterMemory()
        self.lanes_wait: list[str] = []

    def recall(self) -> RouterMemory:
        return self.memory

    async def remember(self, memory: RouterMemory) -> None:
        self._write(memory, opened=0)

    async def next_window(self, memory: RouterMemory) -> int:
        return self._write(memory, opened=1)

    def _write(self, memory: RouterMemory, *, opened: int) -> int:
        window = max(memory.window, self.memory.window) + opened
        self.memory = replace(memory, window=window)
        return window

    def tidy(self) -> None:
        return

    def waiting(self) -> list[str]:
        return list(self.lanes_wait)
