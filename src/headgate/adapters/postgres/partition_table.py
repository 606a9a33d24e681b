"""One partition in PostgreSQL and the transactions on it.

Invariants: `seq` is dense from 1 and never restarts; an idempotency key is given one seq only; only
the highest epoch that ever opened the partition appends. Every transaction locks the partition's
row first, so these hold between processes, and whoever has the lock sees what became of every write
that was on its way before: also of those whose answer got lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.adapters.log.appending import (
    AppendRequest,
    Outcome,
    PartitionState,
    Row,
    check_owner,
    fenced,
    place,
)
from headgate.adapters.log.retention import expired_prefix
from headgate.adapters.postgres.connections import Connections, Session
from headgate.adapters.postgres.schema import FORMAT, PartitionStatements, SchemaStatements
from headgate.errors import DataFolderError
from headgate.model.event import PartitionRef
from headgate.ports.log import Extent, Retention

DROP_ROWS = 5_000
"""What is dropped in one turn: appends that come meanwhile wait for one turn."""


class PartitionTable:
    def __init__(self, connections: Connections, schema: SchemaStatements, ref: PartitionRef):
        self._connections = connections
        self._schema = schema
        self._ref = ref
        self._what = f"the write to partition {ref.partition} of {ref.topic}"
        self._found: PartitionStatements | None = None
        self._epoch: int | None = None

    async def open(self, epoch: int, version: int) -> Extent:
        """Become the writer under `epoch`; from now on every lower one is refused."""

        async def work(session: Session) -> Extent:
            statements = await self._statements(session) or await self._create(session)
            queries = [(statements.lock, None)]
            async with self._connections.transaction(session, self._what, *queries) as [[row]]:
                state, earliest = _state(row)
                if state.epoch > epoch:
                    raise fenced(self._ref, stored=state.epoch, mine=epoch)
                if state.epoch < epoch or state.version < version:
                    await session.query(statements.open, (epoch, version))
            return Extent(earliest, state.head)

        extent = await self._connections.run(work, what=self._what)
        self._epoch = epoch
        return extent

    async def append(self, requests: Sequence[AppendRequest]) -> list[Outcome]:
        """Write all of `requests` in one transaction; an outcome for each, in order.

        Raises anything but a HeadgateError when values of one request can't be stored.
        """
        ids = [event.event_id.encode() for request in requests for event in request.events]

        async def work(session: Session) -> list[Outcome]:
            statements = await self._stored(session)
            queries = [(statements.lock, None), (statements.known, (ids,))]
            async with self._connections.transaction(session, self._what, *queries) as found:
                [[row], known] = found
                placed = place(self._ref, self._owned(row), requests, _by_id(known))
                if placed.rows:
                    values = _columns(placed.rows)
                    values |= {"head": placed.head, "size_bytes": placed.size_bytes}
                    await session.query(statements.write, values)
            return placed.outcomes

        return await self._connections.run(work, what=self._what, repeatable=False)

    async def find(self, event_ids: Sequence[str]) -> dict[str, int]:
        """The seqs of those that are stored; the lock waits for a commit that is on its way."""
        ids = [event_id.encode("utf-8", "surrogatepass") for event_id in event_ids]

        async def work(session: Session) -> dict[str, int]:
            statements = await self._statements(session)
            if statements is None:
                return {}
            try:
                [_, known] = await session.begin(
                    (statements.lock, None), (statements.known, (ids,))
                )
            finally:
                await session.roll_back()
            return _by_id(known)

        return await self._connections.run(work, what=self._what)

    async def seal(self) -> int:
        async def work(session: Session) -> int:
            statements = await self._stored(session)
            queries = [(statements.lock, None)]
            async with self._connections.transaction(session, self._what, *queries) as [[row]]:
                head = self._owned(row).head
                await session.query(statements.seal)
            return head

        return await self._connections.run(work, what=self._what)

    async def unseal(self, version: int) -> None:
        async def work(session: Session) -> None:
            statements = await self._stored(session)
            queries = [(statements.lock, None)]
            async with self._connections.transaction(session, self._what, *queries) as [[row]]:
                self._owned(row)
                await session.query(statements.unseal, (version,))

        await self._connections.run(work, what=self._what)

    async def move_on(self, from_head: int, to_head: int) -> Extent:
        async def work(session: Session) -> Extent:
            statements = await self._stored(session)
            queries = [(statements.lock, None)]
            async with self._connections.transaction(session, self._what, *queries) as [[row]]:
                head, (_, earliest) = self._owned(row).head, _state(row)
                if head != from_head or to_head <= head:
                    return Extent(earliest, head)
                if earliest > head:
                    earliest = to_head + 1
                await session.query(statements.move_on, (earliest, to_head))
            return Extent(earliest, to_head)

        return await self._connections.run(work, what=self._what)

    async def extent(self) -> Extent:
        async def work(session: Session) -> Extent:
            [row] = await session.query(self._schema.extent, (self._ref.topic, self._ref.partition))
            return Extent(*row)

        return await self._connections.run(work, what=self._what)

    async def drop_expired(
        self, retention: Retention, *, up_to_seq: int, ids_ms: int, now_ms: int
    ) -> bool:
        """Drop a bounded number of records and keys; True when there may be more to drop."""

        async def work(session: Session) -> bool:
            statements = await self._stored(session)
            queries = [(statements.lock, None)]
            async with self._connections.transaction(session, self._what, *queries) as [[row]]:
                state, earliest = self._owned(row), _state(row)[1]
                front = await session.query(statements.front, (earliest, up_to_seq, DROP_ROWS))
                count, freed_bytes = expired_prefix(
                    (_sizes(one) for one in front),
                    retention,
                    size_bytes=state.size_bytes,
                    now_ms=now_ms,
                )
                if count:
                    last = front[count - 1][0]
                    await session.query(statements.drop_front, (earliest, last))
                    await session.query(statements.shrink, (last, freed_bytes))
                [(forgotten,)] = await session.query(
                    statements.forget_ids, (now_ms - ids_ms, DROP_ROWS)
                )
            return count == DROP_ROWS or forgotten == DROP_ROWS

        return await self._connections.run(work, what=self._what)

    async def drop_records(self) -> None:
        """Forget records, keys, seal and version of a deleted topic; head and epoch stay."""

        async def work(session: Session) -> None:
            statements = await self._statements(session)
            if statements is None:
                return
            queries = [(statements.lock, None)]
            async with self._connections.transaction(session, self._what, *queries) as [[row]]:
                if self._epoch is not None:
                    self._owned(row)
                await session.query(statements.empty)
                await session.query(statements.reset)

        await self._connections.run(work, what=self._what)

    async def _stored(self, session: Session) -> PartitionStatements:
        statements = await self._statements(session)
        if statements is None:
            raise fenced(self._ref, stored=0, mine=self._epoch)
        return statements

    async def _statements(self, session: Session) -> PartitionStatements | None:
        """The statements for this partition's tables; None while it has none."""
        if self._found is None:
            [(exists,)] = await session.query(self._schema.exists)
            if not exists:
                return None
            await self._check_format(session)
            rows = await session.query(self._schema.number, (self._ref.topic, self._ref.partition))
            if not rows:
                return None
            self._found = PartitionStatements(self._schema.schema, rows[0][0])
        return self._found

    async def _check_format(self, session: Session) -> None:
        [(found,)] = await session.query(self._schema.format)
        if found > FORMAT:
            raise DataFolderError(
                f"the schema {self._schema.schema} in PostgreSQL was written by a newer Headgate "
                f"(format {found}; this one reads up to {FORMAT}); upgrade Headgate"
            )

    async def _create(self, session: Session) -> PartitionStatements:
        [(exists,)] = await session.query(self._schema.exists)
        queries = [(self._schema.lock_creation, None)]
        async with self._connections.transaction(session, self._what, *queries):
            if not exists:
                await session.script(self._schema.create)
            mine = (self._ref.topic, self._ref.partition)
            await session.query(self._schema.add, mine)
            [(number,)] = await session.query(self._schema.number, mine)
            statements = PartitionStatements(self._schema.schema, number)
            await session.script(statements.create)
        self._found = statements
        return statements

    def _owned(self, row: Sequence[Any]) -> PartitionState:
        state, _ = _state(row)
        check_owner(self._ref, stored=state.epoch, mine=self._epoch)
        return state


def _state(row: Sequence[Any]) -> tuple[PartitionState, int]:
    epoch, version, head, sealed, size_bytes, earliest = row
    return PartitionState(epoch, version, head, sealed, size_bytes), earliest


def _sizes(row: Sequence[Any]) -> tuple[int, int, int, int]:
    seq, time_ms, document_bytes, earlier_bytes = row
    return seq, time_ms, document_bytes, earlier_bytes


def _by_id(rows: Sequence[Sequence[Any]]) -> dict[str, int]:
    return {event_id.decode(): seq for event_id, seq in rows}


def _columns(rows: Sequence[Row]) -> dict[str, Any]:
    seq, version, event_id, key, collection, op, document, earlier, source, time_ms = zip(
        *rows, strict=True
    )
    return {
        "seq": list(seq),
        "version": list(version),
        "event_id": [one.encode() for one in event_id],
        "key": [None if one is None else one.encode() for one in key],
        "collection": [one.encode() for one in collection],
        "op": list(op),
        "document": list(document),
        "earlier": list(earlier),
        "source": [None if one is None else one.encode() for one in source],
        "time_ms": list(time_ms),
    }
