"""The letter store on PostgreSQL, next to the log, for lanes and coordinators of many machines.

Invariant: what a call returned for is committed. Every error is StorageFailed, whatever PostgreSQL
says, and no call takes longer than `timeout_s` for its statements plus `commit_timeout_s`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from headgate.adapters.letters import decoded, encoded, printable
from headgate.adapters.postgres.connections import (
    COMMIT_TIMEOUT_S,
    TIMEOUT_S,
    Connections,
    Query,
    Session,
    check_dsn,
)
from headgate.adapters.postgres.letter_table import LetterStatements
from headgate.adapters.postgres.schema import DEFAULT_SCHEMA, FORMAT, SchemaStatements
from headgate.errors import DataFolderError, InvalidRequest, OutcomeUnknown, StorageFailed
from headgate.model.event import PartitionRef
from headgate.model.letters import Letter, LetterCount, LetterQuery, LetterReason, NewLetter

T = TypeVar("T")
_Work = Callable[[Session], Awaitable[T]]

MAX_CONNECTIONS = 4
IDS_MAX = 1_000
"""Letters that one transaction changes, so that no lane waits long for another's bulk change."""


class PostgresLetterStore:
    """Implements ports.letters.LetterStore. Belongs to the event loop that it's used on."""

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        timeout_s: float = TIMEOUT_S,
        commit_timeout_s: float = COMMIT_TIMEOUT_S,
    ) -> None:
        check_dsn(dsn)
        self._schema = SchemaStatements(schema)
        self._letters = LetterStatements(schema)
        self._connections = Connections(
            dsn, limit=MAX_CONNECTIONS, timeout_s=timeout_s, commit_timeout_s=commit_timeout_s
        )
        self._ready = False

    # --- lanes -----------------------------------------------------------------------------------

    async def put(self, letters: Sequence[NewLetter], *, now_ms: int) -> None:
        if letters:
            # In one order for everybody: who inserts the same letters waits, but not in a circle.
            ordered = sorted(letters, key=_place)
            await self._change((self._letters.put, _columns(ordered, now_ms)))

    async def behind(self, refs: Iterable[PartitionRef]) -> dict[str, frozenset[PartitionRef]]:
        found: dict[str, set[PartitionRef]] = defaultdict(set)
        values = {**_asked(refs), "redelivery": False}
        for topic, partition, gateway_id in await self._rows(self._letters.behind, values):
            found[gateway_id].add(PartitionRef(topic, partition))
        return {gateway_id: frozenset(behind) for gateway_id, behind in found.items()}

    async def revived(self, refs: Iterable[PartitionRef]) -> frozenset[str]:
        values = {**_asked(refs), "redelivery": True}
        rows = await self._rows(self._letters.behind, values)
        return frozenset(gateway_id for _, _, gateway_id in rows)

    async def parked(
        self, gateway_id: str, refs: Iterable[PartitionRef], *, limit: int
    ) -> list[Letter]:
        values = {**_asked(refs), "gateway_id": gateway_id, "limit": limit}
        return [_letter(row) for row in await self._rows(self._letters.parked, values)]

    async def remove(self, ids: Sequence[int]) -> None:
        for chunk in _chunks(ids):
            await self._change((self._letters.remove, (chunk,)))

    async def bury(
        self, ids: Sequence[int], reason: LetterReason, *, attempts: int, error: str, now_ms: int
    ) -> None:
        values = {
            "reason": reason,
            "attempts": attempts,
            "error": printable(error),
            "now_ms": now_ms,
        }
        for chunk in _chunks(ids):
            await self._change(
                (self._letters.make_way_for_dead, {"ids": chunk}),
                (self._letters.bury, {**values, "ids": chunk}),
            )

    # --- operators -------------------------------------------------------------------------------

    async def find(
        self, query: LetterQuery, *, after_id: int = 0, limit: int = 100
    ) -> list[Letter]:
        statement, values = self._letters.find(query)
        rows = await self._rows(statement, {**values, "after_id": after_id, "limit": limit})
        return [_letter(row) for row in rows]

    async def count(self, query: LetterQuery) -> int:
        [(count,)] = await self._rows(*self._letters.count(query))
        return int(count)

    async def counts(self) -> list[LetterCount]:
        return [LetterCount(*row) for row in await self._rows(self._letters.counts, None)]

    async def revive(self, ids: Sequence[int], *, now_ms: int) -> list[int]:
        revived: list[int] = []
        for chunk in _chunks(ids):
            revived += await self._change(
                (self._letters.make_way_for_parked, {"ids": chunk}),
                (self._letters.revive, {"ids": chunk, "now_ms": now_ms}),
                repeatable=False,
            )
        return revived

    async def delete(self, ids: Sequence[int]) -> list[int]:
        deleted: list[int] = []
        for chunk in _chunks(ids):
            deleted += await self._change((self._letters.delete, (chunk,)), repeatable=False)
        return deleted

    async def sweep(self, *, before_ms: int, limit: int) -> int:
        swept = 0
        while swept < limit:
            most = min(limit - swept, IDS_MAX)
            gone = len(await self._change((self._letters.sweep, (before_ms, most))))
            swept += gone
            if gone < most:
                break
        return swept

    async def close(self) -> None:
        await self._connections.close()

    # --- transactions ----------------------------------------------------------------------------

    async def _change(self, *statements: tuple[Query, Any], repeatable: bool = True) -> list[int]:
        """All of `statements` or none; the ids that the last one returned.

        What must not be done twice without knowing isn't tried again once its COMMIT was sent.
        """

        async def work(session: Session) -> list[int]:
            changed: list[tuple[Any, ...]] = []
            async with self._connections.transaction(session, "writing letters"):
                for statement, values in statements:
                    changed = await session.query(statement, values)
            return sorted(id_ for (id_,) in changed)

        return await self._run(work, what="writing letters", repeatable=repeatable)

    async def _rows(self, statement: Query, values: Any) -> list[tuple[Any, ...]]:
        return await self._run(
            lambda session: session.query(statement, values), what="reading letters"
        )

    async def _run(self, work: _Work[T], *, what: str, repeatable: bool = True) -> T:
        async def prepared(session: Session) -> T:
            if not self._ready:
                await self._prepare(session)
            return await work(session)

        try:
            return await self._connections.run(prepared, what=what, repeatable=repeatable)
        except (OutcomeUnknown, InvalidRequest) as error:
            raise StorageFailed(error.message, **error.details) from error

    async def _prepare(self, session: Session) -> None:
        """Make the table where there is none."""
        [(exists,)] = await session.query(self._letters.exists)
        if not exists:
            queries = [(self._schema.lock_creation, None)]
            async with self._connections.transaction(session, "making the table", *queries):
                await session.script(self._schema.create)
                await session.script(self._letters.create)
        [(found,)] = await session.query(self._schema.format)
        if found > FORMAT:
            raise DataFolderError(
                f"the schema {self._schema.schema} in PostgreSQL was written by a newer Headgate "
                f"(format {found}; this one reads up to {FORMAT}); upgrade Headgate"
            )
        self._ready = True


def _place(letter: NewLetter) -> tuple[str, str, str, int, int, bool]:
    delivery = letter.delivery
    return (
        letter.state,
        letter.gateway_id,
        delivery.topic,
        delivery.partition,
        delivery.seq,
        delivery.redelivery,
    )


def _columns(letters: Sequence[NewLetter], now_ms: int) -> dict[str, Any]:
    deliveries = [letter.delivery for letter in letters]
    return {
        "gateway_id": [letter.gateway_id for letter in letters],
        "state": [letter.state for letter in letters],
        "reason": [letter.reason for letter in letters],
        "topic": [delivery.topic for delivery in deliveries],
        "partition": [delivery.partition for delivery in deliveries],
        "seq": [delivery.seq for delivery in deliveries],
        "key": [None if one.key is None else one.key.encode() for one in deliveries],
        "redelivery": [delivery.redelivery for delivery in deliveries],
        "attempts": [letter.attempts for letter in letters],
        "error": [printable(letter.error) for letter in letters],
        "at_ms": [now_ms] * len(letters),
        "delivery": [encoded(delivery) for delivery in deliveries],
    }


def _asked(refs: Iterable[PartitionRef]) -> dict[str, Any]:
    wanted = sorted(set(refs))
    return {
        "topics": [ref.topic for ref in wanted],
        "partitions": [ref.partition for ref in wanted],
    }


def _letter(row: Sequence[Any]) -> Letter:
    id_, gateway_id, state, reason, attempts, error, at_ms, redelivery, delivery = row
    return Letter(
        id=id_,
        gateway_id=gateway_id,
        state=state,
        reason=reason,
        delivery=decoded(delivery, redelivery=redelivery),
        attempts=attempts,
        error=error,
        at_ms=at_ms,
    )


def _chunks(ids: Sequence[int]) -> Iterable[list[int]]:
    for start in range(0, len(ids), IDS_MAX):
        yield list(ids[start : start + IDS_MAX])
