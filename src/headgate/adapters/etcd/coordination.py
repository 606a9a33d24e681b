"""The coordinator's state in etcd: one key per element, and only what changed is written.

Every transaction compares the revisions of the keys it changes, and of one more: the writer's mark,
which every transaction sets to a name of its own. So a second writer is refused whatever it
changes, and a transaction whose answer got lost can be sent again: when it was carried out after
all, the mark that is found is its own. With an election, the leadership is compared too.

Invariants: nothing is written while the outcome of the write before it is open. A store that was
fenced stays so. A change too large for one transaction is written in the order of the fields, and
whatever part of it is there can be loaded.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import uuid4

import aetcd

from headgate.adapters.etcd.connection import EtcdConnection
from headgate.adapters.etcd.election import leader_key
from headgate.adapters.etcd.stored_elements import assembled, changed_elements
from headgate.errors import Fenced
from headgate.model.stored import StoredState
from headgate.ports.election import Leadership

FOLDER = "state"
WRITER = "state-writer"
CHANGES_PER_TRANSACTION = 126
"""etcd takes 128 comparisons: one for each changed key, the writer's mark and the leadership."""
BYTES_PER_TRANSACTION = 512 * 1024
"""Of names and values; etcd takes requests of 1.5 MiB, in which a name stands twice."""

Changes = Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class _Write:
    """One transaction, the same however often it is sent; `mark` tells it from every other one.

    `found` are the revisions that it builds on: of the keys it changes, and of the last mark.
    """

    mark: bytes
    changes: Changes
    found: Mapping[str, int]
    found_mark: int


class EtcdCoordinationStore:
    """Implements ports.coordination.CoordinationStore; closes the connection with itself.

    Without a leadership only the coordinator that loaded last may write: every other one is fenced.
    """

    def __init__(self, connection: EtcdConnection, leadership: Leadership | None = None) -> None:
        self._connection = connection
        self._leadership = leadership
        self._lock = asyncio.Lock()
        self._name = uuid4().hex
        self._marks = itertools.count(1)
        self._was_read = False
        self._values: dict[str, bytes] = {}
        """What etcd holds, by the names of the elements."""
        self._revisions: dict[str, int] = {}
        self._mark_revision = 0
        self._stored: StoredState | None = None
        """What `_values` make up, while that is known without assembling them."""
        self._open: _Write | None = None
        """A write that was sent, or may have been, and has no outcome yet."""

    async def load(self) -> StoredState:
        async with self._lock:
            await self._settle()
            await self._read()
            self._stored = assembled(self._values)
            return self._stored

    async def save(self, state: StoredState) -> None:
        async with self._lock:
            await self._settle()
            if not self._was_read:
                await self._read()
            before = self._stored or assembled(self._values)
            self._stored = None  # until all of it is written
            for changes in in_transactions(changed_elements(before, state)):
                self._open = self._next_write(changes)
                await self._settle()
            self._stored = state

    async def close(self) -> None:
        await self._connection.close()

    async def _read(self) -> None:
        folder = self._connection.key(FOLDER, "")

        async def work(client: aetcd.Client) -> tuple[int, aetcd.GetRange]:
            # The mark first: who writes between the two reads makes the next save fail, not pass.
            mark = await client.get(self._connection.key(WRITER))
            found = await client.get_prefix(folder)
            return 0 if mark is None else mark.mod_revision, found

        mark_revision, found = await self._connection.run(work, what="loading the cluster's state")
        self._values, self._revisions = {}, {}
        for kv in found.kvs:
            name = kv.key.removeprefix(folder).decode()
            self._values[name] = kv.value
            self._revisions[name] = kv.mod_revision
        self._mark_revision = mark_revision
        self._was_read = True

    def _next_write(self, changes: Changes) -> _Write:
        return _Write(
            mark=f"{self._name} {next(self._marks)}".encode(),
            changes=changes,
            found={name: self._revisions.get(name, 0) for name in changes},
            found_mark=self._mark_revision,
        )

    async def _settle(self) -> None:
        """Bring the open write, if there is one, to its end; raises Fenced for a former leader."""
        if self._leadership is not None and not self._leadership.held:
            raise Fenced("this coordinator doesn't lead any more; it must stop and campaign again")
        write = self._open
        if write is None:
            return
        revision = await self._connection.run(
            lambda client: self._commit(client, write), what="saving the cluster's state"
        )
        for name, value in write.changes.items():
            if value is None:
                self._values.pop(name, None)
                self._revisions.pop(name, None)
            else:
                self._values[name] = value
                self._revisions[name] = revision
        self._mark_revision = revision
        self._open = None

    async def _commit(self, client: aetcd.Client, write: _Write) -> int:
        """The revision of `write`, now or when it was carried out already; raises Fenced."""
        operations = client.transactions
        mark, leader = self._connection.key(WRITER), leader_key(self._connection)
        compare = [operations.mod(mark) == write.found_mark]
        if self._leadership is not None:
            compare.append(operations.create(leader) == self._leadership.revision)
        success = []
        for name, value in write.changes.items():
            key = self._connection.key(FOLDER, name)
            compare.append(operations.mod(key) == write.found[name])
            success.append(operations.delete(key) if value is None else operations.put(key, value))
        written, answers = await client.transaction(
            compare=compare,
            success=[*success, operations.put(mark, write.mark)],
            failure=[operations.get(mark), operations.get(leader)],
        )
        if written:
            return int(answers[-1].response_put.header.revision)
        marks, leaders = ([kv for _, kv in answer] for answer in answers)
        if marks and marks[0].value == write.mark:
            return int(marks[0].mod_revision)
        raise self._refused(leaders)

    def _refused(self, leaders: list[aetcd.Get]) -> Fenced:
        if self._leadership is not None and (
            not leaders or leaders[0].create_revision != self._leadership.revision
        ):
            return Fenced("another coordinator leads now; this one must stop and campaign again")
        return Fenced(
            "another process has written the cluster's state; see to it that no other coordinator "
            "uses the same etcd.prefix, then start this one again"
        )


def in_transactions(changes: Changes) -> Iterator[Changes]:
    """`changes`, in their order, in as few parts as etcd's limits allow."""
    part: dict[str, bytes | None] = {}
    size = 0
    for name, value in changes.items():
        weight = len(name) + len(value or b"")
        if part and (len(part) == CHANGES_PER_TRANSACTION or size + weight > BYTES_PER_TRANSACTION):
            yield part
            part, size = {}, 0
        part[name] = value
        size += weight
    if part:
        yield part
