"""From the stream's messages to events with their positions: what is known on the way, and where it
stands.

Pure. Invariants: `position` only grows and covers exactly the events that were given out; what is
at or before `after` isn't given out again. A transaction is never held: each of its changes has its
place as it comes. A change that can't become an event raises before anything of it counts, so
it comes again in the same place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.adapters.pgoutput.identity import Position, Timelines, prefix_of
from headgate.adapters.pgoutput.messages import (
    OWN_PREFIX,
    Begin,
    Commit,
    Delete,
    Emitted,
    Insert,
    MalformedMessage,
    Message,
    Relation,
    Truncate,
    Update,
)
from headgate.adapters.pgoutput.rows import RowEvents, Table
from headgate.adapters.pgoutput.values import Converters, Numeric, TypeInfo
from headgate.errors import ChangeTooLarge
from headgate.model.event import Event

NOTES_MOST = 100_000
"""So many transactions are noted for the reader of rows."""
_VERBS: Mapping[type[object], str] = {Insert: "insert", Update: "update", Delete: "delete"}


class Needs(Exception):
    """The catalog must be asked before the stream can go on: for these types, and, where `key_of`
    says so, for the primary key of a table."""

    def __init__(self, relation: Relation, types: Sequence[int], *, key: bool) -> None:
        super().__init__(relation.name)
        self.relation = relation
        self.types = types
        self.key = key


class Decoding:
    """`messages` is the collection of what pg_logical_emit_message says; empty: left out."""

    def __init__(
        self,
        backend: str,
        timelines: Timelines,
        after: Position,
        *,
        messages: str = "",
        numeric: Numeric = "number",
    ) -> None:
        self._rows = RowEvents(backend)
        self._timelines = timelines
        self._messages = messages
        self.converters = Converters(numeric)
        self.told: set[int] | None = None
        """The transactions that were told since somebody wanted to know (None: nobody does)."""
        self._tables: dict[int, Table] = {}
        self._after = str(after)
        self._position = str(after)
        self._is_behind = True
        """Nothing new was seen yet: what comes may be had already."""
        self._prefix = ""
        """Within a transaction: what its positions begin with."""
        self._changes = 0
        """So many of the transaction were seen."""
        self.time_ms = 0

    @property
    def position(self) -> str:
        return self._position

    @property
    def is_within(self) -> bool:
        """In the middle of a transaction."""
        return bool(self._prefix)

    def take(self, message: Message) -> Sequence[Event]:
        """The events that it becomes. Raises ChangeTooLarge for a change that can't become one,
        Needs (call `learn`, then take it again), and MalformedMessage."""
        kind = type(message)
        if kind is Insert or kind is Update or kind is Delete:
            return self._change(message)  # type: ignore[arg-type]
        if isinstance(message, Begin):
            self._begin(message.commit_lsn)
            if self.told is not None:
                self.told.add(message.xid)
                if len(self.told) > NOTES_MOST:
                    self.told = None  # nobody has read rows for long; who does begins anew
            self.time_ms = message.time_ms
        elif isinstance(message, Commit):
            self._end(message.end_lsn)
        elif isinstance(message, Relation):
            self._describe(message)
        elif isinstance(message, Truncate):
            return self._truncate(message)
        elif isinstance(message, Emitted):
            return self._emitted(message)
        return ()

    def idle(self, lsn: int) -> None:
        """The server says that it has sent everything before `lsn`."""
        if not self._prefix:
            self._reach(str(self._timelines.at(lsn)))

    def learn(
        self, relation: Relation, types: Mapping[int, TypeInfo], key: Sequence[str] | None
    ) -> None:
        """What the catalog says about `Needs`; a type that it lacks goes by its name alone."""
        for oid, info in types.items():
            self.converters.learn(oid, info)
        self._tables[relation.oid] = Table(
            relation, _key_of(relation) if key is None else key, self.converters
        )

    # --- transactions ----------------------------------------------------------------------------

    def _begin(self, commit_lsn: int) -> None:
        timeline = self._timelines.of_change(commit_lsn)
        self._prefix = prefix_of(self._timelines.system, timeline, commit_lsn)
        self._changes = 0

    def _end(self, lsn: int) -> None:
        self._prefix = ""
        self._reach(str(self._timelines.at(lsn)))

    def _reach(self, position: str) -> None:
        self._position = max(self._position, position)

    def _places(self) -> tuple[str, str]:
        """The two positions of the next change."""
        if not self._prefix:
            raise MalformedMessage("a change came outside of a transaction")
        first = 2 * self._changes + 1
        return f"{self._prefix}{first:08x}", f"{self._prefix}{first + 1:08x}"

    def _given(self, events: list[Event]) -> Sequence[Event]:
        """`events`, but for those that are had already."""
        self._changes += 1
        if self._is_behind:
            events = [one for one in events if (one.source or "") > self._after]
            self._is_behind = not events
        if events:
            self._position = events[-1].source or ""
        return events

    # --- changes ---------------------------------------------------------------------------------

    def _change(self, message: Insert | Update | Delete) -> Sequence[Event]:
        table = self._tables.get(message.relation)
        if table is None:
            raise MalformedMessage("a change is of a table that wasn't described")
        at = self._places()
        if self._is_behind and at[1] <= self._after:
            self._changes += 1
            return ()
        try:
            if isinstance(message, Insert):
                events = self._rows.inserted(table, message, at)
            elif isinstance(message, Update):
                events = self._rows.updated(table, message, at)
            else:
                events = self._rows.deleted(table, message, at)
        except ValueError as error:
            what = f"{_VERBS[type(message)]} of {table.name}"
            raise ChangeTooLarge(
                f"the next change, {what}, can't become a record ({error}): mend that and reset "
                "the connector behind it, or skip it",
                position=at[1],
                what=what,
            ) from error
        return self._given(events)

    def _truncate(self, message: Truncate) -> Sequence[Event]:
        found: list[Event] = []
        for oid in message.relations:
            table = self._tables.get(oid)
            if table is None:
                raise MalformedMessage("a truncate is of a table that wasn't described")
            found += self._given([self._rows.truncated(table.name, self._places()[0])])
        return found

    def _emitted(self, message: Emitted) -> Sequence[Event]:
        if message.is_transactional:
            at = self._places()[0]
            if not self._messages or message.prefix == OWN_PREFIX:
                self._changes += 1
                return ()
            return self._given([self._rows.emitted(self._messages, message, at)])
        if not self._messages:
            return ()
        # Its LSN is where it ends, and where a transaction's commit may begin.
        self._begin(message.lsn - 1)
        found = self._given([self._rows.emitted(self._messages, message, self._places()[0])])
        self._prefix = ""
        return found

    def _describe(self, relation: Relation) -> None:
        oids = {column.type_oid for column in relation.columns}
        unknown = sorted(filter(self.converters.unknown, oids))
        needs_key = relation.identity == "f"
        if unknown or needs_key:
            raise Needs(relation, unknown, key=needs_key)
        self.learn(relation, {}, None)


def _key_of(relation: Relation) -> list[str]:
    return [column.name for column in relation.columns if column.is_key]
