"""One replication connection: what the server says over it, and how far we say that we are.

The server's stream comes by `COPY BOTH`, read from libpq without waiting; who has read all there is
waits for the socket. What we have is said by a timer of its own (`report_all_along`), so that
a reader who waits for the log isn't taken for dead.

Invariants: no acknowledgement goes beyond what was received; a server that says nothing for
SILENCE_S although it was asked counts as away; nothing is handed out behind a change that the
server has left out.
"""

from __future__ import annotations

import asyncio
import contextlib
from struct import Struct
from typing import LiteralString, Self

import psycopg
from psycopg import pq, sql

from headgate.adapters.pgoutput.database import ANSWER_TIMEOUT_S, Connection, Database, Row, bounded
from headgate.adapters.pgoutput.errors import NOT_READY, history_lost
from headgate.adapters.pgoutput.identity import Timelines, lsn_from, timelines_from, written
from headgate.adapters.pgoutput.messages import MalformedMessage
from headgate.errors import HeadgateError, OriginUnavailable

STATUS_S = 5.0
SILENCE_S = 20.0
_HEAD = Struct(">qqq")
"""Of a part of the stream: where it begins, where the server's WAL ends, and its clock."""
_KEEPALIVE = Struct(">qqB")
_STATUS = Struct(">cqqqqB")
_DATA, _ALIVE = b"wk"


class Link:
    """Opened with `open`, ended with `close`."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._connection = connection
        self._pgconn = connection.pgconn
        self._loop = asyncio.get_running_loop()
        self._stored = 0
        self._received = 0
        self.said = 0
        """The server has sent everything before this LSN."""
        self._heard_at = self._loop.time()
        self._left_out = ""
        """Why the server has left changes out, in its words."""

    @classmethod
    async def open(cls, database: Database) -> Self:
        """Raises OriginUnavailable and OriginRefused."""
        connection = await database.connect(replication="database")
        link = cls(database, connection)
        try:
            await link.rows("SET client_min_messages = 'warning'")
        except psycopg.Error as error:
            await connection.close()
            raise database.error(error) from error
        except BaseException:
            await connection.close()
            raise
        return link

    async def timelines(self) -> tuple[Timelines, int]:
        """The database system's history, and where its WAL ends."""
        [(system, timeline, end, *_)] = await self.rows("IDENTIFY_SYSTEM")
        history = ""
        if int(timeline) != 1:
            [(_, content)] = await self.rows(
                sql.SQL("TIMELINE_HISTORY {}").format(sql.Literal(int(timeline)))
            )
            history = content if isinstance(content, str) else bytes(content).decode()
        return timelines_from(int(system), int(timeline), history), lsn_from(end) or 0

    async def rows(self, command: LiteralString | sql.Composed) -> list[Row]:
        """Before `start`. A connection like this one takes no values beside a statement."""
        async with bounded(self._connection, ANSWER_TIMEOUT_S):
            cursor = await self._connection.execute(command)
            return await cursor.fetchall() if cursor.description else []

    async def start(self, slot: str, lsn: int, options: dict[str, str]) -> None:
        """Raises psycopg's errors, and what the server's answer means."""
        asked = ", ".join(f"{name} '{_quoted(value)}'" for name, value in options.items())
        command = f'START_REPLICATION SLOT "{slot}" LOGICAL {written(lsn)} ({asked})'
        self._connection.add_notice_handler(self._note)
        self._pgconn.nonblocking = 1
        self._pgconn.send_query(command.encode())
        self._pgconn.flush()  # less than any socket takes at once
        deadline = self._loop.time() + ANSWER_TIMEOUT_S
        while self._pgconn.is_busy():
            if not await self._readable(deadline - self._loop.time()):
                raise OriginUnavailable("PostgreSQL doesn't begin to send its changes")
            self._pgconn.consume_input()
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise self._refused(result)
        # Where a stream begins says nothing of what is in the log.
        self.said = self._received = lsn
        self._heard_at = self._loop.time()

    def receive(self) -> bytes | None:
        """The next message, without its head; None: there is none now. Keepalives are heeded here.
        Raises OriginUnavailable, OriginHistoryLost and MalformedMessage."""
        has_looked = False
        while True:
            try:
                size, data = self._pgconn.get_copy_data(1)
                if self._left_out:
                    raise history_lost(self._left_out)
                if size == 0:
                    if has_looked:
                        return None
                    self._pgconn.consume_input()
                    has_looked = True
                    continue
            except psycopg.Error as error:
                raise self._database.error(error) from error
            if size < 0:
                raise self._refused(self._pgconn.get_result())
            self._heard_at = self._loop.time()
            message = bytes(data)
            kind = message[0]
            if kind == _DATA:
                begin, _end, _clock = _HEAD.unpack_from(message, 1)
                self._received = max(self._received, begin)
                return message[1 + _HEAD.size :]
            if kind != _ALIVE:
                raise MalformedMessage(f"the stream has no part {kind:#x}")
            end, _clock, asks = _KEEPALIVE.unpack_from(message, 1)
            self.said = self._received = max(self.said, self._received, end)
            if asks:
                self.report()

    async def wait(self, timeout_s: float) -> bool:
        """Until something may be there; False: nothing came. Raises OriginUnavailable after a long
        silence."""
        is_there = await self._readable(timeout_s)
        if not is_there:
            silent_s = self._loop.time() - self._heard_at
            if silent_s > SILENCE_S:
                raise OriginUnavailable(
                    f"PostgreSQL has said nothing for {silent_s:.0f} s: its connection is taken "
                    "for lost"
                )
        return is_there

    def store(self, lsn: int) -> None:
        """Everything before `lsn` is in the log: the server need not keep it."""
        self._stored = max(self._stored, lsn)

    def report(self) -> None:
        """Tell the server how far we are, and ask for a sign of life. Never raises: who reads
        hears of a connection that is lost."""
        stored = min(self._stored, self._received)
        clock_us = 0  # nobody looks at it
        status = _STATUS.pack(b"r", self._received, stored, stored, clock_us, 1)
        with contextlib.suppress(psycopg.Error):
            self._pgconn.put_copy_data(status)
            self._pgconn.flush()

    async def report_all_along(self) -> None:
        while True:
            self.report()
            await asyncio.sleep(STATUS_S)

    async def close(self) -> None:
        """Says how far we are, as far as the server still listens."""
        self.report()
        self._pgconn.finish()
        await self._connection.close()

    def _note(self, said: psycopg.errors.Diagnostic) -> None:
        """PostgreSQL 18 doesn't end the stream where its publication is missing: it warns, and
        leaves out what was changed then."""
        if said.severity_nonlocalized == "WARNING" and said.sqlstate == NOT_READY:
            self._left_out = (
                "its publication was missing when they were made: it was dropped meanwhile, or "
                f"made later than that (the server: {said.message_primary})"
            )

    def _refused(self, result: pq.abc.PGresult | None) -> HeadgateError:
        """What it means that the stream has ended, or never began."""
        said = result.error_message if result is not None else self._pgconn.error_message
        reason = said.decode(errors="replace").strip().partition("\n")[0]
        state = result.error_field(pq.DiagnosticField.SQLSTATE) if result is not None else None
        reason = reason.removeprefix("ERROR:").strip() or "the server has ended the stream"
        return self._database.error(
            psycopg.OperationalError(reason), sqlstate=(state or b"").decode(), reason=reason
        )

    async def _readable(self, timeout_s: float) -> bool:
        ready: asyncio.Future[None] = self._loop.create_future()

        def note() -> None:
            if not ready.done():
                ready.set_result(None)

        descriptor = self._pgconn.socket
        self._loop.add_reader(descriptor, note)
        try:
            async with asyncio.timeout(timeout_s):
                await ready
        except TimeoutError:
            return False
        finally:
            self._loop.remove_reader(descriptor)
        return True


def _quoted(value: str) -> str:
    return value.replace("'", "''")
