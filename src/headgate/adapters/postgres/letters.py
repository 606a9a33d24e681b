"""The letter store on PostgreSQL, next to the log, for lanes and coordinators of many machines.

Invariant: what a call returned for is committed. Every error is StorageFailed, whatever PostgreSQL
says, but for Fenced, and no transaction takes longer than `timeout_s` for its statements plus
`commit_timeout_s`; so what a call changes of letters that are there it changes in portions, each of
which stays done.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from headgate.adapters.letters import counted, parked_letter, shown
from headgate.adapters.postgres import letter_changes
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
from headgate.decide.portions import Portion, letter_bytes
from headgate.errors import DataFolderError, InvalidRequest, OutcomeUnknown, StorageFailed
from headgate.model.event import PartitionRef
from headgate.model.letters import Letter, LetterCount, LetterQuery, NewLetter
from headgate.ports.letters import NO_SEQS, Fences

T = TypeVar("T")
_Work = Callable[[Session], Awaitable[T]]

MAX_CONNECTIONS = 4
COUNTS_TIMEOUT_S = 0.8
"""Within the second that a status takes, so that it says what is wrong and not only that it is."""
IDS_MAX = 1_000
"""Letters that one transaction changes, so that no lane waits long for another's bulk change."""
WRITE_BYTES = 4 * 1024 * 1024
"""What one transaction writes of letters, about; much less than a server writes in its time."""
FORGET_BYTES = 64 * 1024 * 1024
"""What one transaction forgets, which is less work."""


class PostgresLetterStore:
    """Implements ports.letters.LetterStore. Belongs to the event loop that it's used on."""

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        max_connections: int = MAX_CONNECTIONS,
        timeout_s: float = TIMEOUT_S,
        commit_timeout_s: float = COMMIT_TIMEOUT_S,
    ) -> None:
        check_dsn(dsn)
        self._schema = SchemaStatements(schema)
        self._letters = LetterStatements(schema)
        self._connections = Connections(
            dsn, limit=max_connections, timeout_s=timeout_s, commit_timeout_s=commit_timeout_s
        )
        self._ready = False
        self._written, self._forgotten = Portion(WRITE_BYTES), Portion(FORGET_BYTES)

    # --- lanes -----------------------------------------------------------------------------------

    async def claim(self, fences: Fences) -> dict[str, frozenset[PartitionRef]]:
        return await self._transact(partial(letter_changes.claim, fences=fences))

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        if letters:
            await self._transact(
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
        wanted = sorted(set(refs))
        values = {
            **letter_changes.asked(wanted),
            "after_seqs": [after_seqs.get(ref, 0) for ref in wanted],
            "gateway_id": gateway_id,
            "each": each,
        }
        rows = await self._rows(self._letters.parked, values)
        return [parked_letter(row, gateway_id) for row in rows]

    async def revived(
        self, refs: Iterable[PartitionRef], *, after_id: int, limit: int
    ) -> list[Letter]:
        values = {**letter_changes.asked(refs), "after_id": after_id, "limit": limit}
        return [shown(row) for row in await self._rows(self._letters.revived, values)]

    async def remove(self, letters: Sequence[Letter], fences: Fences) -> None:
        await self._in_portions(
            partial(letter_changes.remove, fences=fences), letters, portion=self._forgotten
        )

    async def bury(self, letters: Sequence[Letter], fences: Fences, *, now_ms: int) -> None:
        await self._in_portions(
            partial(letter_changes.bury, fences=fences, now_ms=now_ms),
            letters,
            portion=self._written,
        )

    # --- operators -------------------------------------------------------------------------------

    async def find(
        self, query: LetterQuery, *, after_id: int = 0, limit: int = 100
    ) -> list[Letter]:
        statement, values = self._letters.find(query)
        rows = await self._rows(statement, {**values, "after_id": after_id, "limit": limit})
        return [shown(row) for row in rows]

    async def count(self, query: LetterQuery) -> int:
        [(count,)] = await self._rows(*self._letters.count(query))
        return int(count)

    async def counts(self) -> list[LetterCount]:
        rows = await self._rows(self._letters.counts, None, within_s=COUNTS_TIMEOUT_S)
        return [counted(row) for row in rows]

    async def revive(self, ids: Sequence[int], *, now_ms: int) -> list[int]:
        revived: list[int] = []
        for chunk in _chunks(ids):
            values = {"ids": chunk, "now_ms": now_ms}
            revived += await self._change(self._letters.revive, values, repeatable=False)
        return revived

    async def delete(self, ids: Sequence[int]) -> list[int]:
        deleted: list[int] = []
        statements = self._letters
        for chunk in _chunks(ids):
            while gone := await self._forget(
                statements.dead, statements.delete, {"ids": chunk}, repeatable=False
            ):
                deleted += gone
            damaged = partial(letter_changes.delete_damaged, ids=chunk)
            deleted += await self._transact(damaged, repeatable=False)
        return sorted(deleted)

    async def sweep(self, *, before_ms: int, limit: int) -> int:
        values = {"before_ms": before_ms, "limit": min(limit, IDS_MAX)}
        return len(await self._forget(self._letters.old, self._letters.sweep, values))

    async def abandon(self, fences: Fences, *, limit: int) -> int:
        with self._forgotten.tried():
            gone = await self._transact(
                partial(
                    letter_changes.abandon,
                    portion=self._forgotten,
                    fences=fences,
                    limit=min(limit, IDS_MAX),
                )
            )
        return len(gone)

    async def close(self) -> None:
        await self._connections.close()

    # --- transactions ----------------------------------------------------------------------------

    async def _transact(
        self, work: Callable[[Session, LetterStatements], Awaitable[T]], *, repeatable: bool = True
    ) -> T:
        """All of `work` or nothing of it.

        What must not be done twice without knowing isn't tried again once its COMMIT was sent.
        """
        what = "writing letters"

        async def transacted(session: Session) -> T:
            async with self._connections.transaction(session, what):
                return await work(session, self._letters)

        return await self._run(transacted, what=what, repeatable=repeatable)

    async def _in_portions(
        self,
        change: Callable[..., Awaitable[None]],
        letters: Sequence[Letter],
        *,
        portion: Portion,
    ) -> None:
        """One transaction after the other, each with as many as fit."""
        left = letters
        while left:
            count = portion.fits(letter_bytes(one.delivery) for one in left[:IDS_MAX])
            with portion.tried():
                await self._transact(partial(change, letters=left[:count]))
            left = left[count:]

    async def _forget(
        self, found: Query, gone: Query, values: Mapping[str, Any], *, repeatable: bool = True
    ) -> list[int]:
        async def work(session: Session, _: LetterStatements) -> list[int]:
            return await letter_changes.forget(
                session, found, gone, portion=self._forgotten, values=values
            )

        with self._forgotten.tried():
            return await self._transact(work, repeatable=repeatable)

    async def _change(self, statement: Query, values: Any, *, repeatable: bool = True) -> list[int]:
        """The ids that `statement` returns, in their order."""

        async def work(session: Session, _: LetterStatements) -> list[int]:
            return sorted(id_ for (id_,) in await session.query(statement, values))

        return await self._transact(work, repeatable=repeatable)

    async def _rows(
        self, statement: Query, values: Any, *, within_s: float = math.inf
    ) -> list[tuple[Any, ...]]:
        return await self._run(
            lambda session: session.query(statement, values),
            what="reading letters",
            within_s=within_s,
        )

    async def _run(
        self, work: _Work[T], *, what: str, repeatable: bool = True, within_s: float = math.inf
    ) -> T:
        async def prepared(session: Session) -> T:
            if not self._ready:
                await self._prepare(session)
            return await work(session)

        try:
            return await self._connections.run(
                prepared, what=what, repeatable=repeatable, within_s=within_s
            )
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


def _chunks(items: Sequence[T]) -> Iterable[list[T]]:
    for start in range(0, len(items), IDS_MAX):
        yield list(items[start : start + IDS_MAX])
