"""The tree that subscriptions hang in.

A node has tables; a table leads from a key to the entries that hang there. A few entries are simply
asked one by one; more of them become a node of their own, in which each hangs on its next index
key. So `operator == "SWR"`, which ten thousand subscriptions may have in common, leads on to the
thresholds of their altitudes, and a subscription that has its key to itself costs one lookup.

Invariant: nodes are immutable, and a changed copy shares all that didn't change. Entries that no
index key is left for stay at the node itself. How entries are spread decides what matching costs,
never what it answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, cast

from headgate.decide.filter.paths import Document, Path, Reader, follow
from headgate.decide.matching.index_keys import Table
from headgate.decide.matching.lookups import Lookup, lookups_of
from headgate.decide.matching.sharded import Sharded, SortedKeys
from headgate.decide.matching.tree_places import Entry

FEW = 8
"""Entries that are asked one by one rather than looked up further: one more node costs as much."""

Edits = dict[Table, dict[Hashable, tuple[list[Entry], list[Entry]]]]
"""Per table and key: the entries that leave, and those that come."""


class Buckets:
    """A table. `order` has its keys in order, where the table is searched by order."""

    __slots__ = ("by_key", "order")

    def __init__(self, by_key: Sharded[Hashable, Bucket], order: SortedKeys | None) -> None:
        self.by_key = by_key
        self.order = order

    @classmethod
    def empty(cls, table: Table) -> Buckets:
        is_sorted = table.kind in ("<", "<=", ">", ">=")
        return cls(Sharded(), SortedKeys() if is_sorted else None)

    def changed(
        self, depth: int, edits: Mapping[Hashable, tuple[list[Entry], list[Entry]]]
    ) -> Buckets:
        changes: dict[Hashable, Bucket | None] = {}
        gone, new = [], []
        for key, (leaving, coming) in edits.items():
            before = self.by_key.get(key)
            after = changes[key] = bucket_with(before, depth, leaving, coming)
            if before is None and after is not None:
                new.append(key)
            elif before is not None and after is None:
                gone.append(key)
        order = self.order and self.order.changed(gone=gone, new=new)
        return Buckets(self.by_key.changed(changes), order)


Fields = Mapping[str, tuple[tuple[Path, Reader | None, tuple[Lookup, ...]], ...]]
"""By the first name of their paths, so that a field the document doesn't have costs nothing.
Paths of one name need no reader."""


class Node:
    """`depth` index keys have been met by what hangs here."""

    __slots__ = ("_fields", "_tables", "depth", "stay")

    def __init__(
        self,
        depth: int,
        stay: Sharded[str, Entry],
        tables: Mapping[Table, Buckets],
        fields: Fields,
    ) -> None:
        self.depth = depth
        self.stay = stay
        self._tables = tables
        self._fields = fields

    @classmethod
    def empty(cls, depth: int = 0) -> Node:
        return cls(depth, Sharded(), {}, {})

    def is_empty(self) -> bool:
        return not self._tables and not self.stay.size

    def distinct(self, path: Path) -> int:
        """How many values of a field are told apart here."""
        buckets = self._tables.get(Table(path, "equal"))
        return 0 if buckets is None else buckets.by_key.size

    def find(self, document: Document, found: list[Any]) -> None:
        """Add the buckets where the document may meet the next index key of a subscription."""
        fields = self._fields
        if len(fields) > len(document):
            fields = {name: fields[name] for name in document if name in fields}
        for name, readers in fields.items():
            if name not in document:
                continue
            for _, read, lookups in readers:
                value = document[name] if read is None else read(document)
                for look in lookups:
                    look(value, found)

    def changed(self, *, leaving: Iterable[Entry], coming: Iterable[Entry]) -> Node:
        stay: dict[str, Entry | None] = {}
        edits: Edits = {}
        for side, entries in ((0, leaving), (1, coming)):
            for entry in entries:
                index_keys = entry.part.index_keys
                if self.depth == len(index_keys):
                    stay[entry.subscription.id] = entry if side else None
                    continue
                for table, key in index_keys[self.depth].spread(entry.constants):
                    of_table = edits.setdefault(table, {})
                    if key not in of_table:
                        of_table[key] = ([], [])
                    of_table[key][side].append(entry)
        return Node(
            self.depth, self.stay.changed(stay) if stay else self.stay, *self._tables_with(edits)
        )

    def _tables_with(self, edits: Edits) -> tuple[Mapping[Table, Buckets], Fields]:
        if not edits:
            return self._tables, self._fields
        tables = dict(self._tables)
        for table, of_table in edits.items():
            before = tables.pop(table, None) or Buckets.empty(table)
            after = before.changed(self.depth + 1, of_table)
            if after.by_key.size:
                tables[table] = after
        return tables, self._fields_with(tables, {table.path for table in edits})

    def _fields_with(self, tables: Mapping[Table, Buckets], paths: set[Path]) -> Fields:
        fields = dict(self._fields)
        of_path: dict[Path, dict[Table, Buckets]] = {}
        for table, buckets in tables.items():
            if table.path in paths:
                of_path.setdefault(table.path, {})[table] = buckets
        for path in paths:
            name = cast("str", path[0])
            readers = [one for one in fields.pop(name, ()) if one[0] != path]
            if path in of_path:
                read = follow(path) if len(path) > 1 else None
                readers.append((path, read, lookups_of(of_path[path])))
            if readers:
                fields[name] = tuple(readers)
        return fields


Bucket = Entry | tuple[Entry, ...] | Node


def bucket_with(
    before: Bucket | None, depth: int, leaving: list[Entry], coming: list[Entry]
) -> Bucket | None:
    if type(before) is Node:
        node = before.changed(leaving=leaving, coming=coming)
        return None if node.is_empty() else node
    entries: list[Entry] = []
    if before is not None:
        entries = [before] if type(before) is Entry else list(cast("tuple[Entry, ...]", before))
    if leaving:
        gone = {entry.subscription.id for entry in leaving}
        entries = [entry for entry in entries if entry.subscription.id not in gone]
    entries += coming
    if len(entries) > FEW:
        return Node.empty(depth).changed(leaving=(), coming=entries)
    if len(entries) > 1:
        return tuple(entries)
    return entries[0] if entries else None
