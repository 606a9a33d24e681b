"""The embedded letter store: one SQLite file that the lanes and the coordinator of a machine share.

Invariant: what a call returned for is on disk, in the file that is at its path: one that is
deleted, moved or replaced is let go of, and what was written into it meanwhile has failed. Never
runs on the event loop: everything waits for the disk, so a thread of its own does. Changes that
wait together share a transaction, in their order; when it fails it fails for all of them, and each
may be asked for again, but one that is fenced off fails alone. No call waits longer than
`CALL_TIMEOUT_S`, even for a disk that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import apsw
import msgspec
import structlog

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.letters import changes as letter_changes
from headgate.adapters.embedded.letters.mending import (
    ANYHOW,
    BY_INDEX,
    COMPARED_EVERY_S,
    contradicts_itself,
    gateways_behind,
    is_about_an_index,
    mend,
    parked_rows,
)
from headgate.adapters.embedded.letters.tables import (
    COUNTS,
    HAS_FENCES,
    LATER_LETTERS_SCHEMA,
    LETTERS_SCHEMA,
    REVIVE,
    REVIVED,
    SHOWN,
    SWEEP,
    conditions,
)
from headgate.adapters.embedded.log.open_files import OpenFiles, let_go
from headgate.adapters.embedded.sqlite import connect, storage_errors, storage_failed, transaction
from headgate.adapters.letters import counted, parked_letter, shown
from headgate.errors import DataFolderError, Fenced, OutcomeUnknown, StorageFailed
from headgate.model.event import PartitionRef
from headgate.model.groups import is_target
from headgate.model.letters import Letter, LetterCount, LetterQuery, NewLetter
from headgate.ports.letters import NO_SEQS, Fences
from headgate.telemetry import LogLine

log = structlog.get_logger()

T = TypeVar("T")
_Change = Callable[[apsw.Connection], Any]
"""Changes something in a transaction that is open, or raises Fenced before it does."""

CALL_TIMEOUT_S = 5.0
BUSY_TIMEOUT_MS = 3_000
"""Below the timeout of a call, so that a lock is told from a slow disk."""
SHARING_MAX = 64
"""Changes that share a transaction."""
IDS_MAX = 1_000
"""Letters that one statement changes, so that no lane waits long for another's bulk change."""
VACUUM_PAGES = 1_024


class EmbeddedLetterStore:
    """Implements ports.letters.LetterStore."""

    def __init__(self, folder: DataFolder, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._folder = folder
        self._path = folder.letters_file
        self._timeout_s = timeout_s
        self._connection: apsw.Connection | None = None
        self._files: OpenFiles | None = None
        self._ways: Sequence[str] = BY_INDEX
        """How to look for what is parked."""
        self._compared_s = -math.inf
        self._closed = False
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="letters")
        self._waiting: deque[tuple[_Change, Future[Any]]] = deque()

    # --- lanes -----------------------------------------------------------------------------------

    async def claim(self, fences: Fences) -> dict[str, frozenset[PartitionRef]]:
        # Targets, which a gateway claims one by one, have no letters that an index could hide.
        is_due = time.monotonic() - self._compared_s >= COMPARED_EVERY_S
        if is_due and not all(map(is_target, fences)):
            self._ways = BY_INDEX
            if await self._read(contradicts_itself):
                await self._mended()
            self._compared_s = time.monotonic()
        await self._change(partial(letter_changes.claim, fences=fences))
        ways = self._ways

        def found(connection: apsw.Connection) -> dict[str, set[PartitionRef]]:
            behind: dict[str, set[PartitionRef]] = defaultdict(set)
            for ref in fences:
                for gateway_id in gateways_behind(connection, ref, ways=ways):
                    behind[gateway_id].add(ref)
            return behind

        behind = await self._read(found)  # which nobody else changes any more
        return {gateway_id: frozenset(refs) for gateway_id, refs in behind.items()}

    async def _mended(self) -> None:
        try:
            await self._change(mend)
        except StorageFailed as error:
            if isinstance(error.__cause__, apsw.BusyError | apsw.FullError | TimeoutError):
                raise  # it may well go another time
            log.error(LogLine.LETTERS_FAILED, error=error.message)
            self._ways = ANYHOW

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        if letters:
            await self._change(
                partial(letter_changes.put, letters=letters, fences=fences, now_ms=now_ms)
            )

    async def parked(
        self,
        gateway_id: str,
        refs: Iterable[PartitionRef],
        *,
        each: int,
        after_seqs: Mapping[PartitionRef, int] = NO_SEQS,
    ) -> list[Letter]:
        ways = self._ways
        wanted = [
            (ref.topic, ref.partition, gateway_id, after_seqs.get(ref, 0), each)
            for ref in sorted(set(refs))
        ]

        def rows(connection: apsw.Connection) -> list[Sequence[Any]]:
            return [row for one in wanted for row in parked_rows(connection, *one, ways=ways)]

        return [parked_letter(row, gateway_id) for row in await self._read(rows)]

    async def revived(
        self, refs: Iterable[PartitionRef], *, after_id: int, limit: int
    ) -> list[Letter]:
        wanted = sorted(set(refs))

        def rows(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            found: list[tuple[Any, ...]] = []
            for ref in wanted:
                values = (ref.topic, ref.partition, after_id, limit)
                found = sorted([*found, *connection.execute(REVIVED, values)])[:limit]
            return found

        return [shown(row) for row in await self._read(rows)]

    async def remove(self, letters: Sequence[Letter], fences: Fences) -> None:
        for some in _chunks(letters):
            await self._change(partial(letter_changes.remove, letters=some, fences=fences))

    async def bury(self, letters: Sequence[Letter], fences: Fences, *, now_ms: int) -> None:
        for some in _chunks(letters):
            await self._change(
                partial(letter_changes.bury, letters=some, fences=fences, now_ms=now_ms)
            )

    # --- operators -------------------------------------------------------------------------------

    async def find(
        self, query: LetterQuery, *, after_id: int = 0, limit: int = 100
    ) -> list[Letter]:
        where, values = conditions(query)
        statement = f"SELECT {SHOWN} FROM letters WHERE {where} AND id > ? ORDER BY id LIMIT ?"  # noqa: S608 - conditions are from here, values are bound
        rows = await self._rows(statement, (*values, after_id, limit))
        return [shown(row) for row in rows]

    async def count(self, query: LetterQuery) -> int:
        where, values = conditions(query)
        [(count,)] = await self._rows(f"SELECT count(*) FROM letters WHERE {where}", values)  # noqa: S608 - as above
        return int(count)

    async def counts(self) -> list[LetterCount]:
        rows = await self._rows(COUNTS, ())
        return [counted(row) for row in rows]

    async def revive(self, ids: Sequence[int], *, now_ms: int) -> list[int]:
        return await self._change_each(REVIVE, ids, now_ms)

    async def delete(self, ids: Sequence[int]) -> list[int]:
        deleted: list[int] = []
        for chunk in _id_chunks(ids):
            deleted += await self._change(partial(letter_changes.delete, ids=chunk))
        return deleted

    async def sweep(self, *, before_ms: int, limit: int) -> int:
        swept = 0
        while swept < limit:
            most = min(limit - swept, IDS_MAX)
            gone = len(await self._changed_ids(SWEEP, before_ms, most))
            swept += gone
            if gone < most:
                break
        if swept:
            await self._read(_give_back)
        return swept

    async def abandon(self, fences: Fences, *, limit: int) -> int:
        gone: int = await self._change(partial(letter_changes.abandon, fences=fences, limit=limit))
        return gone

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
            self._executor.shutdown(wait=False)

    # --- from the loop to the thread -------------------------------------------------------------

    async def _change_each(self, statement: str, ids: Sequence[int], *values: Any) -> list[int]:
        """Run `statement` for a bounded number of ids at a time; the ids that it returns."""
        changed: list[int] = []
        for chunk in _id_chunks(ids):
            changed += await self._changed_ids(statement, *values, chunk)
        return changed

    async def _changed_ids(self, statement: str, *values: Any) -> list[int]:
        def change(connection: apsw.Connection) -> list[int]:
            return sorted(id_ for (id_,) in connection.execute(statement, values))

        ids: list[int] = await self._change(change)
        return ids

    async def _change(self, change: _Change) -> Any:
        outcome: Future[Any] = Future()
        self._waiting.append((change, outcome))
        self._executor.submit(self._commit_waiting)
        return await self._in_time(asyncio.wrap_future(outcome))

    async def _rows(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return await self._read(lambda connection: connection.execute(statement, values).fetchall())

    async def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        def on_the_thread() -> T:
            with storage_errors(f"reading {self._path}"):
                return work(self._opened())

        loop = asyncio.get_running_loop()
        return await self._in_time(loop.run_in_executor(self._executor, on_the_thread))

    async def _in_time(self, outcome: asyncio.Future[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await outcome
        except TimeoutError as error:
            raise StorageFailed(
                f"{self._path} took longer than {self._timeout_s:g} s; check the disk"
            ) from error

    # --- on the thread ---------------------------------------------------------------------------

    def _commit_waiting(self) -> None:
        """Commit the changes that wait by now, as one transaction."""
        count = min(len(self._waiting), SHARING_MAX)
        changes = [self._waiting.popleft() for _ in range(count)]
        wanted = [(c, future) for c, future in changes if future.set_running_or_notify_cancel()]
        if not wanted:
            return
        try:
            outcomes = self._committed([change for change, _ in wanted])
        except Exception as error:  # noqa: BLE001  # handed to all callers
            for _, future in wanted:
                future.set_exception(error)
            return
        for (_, future), outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, Fenced):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _committed(self, changes: Sequence[_Change]) -> list[Any]:
        try:
            return self._commit(changes)
        except StorageFailed as error:
            if not is_about_an_index(error.__cause__):
                raise
        self._commit([mend])
        return self._commit(changes)

    def _commit(self, changes: Sequence[_Change]) -> list[Any]:
        what = f"writing {self._path}"
        try:
            connection = self._opened()
            with transaction(connection, what):
                outcomes = [_outcome(change, connection) for change in changes]
        except OutcomeUnknown as error:
            raise StorageFailed(error.message, **error.details) from error
        except apsw.Error as error:
            raise storage_failed(error, what) from error
        if path := self._changed():
            raise StorageFailed(f"{what} failed: {path} was deleted, moved or replaced")
        return outcomes

    def _opened(self) -> apsw.Connection:
        if self._changed():
            self._let_go()
        if self._connection is None:
            with storage_errors(f"opening {self._path}"):
                connection = connect(
                    self._path,
                    LETTERS_SCHEMA + LATER_LETTERS_SCHEMA,
                    busy_timeout_ms=BUSY_TIMEOUT_MS,
                )
                _add_fences(connection)
                self._files = OpenFiles(connection, self._path)
                self._connection = connection
        return self._connection

    def _changed(self) -> str:
        """The path of a file that isn't the one that was opened; empty when all are."""
        return "" if self._files is None else self._files.changed()

    def _let_go(self) -> None:
        assert self._connection is not None
        assert self._files is not None
        try:
            self._folder.check_there()
        except DataFolderError as error:
            raise StorageFailed(error.message, **error.details) from error
        with storage_errors(f"closing {self._path}"):
            let_go(self._connection, self._files)
        self._connection = self._files = None

    def _close(self) -> None:
        with contextlib.suppress(StorageFailed):
            if self._changed():
                self._let_go()
        if self._connection is not None:
            self._connection.close(True)
            self._connection = self._files = None


def _outcome(change: _Change, connection: apsw.Connection) -> Any:
    try:
        return change(connection)
    except Fenced as error:
        return error


def _add_fences(connection: apsw.Connection) -> None:
    """A file from before fences gets what it lacks; several processes may find it at once."""
    if not connection.execute(HAS_FENCES).fetchall():
        with transaction(connection, "adding fences to the letters"):
            connection.execute(LATER_LETTERS_SCHEMA)


def _chunks(letters: Sequence[Letter]) -> Iterable[Sequence[Letter]]:
    for start in range(0, len(letters), IDS_MAX):
        yield letters[start : start + IDS_MAX]


def _id_chunks(ids: Sequence[int]) -> Iterable[str]:
    for start in range(0, len(ids), IDS_MAX):
        yield msgspec.json.encode(ids[start : start + IDS_MAX]).decode()


def _give_back(connection: apsw.Connection) -> None:
    """Return a bounded number of free pages to the disk; the next letters need the others."""
    with contextlib.suppress(apsw.Error):
        connection.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
