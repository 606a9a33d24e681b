"""How the value of a field finds the buckets that may concern it.

A lookup is a function of the value that appends buckets. Invariant: it appends every bucket whose
key's condition the value meets, each at most once, and never fails, whatever the value is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from itertools import groupby
from typing import Any, Protocol, cast

from headgate.decide.filter.values import MAX_LISTED, Instant, instant_of, key_of
from headgate.decide.matching.index_keys import Of, Table, cell_scale, coordinate
from headgate.decide.matching.sharded import GROUP_BITS, Sharded, SortedKeys

Lookup = Callable[[object, list[Any]], None]


class Searched(Protocol):
    """What a lookup needs of a table."""

    @property
    def by_key(self) -> Sharded[Hashable, Any]: ...

    @property
    def order(self) -> SortedKeys | None: ...


def lookups_of(tables: Mapping[Table, Searched]) -> tuple[Lookup, ...]:
    """The lookups for all tables of one field; those that differ in nothing but level share one."""
    ordered = sorted(tables, key=lambda table: (table.kind, table.of, table.level))
    lookups = []
    for (kind, of), group in groupby(ordered, key=lambda table: (table.kind, table.of)):
        levels = {table.level: tables[table] for table in group}
        first = next(iter(levels.values()))
        if kind == "equal":
            lookups.append(_equal(first.by_key))
        elif kind in ("member", "contains"):
            lookups.append(_elements(first.by_key, also_in_texts=kind == "contains"))
        elif kind == "prefix":
            lookups.append(_prefixes({level: one.by_key for level, one in levels.items()}))
        elif kind == "within":
            lookups.append(_cells({level: one.by_key for level, one in levels.items()}, of))
        else:
            lookups.append(_thresholds(first.by_key, cast("SortedKeys", first.order), kind, of))
    return tuple(lookups)


def _equal(by_key: Sharded[Hashable, Any]) -> Lookup:
    groups, mask = by_key.groups, by_key.mask

    def look(value: object, found: list[Any]) -> None:
        kind = type(value)
        key: Hashable = value if kind is str or kind is int else key_of(value)
        # Sharded.get written out: most of the time of most records is spent here.
        number = hash(key)
        number = number ^ number >> 7 ^ number >> 15
        group = groups[number & mask]
        bucket = group[number >> GROUP_BITS & len(group) - 1].get(key)
        if bucket is not None:
            found.append(bucket)

    return look


def _elements(by_key: Sharded[Hashable, Any], *, also_in_texts: bool) -> Lookup:
    def look(value: object, found: list[Any]) -> None:
        if type(value) is list:
            if len(value) > MAX_LISTED:
                found.extend(by_key.values())  # all of them fail, unless something else is false
                return
            keys = {item if type(item) is str else key_of(item) for item in value}
        elif type(value) is dict and not also_in_texts:
            _names(by_key, value, found)
            return
        elif type(value) is str and also_in_texts:
            found.extend(by_key.values())
            return
        else:
            return
        for key in keys:
            bucket = by_key.get(key)
            if bucket is not None:
                found.append(bucket)

    return look


def _names(by_key: Sharded[Hashable, Any], names: Mapping[str, Any], found: list[Any]) -> None:
    """Whatever is fewer is gone through: an object may have a hundred thousand fields."""
    if by_key.size < len(names):
        found.extend(bucket for key, bucket in by_key.items() if key in names)
        return
    for name in names:
        bucket = by_key.get(name)
        if bucket is not None:
            found.append(bucket)


def _prefixes(by_length: Mapping[int, Sharded[Hashable, Any]]) -> Lookup:
    lengths = tuple(sorted(by_length.items()))

    def look(value: object, found: list[Any]) -> None:
        if type(value) is not str:
            return
        size = len(value)
        for length, by_key in lengths:
            if length > size:
                break
            bucket = by_key.get(value[:length])
            if bucket is not None:
                found.append(bucket)

    return look


def _cells(by_level: Mapping[int, Sharded[Hashable, Any]], of: Of) -> Lookup:
    levels = tuple((cell_scale(level), by_key) for level, by_key in by_level.items())

    def look(value: object, found: list[Any]) -> None:
        comparable = value
        if of == "instant":
            comparable = instant_of(value)
            if comparable is None:
                return
        elif type(value) is not int and type(value) is not float:
            return
        at = coordinate(comparable, of)
        for scale, by_key in levels:
            bucket = by_key.get(at * scale // 1.0)
            if bucket is not None:
                found.append(bucket)

    return look


def _thresholds(by_key: Sharded[Hashable, Any], order: SortedKeys, op: str, of: Of) -> Lookup:
    """A value is above the thresholds below it."""
    inclusive = op in ("<=", ">=")
    search = order.below if op in (">", ">=") else order.above

    def look(value: object, found: list[Any]) -> None:
        comparable: Any = value
        if of == "instant":
            instant: Instant | None = instant_of(value)
            if instant is None:
                return
            comparable = instant.ns
        elif of == "text":
            if type(value) is not str:
                return
        elif type(value) is not int and type(value) is not float:
            return
        found.extend([by_key.get(key) for key in search(comparable, inclusive=inclusive)])

    return look
