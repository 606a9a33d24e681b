"""What the catalog says of types and keys that the stream names by number alone.

The catalog is that of now, the stream's table as it was then: a column that was renamed since is
found by its place between those that were not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.adapters.pgoutput.database import Database
from headgate.adapters.pgoutput.messages import Relation
from headgate.adapters.pgoutput.values import TypeInfo

DEEPEST = 10
"""Domains over arrays of domains: so many levels of types are followed."""
_TYPES = """
SELECT t.oid::bigint, t.typname, t.typtype::text, t.typcategory::text, t.typelem::bigint,
  t.typbasetype::bigint,
  COALESCE(r.rngsubtype, 0)::bigint, COALESCE(m.rngtypid, 0)::bigint,
  COALESCE(e.typdelim, ',')::text
FROM pg_type t
LEFT JOIN pg_range r ON r.rngtypid = t.oid
LEFT JOIN pg_range m ON m.rngmultitypid = t.oid
LEFT JOIN pg_type e ON e.oid = t.typelem
WHERE t.oid = ANY(%s::oid[])
"""
_KEY = """
SELECT a.attname, i.indisprimary AND a.attnum = ANY(i.indkey), a.attisdropped
FROM pg_attribute a
LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = %s AND a.attnum > 0
ORDER BY a.attnum
"""


async def types(database: Database, oids: Iterable[int]) -> dict[int, TypeInfo]:
    """Those types and what they are made of; one that is gone is a text. Raises psycopg's
    errors."""
    found: dict[int, TypeInfo] = {}
    asked = set(oids)
    for _ in range(DEEPEST):
        if not asked:
            break
        found |= {oid: TypeInfo("") for oid in asked}
        for row in await database.rows(_TYPES, (sorted(asked),)):
            oid, name, kind, category, element, base, over, ranges, separator = row
            is_array = category == "A" and element != 0
            of = base or over or ranges or (element if is_array else 0)
            found[oid] = TypeInfo(name, kind, of, is_array, separator)
        asked = {one.of for one in found.values() if one.of} - found.keys()
    return found


async def primary_key(database: Database, relation: Relation) -> list[str]:
    """The columns of the primary key, by the names that `relation` has for them, in their order in
    the table; empty: there is none, or nobody can tell. Raises psycopg's errors."""
    rows = await database.rows(_KEY, (relation.oid,))
    return matched(
        [("" if is_dropped else name, bool(is_key)) for name, is_key, is_dropped in rows],
        [column.name for column in relation.columns],
    )


def matched(now: Sequence[tuple[str, bool]], then: Sequence[str]) -> list[str]:
    """The key's columns among those of `then`. `now` has all columns that the table ever had, in
    the same order, each with whether it is of the key; one that was dropped has no name."""
    found: list[str] = []
    at_now = at_then = 0
    names = [name for name, _ in now]
    # Between two columns that still have their names, the others keep their order.
    for end_now, end_then in [*_anchors(names, then), (len(now), len(then))]:
        between, before = now[at_now:end_now], then[at_then:end_then]
        if len(between) == len(before):
            found += [name for name, (_, is_key) in zip(before, between, strict=True) if is_key]
        elif any(is_key for _, is_key in between):
            return []
        if end_now < len(now) and now[end_now][1]:
            found.append(names[end_now])
        at_now, at_then = end_now + 1, end_then + 1
    return found


def _anchors(now: Sequence[str], then: Sequence[str]) -> list[tuple[int, int]]:
    places = [(now.index(name), at) for at, name in enumerate(then) if name in now]
    return places if places == sorted(places) else []
