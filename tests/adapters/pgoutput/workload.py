"""Somebody who changes rows all the time, and a ledger that the database itself keeps of it: a
trigger writes down each change in its transaction, so it knows what was committed and nothing of
Headgate.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import psycopg

from headgate.decide.produce.placement import partition_of
from headgate.model.event import Event, Record

KEYS = 7
TABLE = "public.orders"
_SETUP = """
CREATE TABLE orders (id text PRIMARY KEY, n int);
CREATE TABLE ledger (number bigserial, op text, id text, n int);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO ledger (op, id, n) VALUES
    (lower(TG_OP), CASE TG_OP WHEN 'DELETE' THEN OLD.id ELSE NEW.id END,
     CASE TG_OP WHEN 'DELETE' THEN NULL ELSE NEW.n END);
  RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION note()
"""

Entry = tuple[str, str, int | None]


async def set_up(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(_SETUP)


async def shop(dsn: str, over: Callable[[], bool], *, pause_s: float = 0.005) -> None:
    """Goes on through what breaks its connection. Some transactions change a key twice."""
    number = 0
    while not over():
        try:
            connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        except psycopg.Error:
            await asyncio.sleep(0.05)
            continue
        try:
            while not over():
                number += 1
                key = f"k{number % KEYS}"
                async with connection.transaction():
                    if number % 5 == 0:
                        await connection.execute("DELETE FROM orders WHERE id = %s", (key,))
                    await connection.execute(
                        "INSERT INTO orders VALUES (%s, %s) "
                        "ON CONFLICT (id) DO UPDATE SET n = EXCLUDED.n",
                        (key, number),
                    )
                await asyncio.sleep(pause_s)
        except psycopg.Error:
            pass
        finally:
            await connection.close()


async def committed(dsn: str) -> dict[str, list[Entry]]:
    """By key, in the order of the commits: a row's lock keeps two transactions apart."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for op, key, n in await _rows(dsn, "SELECT op, id, n FROM ledger ORDER BY number"):
        found[key].append((op, key, n))
    return found


async def table(dsn: str) -> dict[str, dict[str, Any]]:
    rows = await _rows(dsn, "SELECT id, n FROM orders")
    return {key: {"id": key, "n": n} for key, n in rows}


async def _rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        return await (await connection.execute(query)).fetchall()


def entry(one: Event | Record) -> Entry:
    document = json.loads(one.document)
    return (one.op, one.key or "", None if one.op == "delete" else document["n"])


def by_key(found: Iterable[Event | Record]) -> dict[str, list[Entry]]:
    entries: dict[str, list[Entry]] = defaultdict(list)
    for one in found:
        entries[one.key or ""].append(entry(one))
    return entries


async def judge(dsn: str, records: Iterable[Record], counts: dict[int, int]) -> None:
    """Each change once, where its key belonged then, in the order of the commits, and the last of
    each key is what the table has."""
    mine = sorted(
        (one for one in records if one.op != "lost"), key=lambda one: (one.version, one.seq)
    )
    for one in mine:
        place = partition_of(one.key or "", collection=one.collection, count=counts[one.version])
        assert one.partition == place, f"{one} isn't where its key belongs"
    assert by_key(mine) == await committed(dsn)
    last = {one.key: one for one in mine if one.op != "delete"}
    gone = {one.key for one in mine} - set(await table(dsn))
    states = {key: json.loads(one.document) for key, one in last.items() if key not in gone}
    assert states == await table(dsn)
