"""Leader election on one key of etcd, which lives as long as its leader's lease.

A candidate that finds the key absent takes a lease and creates the key with it, in a transaction
that holds only if the key is still absent. Its create revision is the leadership's revision: stores
compare it, so an overtaken leader can't write. One key, rather than etcd's own election service
with a key per candidate, because then there is one thing to compare, to watch and to look at with
etcdctl, and with two or three candidates nobody minds that all of them wake up when it goes.

Invariants: by its own clock a leader gives up before its lease can have ended, because it counts
from when it sent the last renewal that was granted. A watch only wakes a new look at the key, and
starts right behind the revision of the look before: nothing falls between them, whatever breaks
or is compacted. Every wait ends by itself within the lease's time, because a member that is cut
off keeps its watchers waiting in silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import aetcd
import grpc
import msgspec

from headgate.adapters.etcd.connection import EtcdConnection
from headgate.errors import StorageFailed
from headgate.model.leader import Leader
from headgate.tasks import Crew

LEAST_TTL_S = 4
"""Longer than etcd takes to replace a lost member of its own; etcd grants no less than 2 s."""
RENEWALS_PER_TTL = 3
PAUSE_S = 0.2
"""After a failure, before the next look."""
RESIGN_TIMEOUT_S = 2.0
"""Giving a lease back is a courtesy: without it the other candidates wait until it ends."""


def leader_key(connection: EtcdConnection) -> bytes:
    return connection.key("leader")


@dataclass(frozen=True, slots=True)
class _Look:
    """The leadership key as it was at `revision`; `found` is None when it was absent."""

    found: aetcd.KeyValue | None
    revision: int

    @property
    def create_revision(self) -> int:
        return 0 if self.found is None else int(self.found.create_revision)

    @property
    def leader(self) -> Leader | None:
        if self.found is None:
            return None
        try:
            return msgspec.json.decode(self.found.value, type=Leader)
        except msgspec.MsgspecError:
            return Leader(node_id="")  # a leader holds the key, but can't be reached


async def _look(client: aetcd.Client, key: bytes) -> _Look:
    # As a range, because a single key that is absent comes without a revision.
    answer: aetcd.GetRange = await client.get_range(key, key + b"\0")
    return _Look(next(iter(answer), None), answer.header.revision)


class EtcdLeadership:
    """Implements ports.election.Leadership; renews its lease until it is lost or resigned."""

    def __init__(
        self,
        connection: EtcdConnection,
        *,
        lease_id: int,
        revision: int,
        ttl_s: float,
        granted_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._key = leader_key(connection)
        self._lease_id = lease_id
        self._revision = revision
        self._ttl_s = ttl_s
        self._ends_s = granted_s + ttl_s
        self._now_s = now_s
        self._over = asyncio.Event()
        self._crew = Crew("etcd")
        self._crew.start("leadership", self._renew())

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def held(self) -> bool:
        return not self._over.is_set() and self._now_s() < self._ends_s

    async def lost(self) -> None:
        await self._over.wait()

    async def resign(self) -> None:
        self._over.set()
        await self._crew.close()
        with contextlib.suppress(StorageFailed):
            await _revoke(self._connection, self._lease_id)

    async def _renew(self) -> None:
        try:
            while (left_s := self._ends_s - self._now_s()) > 0:
                await asyncio.sleep(min(left_s, self._ttl_s / RENEWALS_PER_TTL))
                with contextlib.suppress(StorageFailed):
                    # Tried until the lease ends; a leader that is cut off for so long has lost it.
                    if not await self._renewed(self._ends_s - self._now_s()):
                        return
        finally:
            self._over.set()

    async def _renewed(self, timeout_s: float) -> bool:
        """Whether it is this leader's for another while."""

        async def work(client: aetcd.Client) -> tuple[float, int, _Look]:
            sent_s = self._now_s()
            reply = await client.refresh_lease(self._lease_id)
            # The key may have been removed by hand, which leaves the lease as it is.
            return sent_s, int(reply.TTL), await _look(client, self._key)

        sent_s, granted_s, look = await self._connection.run(
            work, what="renewing the leadership", timeout_s=timeout_s
        )
        # Once `held` was false it stays so, even where etcd would have been more patient.
        if not self.held or granted_s <= 0 or look.create_revision != self._revision:
            return False
        self._ends_s = sent_s + granted_s
        return True


class EtcdElection:
    """Implements ports.election.Election; the connection stays open, for others to use."""

    def __init__(
        self,
        connection: EtcdConnection,
        *,
        ttl_s: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._key = leader_key(connection)
        self.ttl_s = ttl_s
        self._now_s = now_s
        self._reached = False
        self._leadership: EtcdLeadership | None = None
        self._lease_id: int | None = None
        """The last lease of this candidate's, which it may have left behind."""

    async def campaign(self, candidate: Leader) -> EtcdLeadership:
        while True:
            await self._until_absent()
            try:
                self._leadership = await self._take(candidate)
            except StorageFailed:
                await asyncio.sleep(PAUSE_S)
                continue
            if self._leadership is not None and self._leadership.held:
                return self._leadership

    async def observe(self) -> AsyncGenerator[Leader | None, None]:
        shown: int | None = None
        async with contextlib.aclosing(self._looks()) as looks:
            async for look in looks:
                revision = 0 if look.found is None else look.found.mod_revision
                if revision != shown:
                    shown = revision
                    yield look.leader

    async def _until_absent(self) -> None:
        async with contextlib.aclosing(self._looks()) as looks:
            async for look in looks:
                if look.found is None:
                    return
                if look.found.lease == self._lease_id and not self._holds():
                    # What this candidate left behind needn't be waited for.
                    with contextlib.suppress(StorageFailed):
                        await _revoke(self._connection, look.found.lease)

    def _holds(self) -> bool:
        return self._leadership is not None and self._leadership.held

    async def _take(self, candidate: Leader) -> EtcdLeadership | None:
        """The leadership, or None when another was faster."""
        sent_s = self._now_s()
        lease: aetcd.Lease = await self._connection.run(
            lambda client: client.lease(self.ttl_s), what="asking for a lease"
        )
        self._lease_id = lease.id
        revision = await self._connection.run(
            lambda client: self._create(client, lease.id, msgspec.json.encode(candidate)),
            what="taking the leadership",
        )
        if revision is None:
            await _revoke(self._connection, lease.id)
            return None
        return EtcdLeadership(
            self._connection,
            lease_id=lease.id,
            revision=revision,
            ttl_s=lease.ttl,
            granted_s=sent_s,
            now_s=self._now_s,
        )

    async def _create(self, client: aetcd.Client, lease_id: int, value: bytes) -> int | None:
        """The key's create revision if it is this candidate's, now or from a try before."""
        key, operations = self._key, client.transactions
        created, (answer,) = await client.transaction(
            compare=[operations.create(key) == 0],
            success=[operations.put(key, value, lease=lease_id)],
            failure=[operations.get(key)],
        )
        if created:
            return int(answer.response_put.header.revision)
        ((_, found),) = answer
        return int(found.create_revision) if found.lease == lease_id else None

    async def _looks(self) -> AsyncGenerator[_Look, None]:
        """Looks at the key, now and whenever it may have changed."""
        while True:
            try:
                look = await self._connection.run(
                    lambda client: _look(client, self._key),
                    what="looking for the leading coordinator",
                )
            except StorageFailed:
                if not self._reached:
                    raise
                await asyncio.sleep(PAUSE_S)
                continue
            self._reached = True
            yield look
            await self._until_changed(look.revision)

    async def _until_changed(self, revision: int) -> None:
        async with self._connection.client() as client:
            try:
                async with asyncio.timeout(self.ttl_s):
                    await _watch(client, self._key, revision + 1)
            except TimeoutError:
                pass  # nothing new, or a member that is cut off: the next look will tell
            except (aetcd.ClientError, grpc.aio.AioRpcError):
                await self._connection.leave(client)
                await asyncio.sleep(PAUSE_S)


async def _watch(client: aetcd.Client, key: bytes, revision: int) -> None:
    """Wait for an event of `key` from `revision` on, or for the watch to be over."""
    await client.connect()
    # A member without a leader ends the stream instead of keeping it in silence.
    metadata = (*(client.metadata or ()), ("hasleader", "true"))
    stream = aetcd.rpc.WatchStub(client.channel).Watch(metadata=metadata)
    try:
        create = aetcd.rpc.WatchCreateRequest(key=key, start_revision=revision)
        await stream.write(aetcd.rpc.WatchRequest(create_request=create))
        while (response := await stream.read()) is not grpc.aio.EOF:
            # Cancelled is what a watch from a compacted revision gets.
            if response.events or response.canceled:
                return
    finally:
        stream.cancel()


async def _revoke(connection: EtcdConnection, lease_id: int) -> None:
    """Raises StorageFailed, also for a lease that has ended."""
    await connection.run(
        lambda client: client.revoke_lease(lease_id),
        what="giving a lease back",
        timeout_s=RESIGN_TIMEOUT_S,
    )
