"""The embedded checkpoint store: one small SQLite file that several processes share.

Invariant: the fence is compared in the transaction that moves the position, so that between all
processes only the holder of the highest fence ever moves it. Never runs on the event loop: every
change waits for the disk, so a thread of its own does. Changes that wait together share a
transaction, in their order, and each still has its own outcome.
"""

from __future__ import annotations

import asyncio
import builtins
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import apsw

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.schema import CHECKPOINTS_SCHEMA
from headgate.adapters.embedded.sqlite import connect, storage_errors, transaction
from headgate.decide.checkpoints import Checkpoint, claimed, moved
from headgate.errors import Fenced
from headgate.model.event import Fence, PartitionRef

T = TypeVar("T")
_Change = Callable[[apsw.Connection], int]
"""Claims or saves in a transaction that is open; returns the position, or raises Fenced."""

BUSY_TIMEOUT_MS = 5_000


class EmbeddedCheckpointStore:
    """Implements ports.checkpoints.CheckpointStore."""

    def __init__(self, folder: DataFolder) -> None:
        self._path = folder.checkpoints_file
        self._connection: apsw.Connection | None = None
        self._closed = False
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._waiting: deque[tuple[_Change, Future[int]]] = deque()

    async def claim(self, ref: PartitionRef, fence: Fence) -> int:
        return await self._change(lambda connection: self._claim(connection, ref, fence))

    async def save(self, ref: PartitionRef, fence: Fence, settled: int) -> None:
        await self._change(lambda connection: self._save(connection, ref, fence, settled))

    async def list(self) -> dict[PartitionRef, int]:
        return await self._run(self._list)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._run(self._close)
            self._executor.shutdown(wait=False)

    async def _change(self, change: _Change) -> int:
        outcome: Future[int] = Future()
        self._waiting.append((change, outcome))
        self._executor.submit(self._commit_waiting)
        return await asyncio.wrap_future(outcome)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    # --- on the thread ---------------------------------------------------------------------------

    def _commit_waiting(self) -> None:
        """Everything that waits by now, as one transaction; a Fenced one changes nothing."""
        changes = [self._waiting.popleft() for _ in range(len(self._waiting))]
        wanted = [(change, future) for change, future in changes if _still_wanted(future)]
        outcomes: builtins.list[int | Fenced] = []
        try:
            if wanted:
                connection = self._opened()
                with transaction(connection, "moving positions"):
                    outcomes = [_outcome(change, connection) for change, _ in wanted]
        except Exception as error:  # noqa: BLE001  # handed to everybody who waits
            for _, future in wanted:
                future.set_exception(error)
            return
        for (_, future), outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, Fenced):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _claim(self, connection: apsw.Connection, ref: PartitionRef, fence: Fence) -> int:
        stored = self._stored(connection, ref)
        new = claimed(stored, ref, fence)
        if new != stored:
            connection.execute(
                "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?)",
                (ref.topic, ref.partition, new.epoch, new.window, new.attempt, new.settled),
            )
        return new.settled

    def _save(
        self, connection: apsw.Connection, ref: PartitionRef, fence: Fence, settled: int
    ) -> int:
        stored = self._stored(connection, ref)
        new = moved(stored, ref, fence, settled=settled)
        if new != stored:
            connection.execute(
                "UPDATE checkpoints SET settled = ? WHERE topic = ? AND partition = ?",
                (new.settled, ref.topic, ref.partition),
            )
        return new.settled

    def _list(self) -> dict[PartitionRef, int]:
        with storage_errors("reading the positions"):
            found: builtins.list[tuple[Any, ...]] = (
                self._opened()
                .execute("SELECT topic, partition, settled FROM checkpoints")
                .fetchall()
            )
        return {PartitionRef(topic, partition): settled for topic, partition, settled in found}

    def _stored(self, connection: apsw.Connection, ref: PartitionRef) -> Checkpoint | None:
        row = connection.execute(
            "SELECT epoch, window, attempt, settled FROM checkpoints "
            "WHERE topic = ? AND partition = ?",
            (ref.topic, ref.partition),
        ).fetchone()
        return None if row is None else Checkpoint(*row)

    def _opened(self) -> apsw.Connection:
        if self._connection is None:
            with storage_errors(f"opening {self._path}"):
                self._connection = connect(
                    self._path, CHECKPOINTS_SCHEMA, busy_timeout_ms=BUSY_TIMEOUT_MS
                )
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close(True)
            self._connection = None


def _still_wanted(outcome: Future[int]) -> bool:
    return outcome.set_running_or_notify_cancel()


def _outcome(change: _Change, connection: apsw.Connection) -> int | Fenced:
    try:
        return change(connection)
    except Fenced as error:
        return error
