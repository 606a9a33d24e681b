"""The router's end of its stream to the coordinator, and since when that is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from headgate.model.control.from_coordinator import FromCoordinator
from headgate.model.control.to_coordinator import ToCoordinator
from headgate.ports.control import ControlSession, HelloSource

Connect = Callable[[HelloSource], ControlSession]


class Stream:
    """Nothing is said nor heard before `open`."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._session: ControlSession | None = None
        self.connected_s: float | None = None
        """Since when the coordinator is there, as far as the router has looked."""
        self.coordinator_url = ""
        """Where the coordinator serves HTTP, as it said itself."""

    def open(self, hello: HelloSource) -> AsyncIterator[FromCoordinator]:
        """Connect; returns what the coordinator says, until `close`."""
        self._session = self._connect(hello)
        return self._session.messages()

    def is_connected(self) -> bool:
        return self._session is not None and self._session.connected

    def welcomed(self, url: str) -> None:
        self.coordinator_url = url
        self.connected_s = asyncio.get_running_loop().time()

    def look(self) -> None:
        """Only a welcome says since when it is there again."""
        if not self.is_connected():
            self.connected_s = None

    async def send(self, message: ToCoordinator) -> None:
        """Or not, while there is nobody to hear it."""
        if self._session is not None:
            await self._session.send(message)

    async def close(self, *, returns: bool = False) -> None:
        if self._session is not None:
            await self._session.close(returns=returns)
