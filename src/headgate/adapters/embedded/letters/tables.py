"""The table of the letter file, and every statement on it.

Per gateway a record has at most one parked letter in the order, and one dead letter per reason; two
partial indexes see to that, and the one of the parked letters also answers which gateways and
partitions have some without walking over them. `redelivery` marks what an operator wants to be sent
again, outside the order. Ids are never given out twice. Lists of ids are bound as JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.model.groups import PREFIX
from headgate.model.letters import LetterQuery

LETTERS_SCHEMA = """
CREATE TABLE letters (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    gateway_id TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    key TEXT,
    redelivery INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    error TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    delivery BLOB NOT NULL
);
CREATE INDEX dead_by_id ON letters (id) WHERE state = 'dead';
CREATE INDEX dead_by_time ON letters (at_ms) WHERE state = 'dead';
CREATE INDEX by_key ON letters (gateway_id, topic, key);
CREATE INDEX by_kind ON letters (state, gateway_id, topic, reason, at_ms);
"""
# What files from before fences lack, too.
LATER_LETTERS_SCHEMA = """
DROP INDEX IF EXISTS parked_in_order;
DROP INDEX IF EXISTS dead_once;
CREATE UNIQUE INDEX IF NOT EXISTS parked_once ON letters (topic, partition, gateway_id, seq)
    WHERE state = 'parked' AND redelivery = 0;
CREATE UNIQUE INDEX IF NOT EXISTS dead_once_per_reason
    ON letters (gateway_id, topic, partition, seq, reason) WHERE state = 'dead';
CREATE INDEX IF NOT EXISTS revived ON letters (topic, partition, id)
    WHERE state = 'parked' AND redelivery = 1;
CREATE TABLE IF NOT EXISTS fences (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    window INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
"""
HAS_FENCES = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'fences'"
FENCE = "SELECT epoch, window, attempt FROM fences WHERE topic = ? AND partition = ?"
ADMIT = """
INSERT OR REPLACE INTO fences (topic, partition, epoch, window, attempt) VALUES (?, ?, ?, ?, ?)
"""

# Texts as they are, damaged or not.
SHOWN = (
    "id, CAST(gateway_id AS BLOB), CAST(state AS BLOB), CAST(reason AS BLOB), attempts,"
    " CAST(error AS BLOB), at_ms, redelivery, delivery, CAST(topic AS BLOB), partition, seq"
)
PUT = """
INSERT INTO letters (gateway_id, state, reason, topic, partition, seq, key, redelivery, attempts,
                     error, at_ms, delivery)
VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING id
"""
# The letter that a new one is joined with.
THE_PARKED_ONE = """
SELECT id, CAST(reason AS BLOB), delivery FROM letters WHERE state = 'parked' AND redelivery = 0
    AND topic = ? AND partition = ? AND gateway_id = ? AND seq = ?
"""
THE_DEAD_ONE = """
SELECT id, CAST(reason AS BLOB), delivery FROM letters WHERE state = 'dead'
    AND topic = ? AND partition = ? AND gateway_id = ? AND seq = ? AND reason = ?
"""
# From one gateway to the next: DISTINCT would look at every letter.
GATEWAYS_BEHIND = """
WITH RECURSIVE found (gateway_id) AS (
    SELECT min(gateway_id) FROM letters {way}
    WHERE state = 'parked' AND redelivery = 0 AND topic = ?1 AND partition = ?2
    UNION ALL
    SELECT (
        SELECT min(gateway_id) FROM letters {way}
        WHERE state = 'parked' AND redelivery = 0 AND topic = ?1 AND partition = ?2
            AND gateway_id > found.gateway_id
    ) FROM found WHERE gateway_id IS NOT NULL
)
SELECT CAST(gateway_id AS BLOB) FROM found WHERE gateway_id IS NOT NULL
"""
# Where the index says that they are, and not what it says besides: each is read from its row.
PLACES = """
SELECT seq, id FROM letters {way}
WHERE state = 'parked' AND redelivery = 0 AND topic = ? AND partition = ? AND gateway_id = ?
    AND seq > ?
ORDER BY seq LIMIT ?
"""
THE_ROW = f"SELECT {SHOWN} FROM letters WHERE id = ?"  # noqa: S608 - names from here
THOSE = f"""
SELECT {SHOWN} FROM letters WHERE id IN (SELECT value FROM json_each(?))
"""  # noqa: S608 - names from here
REVIVED = f"""
SELECT {SHOWN} FROM letters
WHERE state = 'parked' AND redelivery = 1 AND topic = ? AND partition = ? AND id > ?
    AND gateway_id NOT GLOB '{PREFIX}*'
ORDER BY id LIMIT ?
"""  # noqa: S608 - names from here
REMOVE = "DELETE FROM letters WHERE id IN (SELECT value FROM json_each(?)) AND state = 'parked'"
STILL_PARKED = "SELECT delivery FROM letters WHERE id = ? AND state = 'parked'"
FORGET = "DELETE FROM letters WHERE id = ?"
BURY = """
UPDATE letters SET state = 'dead', reason = ?, attempts = ?, error = ?, at_ms = ?, delivery = ?
WHERE id = ?
"""
REVIVE = """
UPDATE letters SET state = 'parked', redelivery = 1, at_ms = ?
WHERE id IN (SELECT value FROM json_each(?)) AND state = 'dead' RETURNING id
"""
SWEEP = """
DELETE FROM letters WHERE id IN (
    SELECT id FROM letters WHERE state = 'dead' AND at_ms < ? ORDER BY at_ms LIMIT ?
) RETURNING id
"""
ABANDON = """
DELETE FROM letters WHERE id IN (
    SELECT id FROM letters WHERE (topic, partition) IN (
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?)
    ) LIMIT ?
) RETURNING id
"""
COUNTS = """
SELECT CAST(state AS BLOB), CAST(gateway_id AS BLOB), CAST(topic AS BLOB), CAST(reason AS BLOB),
    count(*), min(at_ms) FROM letters
GROUP BY state, gateway_id, topic, reason ORDER BY state, gateway_id, topic, reason
"""

# States are written out: only then does SQLite see that an index on one of them will do.
_STATES = {"parked": "state = 'parked'", "dead": "state = 'dead'", None: "true"}


def conditions(query: LetterQuery) -> tuple[str, tuple[Any, ...]]:
    """What stands behind WHERE, and the values for it."""
    found: list[tuple[str, Any]] = []
    if query.ids:
        ids = msgspec.json.encode(query.ids).decode()
        found.append(("id IN (SELECT value FROM json_each(?))", ids))
    for column, wanted in (
        ("gateway_id = ?", query.gateway_id),
        ("gateway_id GLOB ?", query.group and f"{PREFIX}*/{query.group}/*"),
        ("topic = ?", query.topic),
        ("partition = ?", query.partition),
        ("seq = ?", query.seq),
        ("key = ?", query.key),
        ("reason = ?", query.reason),
        ("at_ms < ?", query.before_ms),
        ("at_ms > ?", query.after_ms),
    ):
        if wanted is not None:
            found.append((column, wanted))
    where = " AND ".join([_STATES[query.state], *(column for column, _ in found)])
    return where, tuple(value for _, value in found)
