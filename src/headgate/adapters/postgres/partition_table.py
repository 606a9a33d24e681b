"""One partition in PostgreSQL and the transactions on it.

Invariants: `seq` is dense from 1 and never restarts; an idempotency key is given one seq only; only
the highest epoch that ever opened the partition appends. Every transaction locks the partition's
row first, so these hold between processes, and the transaction that has the lock sees what became
of every write that was on its way before: also of those whose answer got lost. A server that failed
over or was restored may have forgotten some of what it told; then nothing is written until it is
opened again and moved on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from msgspec.structs import asdict
from psycopg.errors import UndefinedColumn, UndefinedTable

from headgate.adapters.log.appending import (
    TIME_MS,
    AppendRequest,
    Outcome,
    PartitionState,
    Row,
    check_fence,
    check_history,
    check_owner,
    place,
    store_changed,
    stored_positions,
    take_in,
)
from headgate.adapters.log.retention import DROP_BYTES, at_once, expired_prefix
from headgate.adapters.log.times import new_marks
from headgate.adapters.postgres.connections import Connections, Session
from headgate.adapters.postgres.schema import (
    FORMAT,
    INTAKE_KEY_COLUMNS,
    PartitionStatements,
    SchemaStatements,
)
from headgate.decide.portions import Portion
from headgate.errors import DataFolderError, StorageFailed, StoreChanged
from headgate.model.event import PartitionRef
from headgate.model.intake import IntakeMark
from headgate.ports.log import Extent, Retention, Taken

T = TypeVar("T")

DROP_ROWS = 5_000
"""What is dropped in one turn at most, however small."""
NUMBERS_TRIED = 1_000
"""For a new partition, one after the other, where tables of these numbers are there already."""


class PartitionTable:
    def __init__(self, connections: Connections, schema: SchemaStatements, ref: PartitionRef):
        self._connections = connections
        self._schema = schema
        self._ref = ref
        self._mine = {"topic": ref.topic, "partition": ref.partition}
        self._what = f"the write to partition {ref.partition} of {ref.topic}"
        self._found: PartitionStatements | None = None
        self._epoch: int | None = None
        self._given_out = 0
        """The highest head that was ever seen here; callers that were told of it may rely on it."""
        self._dropped = Portion(DROP_BYTES)
        self._has_intakes = False
        self._newest_mark_ms: int | None = None
        self._knows_marks = False
        """Is the newest mark of the index by time what is remembered of it here?"""

    async def open(self, epoch: int, version: int, *, sealed: bool) -> Extent:
        """Become the writer under `epoch`; from now on every lower one is refused."""

        async def work(session: Session) -> Extent:
            self._found = None
            statements = await self._statements(session) or await self._create(session)
            await self._bring_up(session, statements)
            lock = (statements.lock, self._mine)
            async with self._connections.transaction(session, self._what, lock) as [rows]:
                state, earliest = self._state(rows)
                check_fence(self._ref, state, mine=epoch)
                if state.epoch < epoch or state.version < version or state.sealed != sealed:
                    values = {**self._mine, "epoch": epoch, "version": version, "sealed": sealed}
                    await session.query(statements.open, values)
            return Extent(earliest, state.head)

        extent = await self._run(work)
        self._epoch = epoch
        self._saw(extent.head)
        return extent

    async def append(self, requests: Sequence[AppendRequest]) -> list[Outcome]:
        """Write all of `requests` in one transaction; an outcome for each, in order.

        Raises anything but a HeadgateError when values of one request can't be stored.
        """
        ids = [event.event_id.encode() for request in requests for event in request.events]

        async def work(session: Session) -> list[Outcome]:
            statements = await self._stored(session)
            queries = [(statements.lock, self._mine), (statements.known, {"ids": ids})]
            async with self._connections.transaction(session, self._what, *queries) as found:
                [rows, known] = found
                placed = place(self._ref, self._owned(rows), requests, _by_id(known))
                if placed.rows:
                    values = _columns(placed.rows) | self._mine
                    values |= {"head": placed.head, "size_bytes": placed.size_bytes}
                    values |= await self._marks(session, placed.rows)
                    await session.query(statements.write, values)
            self._knows_marks = True
            self._saw(placed.head)
            return placed.outcomes

        return await self._run(work, repeatable=False)

    async def take_in(self, mark: IntakeMark, request: AppendRequest) -> Taken:
        """Write what is new of a connector's batch, and how far it is, in one transaction."""
        schema, whose = self._schema, self._mine | {"connector": mark.connector.encode()}

        async def work(session: Session) -> Taken:
            statements = await self._stored(session)
            await self._with_intakes(session)
            lock, intakes = (statements.lock, self._mine), (schema.intakes, whose)
            async with self._connections.transaction(session, self._what, lock, intakes) as [
                rows,
                known,
            ]:
                stored = stored_positions(row[INTAKE_KEY_COLUMNS:] for row in known)
                taken = take_in(self._ref, self._owned(rows), stored, mark, request)
                if taken.rows:
                    values = _columns(taken.rows) | self._mine
                    values |= {"head": taken.head, "size_bytes": taken.size_bytes}
                    values |= await self._marks(session, taken.rows)
                    await session.query(statements.take_in, values)
                if taken.position not in stored:
                    values = whose | asdict(taken.position)
                    values["position"] = taken.position.position.encode()
                    values["snapshot"] = taken.position.snapshot.encode()
                    await session.query(schema.put_intake, values)
                if any(one.version < mark.forgets_below for one in stored):
                    values = whose | {"below": mark.forgets_below}
                    await session.query(schema.forget_intakes, values)
            self._knows_marks = True
            self._saw(taken.head)
            return taken.answer

        return await self._run(work, repeatable=False)

    async def _marks(self, session: Session, rows: Sequence[Row]) -> dict[str, Any]:
        """Where times begin in `rows`, which are being written. What is remembered of the marks
        counts again when they are for sure."""
        if not self._knows_marks:
            [(self._newest_mark_ms,)] = await session.query(self._schema.newest_mark, self._mine)
        self._knows_marks = False
        marks = new_marks(self._newest_mark_ms, [(row[TIME_MS], row[0]) for row in rows])
        if marks:
            self._newest_mark_ms = marks[-1][0]
        return {"mark_ms": [one[0] for one in marks], "mark_seq": [one[1] for one in marks]}

    async def _bring_up(self, session: Session, statements: PartitionStatements) -> None:
        """Its tables to the present format."""
        mine = (self._ref.topic, self._ref.partition)
        [(_, is_present)] = await session.query(self._schema.numbered, mine)
        if not is_present:
            lock = (self._schema.lock_creation, None)
            async with self._connections.transaction(session, self._what, lock):
                await session.script(self._schema.to_format_2)
                await session.script(statements.to_format_2)

    async def _with_intakes(self, session: Session) -> None:
        """The table that schemas from before there were connectors lack, and its column that those
        from before there were snapshots do."""
        if self._has_intakes:
            return
        [(exists,)] = await session.query(self._schema.has_snapshots)
        if not exists:
            lock = (self._schema.lock_creation, None)
            async with self._connections.transaction(session, self._what, lock):
                await session.script(self._schema.create_intakes)
        self._has_intakes = True

    async def find(self, event_ids: Sequence[str]) -> dict[str, int]:
        """The seqs of those that are stored; the lock waits for a commit that is on its way."""
        ids = [event_id.encode("utf-8", "surrogatepass") for event_id in event_ids]

        async def work(session: Session) -> dict[str, int]:
            statements = await self._statements(session)
            if statements is None and self._epoch is None:
                return {}
            if statements is None:
                raise self._gone()
            try:
                [rows, known] = await session.begin(
                    (statements.lock, self._mine), (statements.known, {"ids": ids})
                )
            finally:
                await session.roll_back()
            self._kept(self._state(rows)[0])
            return _by_id(known)

        return await self._run(work)

    async def move_on(self, from_head: int, to_head: int) -> Extent:
        async def work(session: Session) -> Extent:
            statements = await self._stored(session)
            lock = (statements.lock, self._mine)
            async with self._connections.transaction(session, self._what, lock) as [rows]:
                state, earliest = self._state(rows)
                check_owner(self._ref, state, mine=self._epoch)
                if state.head != from_head or to_head <= state.head:
                    return Extent(earliest, state.head)
                if earliest > state.head:
                    earliest = to_head + 1
                values = {**self._mine, "earliest": earliest, "head": to_head}
                await session.query(statements.move_on, values)
            return Extent(earliest, to_head)

        moved = await self._run(work)
        self._saw(moved.head)
        return moved

    async def extent(self) -> Extent:
        async def work(session: Session) -> Extent:
            rows = await session.query(self._schema.extent, (self._ref.topic, self._ref.partition))
            if not rows:
                raise self._gone()
            return Extent(*rows[0])

        return await self._run(work)

    async def drop_expired(
        self, retention: Retention, *, up_to_seq: int, ids_ms: int, now_ms: int
    ) -> bool:
        """Drop a bounded number of records and keys, and fewer after a failure: a turn has no more
        time than an append. True when there may be more to drop."""

        async def work(session: Session) -> bool:
            statements = await self._stored(session)
            lock = (statements.lock, self._mine)
            async with self._connections.transaction(session, self._what, lock) as [rows]:
                state, earliest = self._owned(rows), _row(rows)[1]
                values: dict[str, Any] = {"first": earliest, "last": up_to_seq, "limit": DROP_ROWS}
                found = await session.query(statements.front, values)
                front = at_once(found, self._dropped)
                count, freed_bytes = expired_prefix(
                    (_sizes(one) for one in front),
                    retention,
                    size_bytes=state.size_bytes,
                    now_ms=now_ms,
                )
                if count:
                    values = {"first": earliest, "last": front[count - 1][0]}
                    await session.query(statements.drop_front, values)
                    values |= {**self._mine, "freed_bytes": freed_bytes}
                    await session.query(statements.shrink, values)
                    await session.query(self._schema.forget_marks, values)
                [(forgotten,)] = await session.query(
                    statements.forget_ids, {"before_ms": now_ms - ids_ms, "limit": DROP_ROWS}
                )
            is_bounded = len(front) < len(found) or len(found) == DROP_ROWS
            return (is_bounded and count == len(front)) or forgotten == DROP_ROWS

        with self._dropped.tried():
            return await self._run(work)

    async def drop_records(self, epoch: int) -> None:
        """Forget records, keys, what connectors have reached, seal and version of a topic that was
        deleted under `epoch`, which is the partition's from now on; the head stays.

        What the store has lost already needs no dropping, but stays given out.
        """

        async def work(session: Session) -> None:
            self._found = None
            statements = await self._statements(session) or await self._create(session)
            await self._with_intakes(session)
            await self._bring_up(session, statements)
            lock = (statements.lock, self._mine)
            async with self._connections.transaction(session, self._what, lock) as [rows]:
                check_fence(self._ref, self._state(rows)[0], mine=epoch)
                await session.query(statements.empty)
                await session.query(self._schema.drop_intakes, self._mine)
                await session.query(self._schema.drop_marks, self._mine)
                values = {**self._mine, "epoch": epoch, "given_out": self._given_out}
                await session.query(statements.reset, values)

        await self._run(work)

    async def _run(self, work: Callable[[Session], Awaitable[T]], *, repeatable: bool = True) -> T:
        async def on_its_tables(session: Session) -> T:
            try:
                return await work(session)
            except (UndefinedTable, UndefinedColumn) as error:
                raise self._gone() from error

        return await self._connections.run(on_its_tables, what=self._what, repeatable=repeatable)

    async def _stored(self, session: Session) -> PartitionStatements:
        statements = await self._statements(session)
        if statements is None:
            raise self._gone()
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
            # An older version may have made the schema, or it was made for letters alone.
            await session.script(self._schema.to_format_2)
            statements = await self._numbered(session)
            await session.script(statements.create)
        self._found = statements
        return statements

    async def _numbered(self, session: Session) -> PartitionStatements:
        """With the number that the partition has, or a new one that no table has: those that a
        restore left over have lost their rows, and their numbers are given out again."""
        mine = (self._ref.topic, self._ref.partition)
        added = await session.query(self._schema.add, mine)
        [(number,)] = added or await session.query(self._schema.number, mine)
        for _ in range(NUMBERS_TRIED):
            statements = PartitionStatements(self._schema.schema, number)
            if not added or not (await session.query(statements.exists))[0][0]:
                return statements
            [(number,)] = await session.query(self._schema.renumber, mine)
        raise StorageFailed(
            f"the schema {self._schema.schema} in PostgreSQL has tables of partitions that it "
            f"doesn't know, up to number {number}; drop them, or restore the schema as a whole"
        )

    def _owned(self, rows: Sequence[Sequence[Any]]) -> PartitionState:
        """The row that was locked: this writer's, with all that was given out."""
        state, _ = self._state(rows)
        check_owner(self._ref, state, mine=self._epoch)
        return self._kept(state)

    def _kept(self, state: PartitionState) -> PartitionState:
        check_history(self._ref, state, given_out=self._given_out)
        self._given_out = state.head
        return state

    def _state(self, rows: Sequence[Sequence[Any]]) -> tuple[PartitionState, int]:
        if not rows:
            raise self._gone()
        return _row(rows)

    def _gone(self) -> StoreChanged:
        """The partition isn't where it was: the next call looks for it anew."""
        self._found = None
        self._has_intakes = self._knows_marks = False
        return store_changed(self._ref, "it isn't there any more, or its number is another's")

    def _saw(self, head: int) -> None:
        self._given_out = max(self._given_out, head)


def _row(rows: Sequence[Sequence[Any]]) -> tuple[PartitionState, int]:
    [(epoch, version, head, sealed, size_bytes, earliest)] = rows
    return PartitionState(epoch, version, head, sealed, size_bytes), earliest


def _sizes(row: Sequence[Any]) -> tuple[int, int, int, int]:
    seq, time_ms, document_bytes, earlier_bytes = row
    return seq, time_ms, document_bytes, earlier_bytes


def _by_id(rows: Sequence[Sequence[Any]]) -> dict[str, int]:
    return {event_id.decode(): seq for event_id, seq in rows}


def _columns(rows: Sequence[Row]) -> dict[str, Any]:
    (
        seq,
        version,
        event_id,
        key,
        collection,
        op,
        document,
        earlier,
        source,
        time_ms,
        headers,
        checksum,
    ) = zip(*rows, strict=True)
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
        "headers": list(headers),
        "checksum": list(checksum),
    }
