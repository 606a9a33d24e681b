"""Wake-ups through PostgreSQL: a writer notifies, followers in any process look at the log again.

Invariants: a follower listens before its first read, so no append falls between the two; a notice
never holds an append and never fails one; a lost notice costs a second and never a record. Notices
leave after the commit, over a connection of their own: inside the transaction they would make all
partitions of the database commit one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from types import TracebackType

import psycopg

from headgate.adapters.log.wake_ups import WakeUps
from headgate.adapters.postgres.connections import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    TIMEOUT_S,
    Connection,
    connect,
    cut,
    heed_cancellation,
)
from headgate.adapters.postgres.schema import SchemaStatements
from headgate.model.event import PartitionRef
from headgate.tasks import Crew

SAFETY_S = 1.0
"""How often followers look by themselves: a lost notice costs no more than this."""


class Notifier:
    """The writer's end, for all its partitions. Notices that pile up are sent as one."""

    def __init__(self, dsn: str, schema: SchemaStatements) -> None:
        self._dsn = dsn
        self._schema = schema
        self._grown: set[str] = set()
        self._wanted = asyncio.Event()
        self._closing = asyncio.Event()
        self._connection: Connection | None = None
        self._crew = Crew("postgres")
        self._task: asyncio.Task[None] | None = None

    def ring(self, ref: PartitionRef) -> None:
        self._grown.add(str(ref))
        self._wanted.set()
        if self._task is None:
            self._task = self._crew.keep("notifier", self._send)

    async def close(self) -> None:
        """Send what is still to be sent, as far as the server takes it at once."""
        self._crew.dismiss()
        self._closing.set()
        self._wanted.set()
        if self._task is not None:
            await self._task
        if self._connection is not None:
            await self._connection.close()

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while self._grown or not self._closing.is_set():
            await self._wanted.wait()
            if not self._closing.is_set():
                self._wanted.clear()
            grown, self._grown = sorted(self._grown), set()
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = await connect(self._dsn, TIMEOUT_S, durable=False)
                timer = loop.call_later(TIMEOUT_S, cut, self._connection)
                try:
                    await self._connection.execute(self._schema.notify, (grown,))
                finally:
                    timer.cancel()
            except psycopg.Error:
                heed_cancellation()
                # The followers' own look serves them meanwhile; connecting can wait a moment.
                await _pause(self._closing, LONGEST_PAUSE_S)
                if not self._closing.is_set():
                    self._grown.update(grown)
                    self._wanted.set()


class Listener:
    """The readers' end: one connection of this process, which wakes all its followers."""

    def __init__(self, dsn: str, schema: SchemaStatements) -> None:
        self._dsn = dsn
        self._schema = schema
        self._followers: set[Follower] = set()
        self._connection: Connection | None = None
        self._loop = asyncio.get_running_loop()
        self._listening = asyncio.Event()
        self._lost = asyncio.Event()
        self._closing = asyncio.Event()
        self._crew = Crew("postgres")
        self._task = self._crew.keep("listener", self._listen)

    @property
    def belongs_here(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    async def join(self, follower: Follower) -> None:
        """Once this returns, `follower` hears of every append, or must look by itself."""
        self._followers.add(follower)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                await self._listening.wait()

    def leave(self, follower: Follower) -> None:
        self._followers.discard(follower)

    async def close(self) -> None:
        self._crew.dismiss()
        self._closing.set()
        self._lost.set()
        if self._connection is not None:
            cut(self._connection)
        await self._task

    async def _listen(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closing.is_set():
            try:
                await self._listen_once()
                pause_s = FIRST_PAUSE_S
            except psycopg.Error:
                heed_cancellation()
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            await _pause(self._closing, pause_s)

    async def _listen_once(self) -> None:
        """Listen until the connection is lost."""
        connection = self._connection = await connect(self._dsn, TIMEOUT_S)
        try:
            timer = self._loop.call_later(TIMEOUT_S, cut, connection)
            try:
                await connection.execute(self._schema.listen)
            finally:
                timer.cancel()
            if self._closing.is_set():
                return
            self._lost.clear()
            # psycopg's own wait would wake up ten times a second for nothing.
            self._loop.add_reader(connection.fileno(), self._hear, connection)
            try:
                self._listening.set()
                self._wake_all()  # Notices may have gone by while nobody listened.
                await self._lost.wait()
            finally:
                self._listening.clear()
                self._loop.remove_reader(connection.fileno())
        finally:
            await connection.close()

    def _hear(self, connection: Connection) -> None:
        heard: set[str] = set()
        try:
            connection.pgconn.consume_input()
            while notice := connection.pgconn.notifies():
                heard.add(notice.extra.decode())
        except psycopg.Error:
            self._lost.set()
        for follower in self._followers:
            follower.hear(heard)

    def _wake_all(self) -> None:
        for follower in self._followers:
            follower.wake_all()


async def _pause(closing: asyncio.Event, pause_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await closing.wait()


class Follower:
    """An async context manager that gives an async iterator of wake-ups."""

    def __init__(
        self, listener: Listener, refs: Sequence[PartitionRef], *, safety_s: float
    ) -> None:
        self._listener = listener
        self._by_name = {str(ref): ref for ref in refs}
        self._wake_ups = WakeUps(refs, safety_s=safety_s)

    async def __aenter__(self) -> WakeUps:
        await self._listener.join(self)
        self._wake_ups.start()
        return self._wake_ups

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._wake_ups.stop()
        self._listener.leave(self)

    def hear(self, names: set[str]) -> None:
        self._wake_ups.ring(ref for name, ref in self._by_name.items() if name in names)

    def wake_all(self) -> None:
        self._wake_ups.ring_all()
