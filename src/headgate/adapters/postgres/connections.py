"""A few connections to one database: opened when needed, replaced when lost, bounded in time.

Invariants: every use of a connection ends by its deadline, also when the server is paused: then the
connection is cut, as if its cable were pulled, and the statement fails. What a lost connection was
doing is done again over another one as long as the call's own time lasts, unless its COMMIT was on
the way. A connection belongs to one event loop and never crosses a fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from headgate.adapters.log.appending import unwritable
from headgate.adapters.postgres.errors import (
    is_definite,
    is_lost,
    is_unstorable,
    outcome_unknown,
    storage_failed,
)
from headgate.errors import InvalidConfig, OutcomeUnknown

T = TypeVar("T")
Connection = psycopg.AsyncConnection[Any]
Query = sql.Composed | sql.SQL

TIMEOUT_S = 2.0
"""Below the write timeout of one attempt (3 s), so that most failures are definite ones."""
COMMIT_TIMEOUT_S = 5.0
"""A commit gets more: cutting it leaves its outcome open."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5

_left_behind: list[Connection] = []
"""Connections that a fork copied: the parent's, so this process may neither use nor close them."""


def check_dsn(dsn: str) -> None:
    """Refuse what is no address, without repeating it: it may hold a password."""
    try:
        psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        # Without its cause, which quotes the address.
        raise InvalidConfig(
            "log.dsn must be the address of a PostgreSQL database, such as "
            "postgresql://user@host:5432/database",
            key="log.dsn",
        ) from None


def address(dsn: str, timeout_s: float) -> dict[str, Any]:
    """`dsn` with what keeps a connection from hanging on a host that is gone."""
    bounds = {
        "connect_timeout": max(2, round(timeout_s)),
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "application_name": "headgate",
    }
    return {**bounds, **psycopg.conninfo.conninfo_to_dict(dsn)}


def session_settings(timeout_s: float, *, durable: bool = True) -> Query:
    """What every connection says first, whatever the server's defaults are."""
    bound_ms = sql.Literal(round(timeout_s * 1_000))
    return sql.SQL(
        "SET synchronous_commit = {}; SET lock_timeout = {}; SET statement_timeout = {}; "
        "SET idle_in_transaction_session_timeout = {}"
    ).format(sql.Literal("on" if durable else "off"), bound_ms, bound_ms, sql.Literal(10_000))


def cut(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
    """Make whatever waits on `connection` fail now. Closing it would wait for the server."""
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as cable,
    ):
        cable.shutdown(socket.SHUT_RDWR)


def heed_cancellation() -> None:
    """To be called where a psycopg error is survived: it may have taken a cancellation's place."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def connect(dsn: str, timeout_s: float, *, durable: bool = True) -> Connection:
    connection = await psycopg.AsyncConnection.connect(**address(dsn, timeout_s), autocommit=True)
    timer = asyncio.get_running_loop().call_later(timeout_s, cut, connection)
    try:
        await connection.execute(session_settings(timeout_s, durable=durable))
    except BaseException:
        await connection.close()
        raise
    finally:
        timer.cancel()
    return connection


class Session:
    """One connection, for as long as one piece of work needs it."""

    def __init__(self, connection: Connection, deadline: float) -> None:
        self.connection = connection
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_at(deadline, cut, connection)

    async def query(self, query: Query, values: Any = None) -> list[tuple[Any, ...]]:
        """Run one statement; its rows, if it has any."""
        cursor = await self.connection.cursor(binary=True).execute(query, values)
        return await cursor.fetchall() if cursor.description else []

    async def script(self, statements: Query) -> None:
        """Run several statements that have no values."""
        await self.connection.execute(statements)

    async def begin(self, *queries: tuple[Query, Any]) -> list[list[tuple[Any, ...]]]:
        """Start a transaction and run `queries` in it, all in one round trip; their rows."""
        async with self.connection.pipeline():
            await self.connection.execute("BEGIN")
            cursors = [
                await self.connection.cursor(binary=True).execute(query, values)
                for query, values in queries
            ]
        return [await cursor.fetchall() for cursor in cursors]

    async def commit(self, what: str, timeout_s: float) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_later(timeout_s, cut, self.connection)
        warnings: list[str] = []

        def note(notice: psycopg.errors.Diagnostic) -> None:
            if notice.severity_nonlocalized == "WARNING":
                warnings.append(notice.message_primary or "")

        self.connection.add_notice_handler(note)
        try:
            await self.connection.execute("COMMIT")
        except psycopg.Error as error:
            if is_definite(error, connected=not self.connection.closed):
                raise
            raise outcome_unknown(error, what) from error
        finally:
            self.connection.remove_notice_handler(note)
        if warnings:
            # Another session has cancelled its wait for the standbys, which may not have it.
            raise OutcomeUnknown(
                f"{what} may or may not be on the standbys: PostgreSQL warns ({warnings[0]}); "
                "find out who cancels its sessions"
            )

    async def roll_back(self) -> None:
        with contextlib.suppress(psycopg.Error):
            await self.connection.execute("ROLLBACK")

    def end(self) -> None:
        self._timer.cancel()

    @property
    def is_reusable(self) -> bool:
        status = self.connection.info.transaction_status
        return not self.connection.closed and status == TransactionStatus.IDLE


class Connections:
    """At most `limit` connections at a time; a caller that wants one more waits, until its
    deadline."""

    def __init__(
        self,
        dsn: str,
        *,
        limit: int,
        timeout_s: float = TIMEOUT_S,
        commit_timeout_s: float = COMMIT_TIMEOUT_S,
    ) -> None:
        self._dsn = dsn
        self._limit = limit
        self._timeout_s = timeout_s
        self._commit_timeout_s = commit_timeout_s
        self._idle: list[Connection] = []
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._slots = asyncio.Semaphore(limit)

    async def run(
        self,
        work: Callable[[Session], Awaitable[T]],
        *,
        what: str,
        repeatable: bool = True,
        within_s: float = math.inf,
    ) -> T:
        """What `work` returns, tried over other connections while its time lasts.

        A commit whose answer never came is tried again only where doing it twice does no harm.
        `within_s` shortens the time that there is for all of it.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(self._timeout_s, within_s)
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                async with self._session(deadline) as session:
                    return await work(session)
            except OutcomeUnknown:
                if not repeatable or loop.time() + pause_s >= deadline:
                    raise
            except psycopg.Error as error:
                heed_cancellation()
                if is_unstorable(error):
                    raise unwritable(error) from error
                if not is_lost(error) or loop.time() + pause_s >= deadline:
                    raise storage_failed(error, what) from error
            except TimeoutError as error:
                raise storage_failed(
                    psycopg.OperationalError("no connection became free in time"), what
                ) from error
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    @contextlib.asynccontextmanager
    async def transaction(
        self, session: Session, what: str, *queries: tuple[Query, Any]
    ) -> AsyncIterator[list[list[tuple[Any, ...]]]]:
        """All of the block or nothing of it; gives the rows of `queries`, which come first."""
        try:
            yield await session.begin(*queries)
        except BaseException:
            await session.roll_back()
            raise
        await session.commit(what, self._commit_timeout_s)

    async def close(self) -> None:
        self._settle_here()
        while self._idle:
            await self._idle.pop().close()

    @contextlib.asynccontextmanager
    async def _session(self, deadline: float) -> AsyncIterator[Session]:
        self._settle_here()
        async with asyncio.timeout_at(deadline):
            await self._slots.acquire()
        try:
            connection = await self._connection()
            session = Session(connection, deadline)
            try:
                yield session
            finally:
                session.end()
                await self._put_back(session)
        finally:
            self._slots.release()

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return await connect(self._dsn, self._timeout_s)

    async def _put_back(self, session: Session) -> None:
        if session.is_reusable:
            self._idle.append(session.connection)
            return
        await session.connection.close()
        # What one connection has lost, the idle ones have lost too, as a rule.
        lost: Sequence[Connection] = self._idle
        self._idle = []
        for connection in lost:
            await connection.close()

    def _settle_here(self) -> None:
        """Let go of what belongs to another process or to an event loop that is gone."""
        here = (os.getpid(), asyncio.get_running_loop())
        if self._home == here:
            return
        for connection in self._idle:
            if self._home is not None and self._home[0] != here[0]:
                _left_behind.append(connection)
            else:
                connection.pgconn.finish()
        self._idle = []
        self._slots = asyncio.Semaphore(self._limit)
        self._home = here
