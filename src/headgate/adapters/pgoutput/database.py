"""The PostgreSQL that a connector reads: how to reach it, and what its catalog says.

Invariant: every call ends within a bound, and fails with one of Headgate's errors, none of which
holds a secret. The address with its secrets is in psycopg's connections and nowhere else; secrets
are looked up anew by each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from headgate.adapters.pgoutput.errors import origin_error
from headgate.adapters.pgoutput.values import SESSION
from headgate.decide.connectors.postgres_settings import EXAMPLE, REFERENCE, PostgresSettings
from headgate.errors import HeadgateError, InvalidConfig, OriginRefused

CONNECT_TIMEOUT_S = 5
ANSWER_TIMEOUT_S = 10.0
NAME = "headgate"

Resolve = Callable[[str], str]
"""From a reference, `NAME` or `file:PATH`, to the secret; raises InvalidConfig."""
Connection = psycopg.AsyncConnection[Any]
Row = tuple[Any, ...]

_BOUNDS = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "application_name": NAME,
    "target_session_attrs": "primary",
}


class Database:
    """Connects with the first question, and again after a connection was lost."""

    def __init__(self, settings: PostgresSettings, resolve: Resolve) -> None:
        self.settings = settings
        self._resolve = resolve
        self._secrets: tuple[str, ...] = ()
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Database({self.settings.dsn!r})"

    async def rows(
        self,
        query: LiteralString | sql.Composed,
        values: Sequence[Any] = (),
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> list[Row]:
        """One statement, and its rows. Raises psycopg's errors (see `error`) and OriginRefused."""
        async with self._turn:
            if self._connection is None or self._connection.closed:
                self._connection = await self.connect()
            connection = self._connection
            async with bounded(connection, timeout_s):
                cursor = await connection.execute(query, values or None)
                return await cursor.fetchall() if cursor.description else []

    async def connect(self, **more: Any) -> Connection:
        """A connection of one's own. Raises OriginUnavailable and OriginRefused."""
        address, self._secrets = resolved(self.settings.dsn, self._resolve)
        try:
            connection = await psycopg.AsyncConnection.connect(
                **{**_BOUNDS, **address, **more}, autocommit=True
            )
        except (psycopg.Error, OSError) as error:
            # Without its cause, which may quote the address.
            raise self.error(error) from None
        try:
            async with bounded(connection, ANSWER_TIMEOUT_S):
                for name, value in SESSION.items():
                    await connection.execute(
                        sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value))
                    )
        except psycopg.Error as error:
            await connection.close()
            raise self.error(error) from error
        except BaseException:
            await connection.close()
            raise
        return connection

    def error(self, error: BaseException, **more: str) -> HeadgateError:
        """The error to raise from `error`, for a reader of changes."""
        return origin_error(error, self._secrets, **more)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None


@contextlib.asynccontextmanager
async def bounded(connection: Connection, timeout_s: float) -> AsyncIterator[None]:
    """What takes longer fails, as if the cable were pulled: to cancel it would wait for the
    server. A cancellation that psycopg answers with an error stays one."""
    timer = asyncio.get_running_loop().call_later(timeout_s, cut, connection)
    try:
        yield
    except psycopg.Error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from None
        raise
    finally:
        timer.cancel()


def cut(connection: Connection) -> None:
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as cable,
    ):
        cable.shutdown(socket.SHUT_RDWR)


def resolved(dsn: str, resolve: Resolve) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The address as psycopg's keywords, with its secrets in place, and these. A secret is taken as
    it is, whatever characters it has; one that is the whole address is read as an address."""
    secrets: dict[str, str] = {}

    def marked(found: re.Match[str]) -> str:
        mark = f"headgatesecret{len(secrets)}x"
        try:
            secrets[mark] = resolve(found[1])
        except InvalidConfig as error:
            raise OriginRefused(error.message, **error.details) from None
        return mark

    text = REFERENCE.sub(marked, dsn)
    if text in secrets:
        address = _keywords(secrets[text])
    else:
        address = {key: _unmarked(str(value), secrets) for key, value in _keywords(text).items()}
    hidden = {*secrets.values(), str(address.get("password", ""))} - {""}
    return address, tuple(sorted(hidden, key=len, reverse=True))


def _unmarked(value: str, secrets: dict[str, str]) -> str:
    for mark, secret in secrets.items():
        value = value.replace(mark, secret)
    return value


def _keywords(dsn: str) -> dict[str, Any]:
    try:
        return dict(psycopg.conninfo.conninfo_to_dict(dsn))
    except psycopg.Error:
        # Without its cause, which quotes the address.
        raise OriginRefused(
            "the setting dsn isn't the address of a PostgreSQL database, such as "
            f"{EXAMPLE}: correct it"
        ) from None
