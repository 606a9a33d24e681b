"""The table of the letters in PostgreSQL, and every statement on it.

A record has at most one dead letter per gateway, one parked letter in the order and one parked
redelivery outside of it; two partial indexes see to that. Whoever changes several letters locks
them in the order of their ids, so that nobody waits in a circle. Keys are stored as UTF-8 bytes:
PostgreSQL's text can't hold a zero, and found by their hash: an index can't hold a long one.
"""

from __future__ import annotations

from typing import Any

from psycopg import sql
from psycopg.sql import SQL, Composable, Composed, Identifier

from headgate.model.letters import LetterQuery

COLUMNS = SQL(
    "letters.id, letters.gateway_id, letters.state, letters.reason, letters.attempts,"
    " letters.error, letters.at_ms, letters.redelivery, letters.delivery"
)
SAME_RECORD = SQL(
    "one.gateway_id = other.gateway_id AND one.topic = other.topic"
    " AND one.partition = other.partition AND one.seq = other.seq"
)


class LetterStatements:
    """Statements on the letters of one schema."""

    def __init__(self, schema: str) -> None:
        table = Identifier(schema, "letters")
        self._names: dict[str, Composable] = {
            "letters": table,
            "columns": COLUMNS,
            "same_record": SAME_RECORD,
        }
        self.exists = SQL("SELECT to_regclass({}) IS NOT NULL").format(
            sql.Literal(table.as_string())
        )
        self.create = self._statement(
            "CREATE TABLE IF NOT EXISTS {letters} ("
            " id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
            ' gateway_id text COLLATE "C" NOT NULL, state text NOT NULL, reason text NOT NULL,'
            ' topic text COLLATE "C" NOT NULL, partition int NOT NULL, seq bigint NOT NULL,'
            " key bytea, redelivery boolean NOT NULL, attempts int NOT NULL, error text NOT NULL,"
            " at_ms bigint NOT NULL, delivery bytea NOT NULL);"
            "CREATE UNIQUE INDEX IF NOT EXISTS letters_parked_in_order ON {letters}"
            " (redelivery, topic, partition, gateway_id, seq) INCLUDE (id)"
            " WHERE state = 'parked';"
            "CREATE UNIQUE INDEX IF NOT EXISTS letters_dead_once ON {letters}"
            " (gateway_id, topic, partition, seq) WHERE state = 'dead';"
            "CREATE INDEX IF NOT EXISTS letters_dead_by_id ON {letters} (id)"
            " WHERE state = 'dead';"
            "CREATE INDEX IF NOT EXISTS letters_dead_by_time ON {letters} (at_ms)"
            " WHERE state = 'dead';"
            "CREATE INDEX IF NOT EXISTS letters_by_key ON {letters}"
            " (gateway_id, topic, md5(key));"
            "CREATE INDEX IF NOT EXISTS letters_by_kind ON {letters}"
            " (state, gateway_id, topic, reason, at_ms)"
        )
        self._for_lanes()
        self._for_operators()

    def _for_lanes(self) -> None:
        self.put = self._statement(
            "INSERT INTO {letters} (gateway_id, state, reason, topic, partition, seq, key,"
            " redelivery, attempts, error, at_ms, delivery) SELECT * FROM unnest("
            "%(gateway_id)b::text[], %(state)b::text[], %(reason)b::text[], %(topic)b::text[],"
            "%(partition)b::int4[], %(seq)b::int8[], %(key)b::bytea[], %(redelivery)b::bool[],"
            "%(attempts)b::int4[], %(error)b::text[], %(at_ms)b::int8[], %(delivery)b::bytea[])"
            " ON CONFLICT DO NOTHING"
        )
        # From one gateway to the next: DISTINCT would look at every letter.
        self.behind = self._statement(
            "SELECT asked.topic, asked.partition, behind.gateway_id"
            " FROM unnest(%(topics)b::text[], %(partitions)b::int4[]) AS asked (topic, partition)"
            " CROSS JOIN LATERAL (WITH RECURSIVE found (gateway_id) AS ("
            " SELECT min(gateway_id) FROM {letters} WHERE state = 'parked'"
            " AND redelivery = %(redelivery)s"
            " AND topic = asked.topic AND partition = asked.partition"
            " UNION ALL SELECT (SELECT min(gateway_id) FROM {letters}"
            " WHERE state = 'parked' AND redelivery = %(redelivery)s AND topic = asked.topic"
            " AND partition = asked.partition AND gateway_id > found.gateway_id)"
            " FROM found WHERE gateway_id IS NOT NULL)"
            " SELECT gateway_id FROM found WHERE gateway_id IS NOT NULL) AS behind"
        )
        self.parked = self._statement(
            "WITH chosen AS (SELECT found.*"
            " FROM unnest(%(topics)b::text[], %(partitions)b::int4[]) AS asked (topic, partition)"
            " CROSS JOIN (VALUES (true), (false)) AS kinds (redelivery)"
            " CROSS JOIN LATERAL (SELECT id, redelivery, topic, partition, seq FROM {letters}"
            " WHERE state = 'parked' AND redelivery = kinds.redelivery"
            " AND topic = asked.topic AND partition = asked.partition"
            " AND gateway_id = %(gateway_id)s ORDER BY seq LIMIT %(limit)s) AS found"
            " ORDER BY redelivery DESC, topic, partition, seq LIMIT %(limit)s)"
            " SELECT {columns} FROM chosen JOIN {letters} AS letters USING (id)"
            " ORDER BY chosen.redelivery DESC, chosen.topic, chosen.partition, chosen.seq"
        )
        self.remove = self._statement(
            "DELETE FROM {letters} WHERE id IN (SELECT id FROM {letters}"
            " WHERE id = ANY(%s) AND state = 'parked' ORDER BY id FOR UPDATE)"
        )
        # The later letter of a record stands for the earlier one of the same kind.
        self.make_way_for_dead = self._statement(
            "DELETE FROM {letters} AS one USING {letters} AS other"
            " WHERE other.id = ANY(%(ids)s) AND other.state = 'parked' AND {same_record}"
            " AND (one.state = 'dead' OR (one.id = ANY(%(ids)s) AND one.id < other.id"
            " AND one.state = 'parked'))"
        )
        self.bury = self._statement(
            "UPDATE {letters} SET state = 'dead', reason = %(reason)s, attempts = %(attempts)s,"
            " error = %(error)s, at_ms = %(now_ms)s WHERE id IN (SELECT id FROM {letters}"
            " WHERE id = ANY(%(ids)s) AND state = 'parked' ORDER BY id FOR UPDATE)"
        )

    def _for_operators(self) -> None:
        self.counts = self._statement(
            'SELECT state, gateway_id, topic, reason COLLATE "C", count(*), min(at_ms)'
            " FROM {letters} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"
        )
        self.make_way_for_parked = self._statement(
            "DELETE FROM {letters} AS one USING {letters} AS other"
            " WHERE other.id = ANY(%(ids)s) AND other.state = 'dead' AND {same_record}"
            " AND one.state = 'parked' AND one.redelivery"
        )
        self.revive = self._statement(
            "UPDATE {letters} SET state = 'parked', redelivery = true, at_ms = %(now_ms)s"
            " WHERE id IN (SELECT id FROM {letters}"
            " WHERE id = ANY(%(ids)s) AND state = 'dead' ORDER BY id FOR UPDATE) RETURNING id"
        )
        self.delete = self._statement(
            "DELETE FROM {letters} WHERE id IN (SELECT id FROM {letters}"
            " WHERE id = ANY(%s) AND state = 'dead' ORDER BY id FOR UPDATE) RETURNING id"
        )
        self.sweep = self._statement(
            "DELETE FROM {letters} WHERE id IN (SELECT id FROM {letters}"
            " WHERE state = 'dead' AND at_ms < %s ORDER BY at_ms LIMIT %s"
            " FOR UPDATE SKIP LOCKED) RETURNING id"
        )

    def find(self, query: LetterQuery) -> tuple[Composed, dict[str, Any]]:
        """Takes `after_id` and `limit` besides what it returns."""
        where, values = self._conditions(query)
        statement = SQL(
            "SELECT {columns} FROM {letters} AS letters WHERE {where} AND id > %(after_id)s"
            " ORDER BY id LIMIT %(limit)s"
        ).format(**self._names, where=where)
        return statement, values

    def count(self, query: LetterQuery) -> tuple[Composed, dict[str, Any]]:
        where, values = self._conditions(query)
        statement = SQL("SELECT count(*) FROM {letters} WHERE {where}").format(
            **self._names, where=where
        )
        return statement, values

    def _statement(self, text: str) -> Composed:
        return SQL(text).format(**self._names)

    def _conditions(self, query: LetterQuery) -> tuple[Composed, dict[str, Any]]:
        key = None if query.key is None else query.key.encode("utf-8", "surrogatepass")
        wanted = [
            ("ids", SQL("id = ANY(%(ids)s)"), list(query.ids) or None),
            ("gateway_id", SQL("gateway_id = %(gateway_id)s"), query.gateway_id),
            ("topic", SQL("topic = %(topic)s"), query.topic),
            ("partition", SQL("partition = %(partition)s"), query.partition),
            ("key", SQL("md5(key) = md5(%(key)s::bytea) AND key = %(key)s::bytea"), key),
            ("reason", SQL("reason = %(reason)s"), query.reason),
            ("before_ms", SQL("at_ms < %(before_ms)s"), query.before_ms),
            ("after_ms", SQL("at_ms > %(after_ms)s"), query.after_ms),
        ]
        given = [one for one in wanted if one[2] is not None]
        # Written out, so that PostgreSQL sees that an index on one state will do.
        state: Composable = SQL("true")
        if query.state is not None:
            state = SQL("state = {}").format(sql.Literal(query.state))
        where = SQL(" AND ").join([state, *(condition for _, condition, _ in given)])
        return where, {name: value for name, _, value in given}
