"""A control stream in memory: the test that opened it is the coordinator and the network.

What a stream over a network does, this one does too: it begins with the node's hello and counts as
connected once the coordinator has welcomed it; what is sent while there is no connection is lost,
and so is what the node hadn't read of a connection when the next one begins. Whether and when there
is one is up to the other end, so that nothing here waits or tries again. One event loop only.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable

from headgate.model.control.from_coordinator import (
    CheckedIn,
    FromCoordinator,
    NotLeader,
    Refused,
    Welcome,
)
from headgate.model.control.to_coordinator import Goodbye, Hello, ToCoordinator
from headgate.ports.control import HelloSource

QUEUE_BOUND = 10_000


class MemoryControlSession:
    """Implements ports.control.ControlSession; `received` is told what the node says, as it does.

    The coordinator's side is `connect`, `push` and `cut`.
    """

    def __init__(self, hello: HelloSource, received: Callable[[ToCoordinator], None]) -> None:
        self.hello = hello
        self.closed = False
        self.silent = False
        """Whether the coordinator says nothing, though nobody knows that it is gone."""
        self._heard_s = -math.inf
        self._received = received
        self._incoming: asyncio.Queue[FromCoordinator | None] = asyncio.Queue()
        self._is_up = False
        self._is_welcome = False

    # --- the node's side -------------------------------------------------------------------------

    async def send(self, message: ToCoordinator) -> bool:
        if not self._is_welcome:
            return False
        self._received(message)
        return True

    async def messages(self) -> AsyncIterator[FromCoordinator]:
        while (message := await self._incoming.get()) is not None:
            yield message

    @property
    def connected(self) -> bool:
        return self._is_welcome

    @property
    def heard_s(self) -> float:
        """Now, since nobody checks in here, unless the other end is `silent`."""
        if not self.silent:
            self._heard_s = asyncio.get_running_loop().time()
        return self._heard_s

    async def close(self, *, returns: bool = False) -> None:
        if self.closed:
            return
        await self.send(Goodbye(returns))
        self.cut()
        self.closed = True
        self._incoming.put_nowait(None)

    # --- the coordinator's side ------------------------------------------------------------------

    def connect(self) -> Hello:
        """Begin a connection, with what the node says first."""
        if self.closed:
            raise ConnectionRefusedError("the node has closed its session")
        while not self._incoming.empty():
            self._incoming.get_nowait()
        self._is_up, self._is_welcome = True, False
        return self.hello()

    def push(self, message: FromCoordinator) -> None:
        """Send to the node. One that reads too slowly loses the connection, not messages."""
        if not self._is_up or isinstance(message, CheckedIn):
            return
        if isinstance(message, NotLeader) or self._incoming.qsize() >= QUEUE_BOUND:
            self.cut()
            return
        self._incoming.put_nowait(message)
        if isinstance(message, Welcome):
            self._is_welcome = True
        elif isinstance(message, Refused):
            self.cut()

    def cut(self) -> None:
        """The connection is gone, without a word to either side."""
        self._is_up = self._is_welcome = False
