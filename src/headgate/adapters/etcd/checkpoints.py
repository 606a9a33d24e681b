"""The checkpoint store in etcd: one key per topic and partition.

Invariant: every change is a transaction that holds only if the key is still at the revision that
was read, so that between all processes only the holder of the highest fence ever moves a position.
Never keeps a position in memory: each call reads what the cluster has agreed on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import aetcd
import msgspec

from headgate.adapters.etcd.connection import EtcdConnection
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
from headgate.errors import NoPosition
from headgate.model.event import Fence, PartitionRef
from headgate.model.groups import is_target
from headgate.model.position import Position, Tally, Tries

FOLDER = "checkpoints"
GROUPS_FOLDER = "group-checkpoints"
"""Of consumer groups: beside the others, so that those can be listed alone."""

Change = Callable[[Checkpoint | None], Checkpoint]
"""From what is stored to what shall be stored; raises Fenced."""


class EtcdCheckpointStore:
    """Implements ports.checkpoints.CheckpointStore; closes the connection with itself."""

    def __init__(self, connection: EtcdConnection) -> None:
        self._connection = connection

    async def claim(
        self, ref: PartitionRef, fence: Fence, *, after: Collection[Fence] | None = None
    ) -> Position:
        checkpoint = await self._change(
            ref, lambda stored: claimed(stored, ref, fence, after=after), what=f"claiming {ref}"
        )
        return checkpoint.position

    async def save(self, ref: PartitionRef, fence: Fence, settled: int, tally: Tally) -> None:
        await self._change(
            ref,
            lambda stored: moved(stored, ref, fence, settled=settled, tally=tally),
            what=f"saving the position of {ref}",
        )

    async def note_tries(self, ref: PartitionRef, fence: Fence, tried: Tries) -> None:
        await self._change(
            ref,
            lambda stored: noted(stored, ref, fence, tried=tried),
            what=f"noting what was tried of {ref}",
        )

    async def stop(self, ref: PartitionRef, fence: Fence, why: str) -> None:
        await self._change(
            ref, lambda stored: stopped(stored, ref, fence, why), what=f"stopping {ref}"
        )

    async def reset(
        self, ref: PartitionRef, fence: Fence, settled: int, *, resync: bool = False
    ) -> None:
        await self._change(
            ref,
            lambda stored: put(stored, ref, fence, settled=settled, resync=resync),
            what=f"resetting the position of {ref}",
        )

    async def put_back(
        self, ref: PartitionRef, settled: int, until: int, *, instead: bool = False
    ) -> None:
        await self._change(
            ref,
            lambda stored: wanted_back(stored, settled, until, instead=instead),
            what=f"putting back the position of {ref}",
        )

    async def put_ahead(self, ref: PartitionRef, settled: int) -> None:
        await self._change(
            ref,
            lambda stored: wanted_ahead(stored, settled),
            what=f"putting ahead the position of {ref}",
        )

    async def of_group(self, group_id: str) -> dict[PartitionRef, Position]:
        folder = self._connection.key(GROUPS_FOLDER, "")
        prefix = self._connection.key(GROUPS_FOLDER, group_id, "")
        found: aetcd.GetRange = await self._connection.run(
            lambda client: client.get_prefix(prefix), what="reading the positions of a group"
        )
        return {_ref(kv.key, folder): listed(partial(_decoded, kv)) for kv in found}

    async def list(self) -> dict[PartitionRef, Position]:
        folder = self._connection.key(FOLDER, "")
        found: aetcd.GetRange = await self._connection.run(
            lambda client: client.get_prefix(folder), what="reading the positions"
        )
        return {_ref(kv.key, folder): listed(partial(_decoded, kv)) for kv in found}

    async def close(self) -> None:
        await self._connection.close()

    async def _change(self, ref: PartitionRef, change: Change, *, what: str) -> Checkpoint:
        folder = GROUPS_FOLDER if is_target(ref) else FOLDER
        key = self._connection.key(folder, ref.topic, ref.partition)

        async def work(client: aetcd.Client) -> Checkpoint:
            stored: aetcd.KeyValue | None = await client.get(key)
            # Each turn but the last is one that another writer won. Time bounds them.
            while True:
                former = None if stored is None else _decoded(stored)
                new = change(former)
                # A claim that changes nothing is not written, so the read alone has to hold.
                if new == former:
                    return new
                revision = 0 if stored is None else stored.mod_revision
                written, found = await client.transaction(
                    compare=[client.transactions.mod(key) == revision],
                    success=[client.transactions.put(key, msgspec.json.encode(new))],
                    failure=[client.transactions.get(key)],
                )
                if written:
                    return new
                stored = next((kv for _, kv in found[0]), None)

        return await self._connection.run(work, what=what)


def _ref(key: bytes, folder: bytes) -> PartitionRef:
    topic, _, partition = key.removeprefix(folder).decode().rpartition("/")
    return PartitionRef(topic, int(partition))


def _decoded(found: aetcd.KeyValue) -> Checkpoint:
    try:
        return msgspec.json.decode(found.value, type=Checkpoint)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        key = found.key.decode(errors="replace")
        raise NoPosition(
            f"etcd's key {key} holds something that is no position; delete it to start over",
            key=key,
        ) from error
