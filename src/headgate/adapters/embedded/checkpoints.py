"""The embedded checkpoint store: one small SQLite file that several processes share.

Invariant: the fence is compared in the transaction that moves the position, so that between all
processes only the holder of the highest fence ever moves it. Never runs on the event loop: every
change waits for the disk, so a thread of its own does. Changes that wait together share a
transaction, in their order, and each still has its own outcome: a position that can't be read fails
only the calls that want it.
"""

from __future__ import annotations

import asyncio
import builtins
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import apsw
import msgspec

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.schema import CHECKPOINTS_SCHEMA, LATER_CHECKPOINT_COLUMNS
from headgate.adapters.embedded.sqlite import connect, storage_errors, transaction
from headgate.decide.lane.checkpoints import (
    Checkpoint,
    claimed,
    listed,
    moved,
    noted,
    put,
    stopped,
    wanted_ahead,
    wanted_back,
)
from headgate.errors import Fenced, NoPosition, StorageFailed
from headgate.model.event import Fence, PartitionRef
from headgate.model.groups import PREFIX, PREFIX_END
from headgate.model.position import Position, Tally, Tries

T = TypeVar("T")
_Change = Callable[[apsw.Connection], Checkpoint]
"""Claims, saves or resets in a transaction that is open; raises Fenced, or StorageFailed where what
is stored is no position, and has changed nothing then."""
_Refused = Fenced | StorageFailed

BUSY_TIMEOUT_MS = 4_000
_NAMES = (
    *("epoch", "window", "attempt", "settled", "tally", "redeliver_to", "skip_to", "tried"),
    *("stopped", "again_to", "back_to", "ahead_to", "claimant"),
)
_COLUMNS = ", ".join(_NAMES)
_STORED = ", ".join(f"iif(typeof({one}) = 'text', CAST({one} AS BLOB), {one})" for one in _NAMES)
"""Text as bytes: reading one that is none would fail for all that are read with it."""
_OF_TOPICS = f"""
SELECT topic, partition, {_STORED} FROM checkpoints WHERE topic < ?
UNION ALL SELECT topic, partition, {_STORED} FROM checkpoints WHERE topic >= ?
"""  # noqa: S608 - names from here
"""Two ranges of the key, around the positions of consumer groups."""
_OF_GROUP = f"""
SELECT topic, partition, {_STORED} FROM checkpoints WHERE topic >= ? AND topic < ?
"""  # noqa: S608 - names from here


class EmbeddedCheckpointStore:
    """Implements ports.checkpoints.CheckpointStore."""

    def __init__(self, folder: DataFolder) -> None:
        self._path = folder.checkpoints_file
        self._connection: apsw.Connection | None = None
        self._closed = False
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._waiting: deque[tuple[_Change, Future[Checkpoint]]] = deque()

    async def claim(
        self, ref: PartitionRef, fence: Fence, *, after: Collection[Fence] | None = None
    ) -> Position:
        held = await self._change(ref, lambda stored: claimed(stored, ref, fence, after=after))
        return held.position

    async def save(self, ref: PartitionRef, fence: Fence, settled: int, tally: Tally) -> None:
        await self._change(
            ref, lambda stored: moved(stored, ref, fence, settled=settled, tally=tally)
        )

    async def note_tries(self, ref: PartitionRef, fence: Fence, tried: Tries) -> None:
        await self._change(ref, lambda stored: noted(stored, ref, fence, tried=tried))

    async def stop(self, ref: PartitionRef, fence: Fence, why: str) -> None:
        await self._change(ref, lambda stored: stopped(stored, ref, fence, why))

    async def reset(
        self, ref: PartitionRef, fence: Fence, settled: int, *, resync: bool = False
    ) -> None:
        await self._change(
            ref, lambda stored: put(stored, ref, fence, settled=settled, resync=resync)
        )

    async def put_back(
        self, ref: PartitionRef, settled: int, until: int, *, instead: bool = False
    ) -> None:
        await self._change(ref, lambda stored: wanted_back(stored, settled, until, instead=instead))

    async def put_ahead(self, ref: PartitionRef, settled: int) -> None:
        await self._change(ref, lambda stored: wanted_ahead(stored, settled))

    async def of_group(self, group_id: str) -> dict[PartitionRef, Position]:
        return await self._run(partial(self._of_group, group_id))

    async def list(self) -> dict[PartitionRef, Position]:
        return await self._run(self._list)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._run(self._close)
            self._executor.shutdown(wait=False)

    async def _change(
        self, ref: PartitionRef, rule: Callable[[Checkpoint | None], Checkpoint]
    ) -> Checkpoint:
        outcome: Future[Checkpoint] = Future()
        self._waiting.append((lambda connection: _applied(connection, ref, rule), outcome))
        self._executor.submit(self._commit_waiting)
        return await asyncio.wrap_future(outcome)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    # --- on the thread ---------------------------------------------------------------------------

    def _commit_waiting(self) -> None:
        """Everything that waits by now, as one transaction; one that is refused changes nothing."""
        changes = [self._waiting.popleft() for _ in range(len(self._waiting))]
        wanted = [(change, future) for change, future in changes if _still_wanted(future)]
        outcomes: builtins.list[Checkpoint | _Refused] = []
        try:
            if wanted:
                connection = self._opened()
                with transaction(connection, "moving positions"):
                    outcomes = [_outcome(change, connection) for change, _ in wanted]
        except Exception as error:  # noqa: BLE001  # handed to all callers
            for _, future in wanted:
                future.set_exception(error)
            return
        for (_, future), outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, _Refused):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _of_group(self, group_id: str) -> dict[PartitionRef, Position]:
        with storage_errors("reading the positions of a group"):
            ends = f"{group_id}/", f"{group_id}0"  # what comes behind the slash
            found: builtins.list[tuple[Any, ...]] = (
                self._opened().execute(_OF_GROUP, ends).fetchall()
            )
        stored = [(PartitionRef(*row[:2]), row[2:]) for row in found]
        return {ref: listed(partial(_checkpoint, ref, row)) for ref, row in stored}

    def _list(self) -> dict[PartitionRef, Position]:
        with storage_errors("reading the positions"):
            found: builtins.list[tuple[Any, ...]] = (
                self._opened().execute(_OF_TOPICS, (PREFIX, PREFIX_END)).fetchall()
            )
        stored = [(PartitionRef(*row[:2]), row[2:]) for row in found]
        return {ref: listed(partial(_checkpoint, ref, row)) for ref, row in stored}

    def _opened(self) -> apsw.Connection:
        if self._connection is None:
            with storage_errors(f"opening {self._path}"):
                connection = connect(
                    self._path, CHECKPOINTS_SCHEMA, busy_timeout_ms=BUSY_TIMEOUT_MS
                )
                _add_later_columns(connection)
                self._connection = connection
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close(True)
            self._connection = None


def _applied(
    connection: apsw.Connection,
    ref: PartitionRef,
    rule: Callable[[Checkpoint | None], Checkpoint],
) -> Checkpoint:
    row = connection.execute(
        f"SELECT {_STORED} FROM checkpoints WHERE topic = ? AND partition = ?",  # noqa: S608 - names from here
        (ref.topic, ref.partition),
    ).fetchone()
    stored = None if row is None else _checkpoint(ref, row)
    new = rule(stored)
    if new != stored:
        connection.execute(
            f"INSERT OR REPLACE INTO checkpoints (topic, partition, {_COLUMNS}) "  # noqa: S608 - names from here
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (ref.topic, ref.partition, *_row(new)),
        )
    return new


def _checkpoint(ref: PartitionRef, row: tuple[Any, ...]) -> Checkpoint:
    found = dict(zip(_NAMES, row, strict=True))
    try:
        for name in ("tally", "tried"):
            found[name] = msgspec.json.decode(found[name])
        for name in ("stopped", "claimant"):
            found[name] = str(found[name], "utf-8")
        return msgspec.convert(found, Checkpoint)  # a column may hold anything
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError) as error:
        raise NoPosition(
            f"what is stored for {ref} is no position ({error}); delete its row of the table "
            "checkpoints to start over",
            topic=ref.topic,
            partition=ref.partition,
        ) from error


def _row(new: Checkpoint) -> tuple[Any, ...]:
    tally = msgspec.json.encode(new.tally).decode()
    tried = msgspec.json.encode(new.tried).decode()
    operators = (new.redeliver_to, new.skip_to, tried, new.stopped)
    behind = (new.again_to, new.back_to, new.ahead_to, new.claimant)
    return (*new.fence.numbers, new.settled, tally, *operators, *behind)


def _add_later_columns(connection: apsw.Connection) -> None:
    """A file of a former version gets what it lacks; several processes may find it at once."""
    if len(_lacking(connection)) == 0:
        return
    with transaction(connection, "adding to the positions"):
        for column in _lacking(connection):
            connection.execute(LATER_CHECKPOINT_COLUMNS[column])


def _lacking(connection: apsw.Connection) -> builtins.list[str]:
    found = connection.execute("SELECT name FROM pragma_table_info('checkpoints')")
    has = {name for (name,) in found}
    return [name for name in LATER_CHECKPOINT_COLUMNS if name not in has]


def _still_wanted(outcome: Future[Checkpoint]) -> bool:
    return outcome.set_running_or_notify_cancel()


def _outcome(change: _Change, connection: apsw.Connection) -> Checkpoint | _Refused:
    try:
        return change(connection)
    except (Fenced, StorageFailed) as error:
        return error
