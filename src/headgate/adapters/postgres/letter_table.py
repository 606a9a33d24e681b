"""The table of the letters in PostgreSQL, and every statement on it.

Per gateway a record has at most one parked letter in the order, and one dead letter per reason; two
partial indexes see to that. `redelivery` marks what an operator wants to be sent again, outside the
order. Lanes lock the fences of their partitions first, in one order, and a transaction that changes
several letters locks them in the order of their ids, so that none wait in a circle. Keys are stored
as UTF-8 bytes, because PostgreSQL's text can't hold a zero, and found by their hash, because an
index can't hold a long one.
"""

from __future__ import annotations

from typing import Any

from psycopg import sql
from psycopg.sql import SQL, Composable, Composed, Identifier

from headgate.model.groups import PREFIX
from headgate.model.letters import LetterQuery

# Texts as they are, damaged or not.
COLUMNS = SQL(
    "letters.id, convert_to(letters.gateway_id, 'UTF8'), convert_to(letters.state, 'UTF8'),"
    " convert_to(letters.reason, 'UTF8'), letters.attempts, convert_to(letters.error, 'UTF8'),"
    " letters.at_ms, letters.redelivery, letters.delivery, convert_to(letters.topic, 'UTF8'),"
    " letters.partition, letters.seq"
)
ASKED = SQL("unnest(%(topics)b::text[], %(partitions)b::int4[]) AS asked (topic, partition)")

NEW_PLACES = SQL(
    "unnest(%(topic)b::text[], %(partition)b::int4[], %(gateway_id)b::text[], %(seq)b::int8[],"
    " %(reason)b::text[]) AS new (topic, partition, gateway_id, seq, reason)"
)

JOINED = SQL(
    "unnest(%(id)b::int8[], %(reason)b::text[], %(attempts)b::int4[], %(error)b::text[],"
    " %(delivery)b::bytea[]) AS new (id, reason, attempts, error, delivery)"
)

# A target's name has the group's in the third place: model.groups.
OF_GROUP = SQL("starts_with(gateway_id, {}) AND split_part(gateway_id, '/', 3) = %(group)s").format(
    sql.Literal(PREFIX)
)


class LetterStatements:
    """Statements on the letters of one schema."""

    def __init__(self, schema: str) -> None:
        table = Identifier(schema, "letters")
        fences = Identifier(schema, "letter_fences")
        self._names: dict[str, Composable] = {
            "letters": table,
            "fences": fences,
            "parked_in_order": Identifier(schema, "letters_parked_in_order"),
            "dead_once": Identifier(schema, "letters_dead_once"),
            "columns": COLUMNS,
            "asked": ASKED,
            "group_prefix": sql.Literal(PREFIX),
            "new_places": NEW_PLACES,
            "joined": JOINED,
        }
        # The fences came later than the letters: where they are, all is.
        self.exists = SQL("SELECT to_regclass({}) IS NOT NULL").format(
            sql.Literal(fences.as_string())
        )
        self.create = self._statement(
            "CREATE TABLE IF NOT EXISTS {letters} ("
            " id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
            ' gateway_id text COLLATE "C" NOT NULL, state text NOT NULL, reason text NOT NULL,'
            ' topic text COLLATE "C" NOT NULL, partition int NOT NULL, seq bigint NOT NULL,'
            " key bytea, redelivery boolean NOT NULL, attempts int NOT NULL, error text NOT NULL,"
            " at_ms bigint NOT NULL, delivery bytea NOT NULL);"
            "DROP INDEX IF EXISTS {parked_in_order};"
            "DROP INDEX IF EXISTS {dead_once};"
            "CREATE UNIQUE INDEX IF NOT EXISTS letters_parked_once ON {letters}"
            " (topic, partition, gateway_id, seq) INCLUDE (id)"
            " WHERE state = 'parked' AND NOT redelivery;"
            "CREATE INDEX IF NOT EXISTS letters_revived ON {letters} (topic, partition, id)"
            " WHERE state = 'parked' AND redelivery;"
            "CREATE UNIQUE INDEX IF NOT EXISTS letters_dead_once_per_reason ON {letters}"
            " (gateway_id, topic, partition, seq, reason) WHERE state = 'dead';"
            "CREATE INDEX IF NOT EXISTS letters_dead_by_id ON {letters} (id)"
            " WHERE state = 'dead';"
            "CREATE INDEX IF NOT EXISTS letters_dead_by_time ON {letters} (at_ms)"
            " WHERE state = 'dead';"
            "CREATE INDEX IF NOT EXISTS letters_by_key ON {letters}"
            " (gateway_id, topic, md5(key));"
            "CREATE INDEX IF NOT EXISTS letters_by_kind ON {letters}"
            " (state, gateway_id, topic, reason, at_ms);"
            "CREATE TABLE IF NOT EXISTS {fences} ("
            ' topic text COLLATE "C" NOT NULL, partition int NOT NULL, epoch bigint NOT NULL,'
            " window_number bigint NOT NULL, attempt bigint NOT NULL,"
            " PRIMARY KEY (topic, partition))"
        )
        self._for_lanes()
        self._for_operators()

    def _for_lanes(self) -> None:
        # Not to be overtaken before the end of the transaction.
        self.fences_of = self._statement(
            "SELECT topic, partition, epoch, window_number, attempt FROM {fences} AS fences"
            " JOIN {asked} USING (topic, partition)"
            " ORDER BY topic, partition FOR SHARE OF fences"
        )
        # Who claims changes them: two that share them first would wait for each other.
        self.fences_to_change = self._statement(
            "SELECT topic, partition, epoch, window_number, attempt FROM {fences} AS fences"
            " JOIN {asked} USING (topic, partition)"
            " ORDER BY topic, partition FOR NO KEY UPDATE OF fences"
        )
        self.admit = self._statement(
            "INSERT INTO {fences} AS fences SELECT * FROM unnest(%(topics)b::text[],"
            "%(partitions)b::int4[], %(epochs)b::int8[], %(windows)b::int8[], %(attempts)b::int8[])"
            " ORDER BY 1, 2 ON CONFLICT (topic, partition) DO UPDATE SET epoch = excluded.epoch,"
            " window_number = excluded.window_number, attempt = excluded.attempt"
            " WHERE (fences.epoch, fences.window_number, fences.attempt)"
            " <= (excluded.epoch, excluded.window_number, excluded.attempt) RETURNING 1"
        )
        self.put = self._statement(
            "INSERT INTO {letters} (gateway_id, state, reason, topic, partition, seq, key,"
            " redelivery, attempts, error, at_ms, delivery) SELECT gateway_id, state, reason,"
            " topic, partition, seq, key, false, attempts, error, at_ms, delivery FROM unnest("
            "%(gateway_id)b::text[], %(state)b::text[], %(reason)b::text[], %(topic)b::text[],"
            "%(partition)b::int4[], %(seq)b::int8[], %(key)b::bytea[], %(attempts)b::int4[],"
            "%(error)b::text[], %(at_ms)b::int8[], %(delivery)b::bytea[]) AS new (gateway_id,"
            " state, reason, topic, partition, seq, key, attempts, error, at_ms, delivery)"
            " ON CONFLICT DO NOTHING RETURNING gateway_id, state, reason, topic, partition, seq"
        )
        # The letters that new ones are joined with, by state: each has an index of its own.
        self.same_parked = self._statement(
            "SELECT letters.id, letters.gateway_id, convert_to(letters.reason, 'UTF8'),"
            " letters.delivery,"
            " letters.topic, letters.partition, letters.seq"
            " FROM {new_places} JOIN {letters} AS letters"
            " USING (topic, partition, gateway_id, seq) WHERE letters.state = 'parked'"
            " AND NOT letters.redelivery ORDER BY letters.id FOR UPDATE OF letters"
        )
        self.same_dead = self._statement(
            "SELECT letters.id, letters.gateway_id, convert_to(letters.reason, 'UTF8'),"
            " letters.delivery,"
            " letters.topic, letters.partition, letters.seq"
            " FROM {new_places} JOIN {letters} AS letters"
            " USING (topic, partition, gateway_id, seq, reason) WHERE letters.state = 'dead'"
            " ORDER BY letters.id FOR UPDATE OF letters"
        )
        self.join = self._statement(
            "UPDATE {letters} AS letters SET id = DEFAULT, redelivery = false,"
            " reason = new.reason, attempts = new.attempts, error = new.error,"
            " at_ms = %(now_ms)s, delivery = new.delivery FROM {joined} WHERE letters.id = new.id"
        )
        # From one gateway to the next: DISTINCT would look at every letter.
        self.behind = self._statement(
            "SELECT asked.topic, asked.partition, convert_to(behind.gateway_id, 'UTF8')"
            " FROM {asked} CROSS JOIN LATERAL (WITH RECURSIVE found (gateway_id) AS ("
            " SELECT min(gateway_id) FROM {letters} WHERE state = 'parked' AND NOT redelivery"
            " AND topic = asked.topic AND partition = asked.partition"
            " UNION ALL SELECT (SELECT min(gateway_id) FROM {letters}"
            " WHERE state = 'parked' AND NOT redelivery AND topic = asked.topic"
            " AND partition = asked.partition AND gateway_id > found.gateway_id)"
            " FROM found WHERE gateway_id IS NOT NULL)"
            " SELECT gateway_id FROM found WHERE gateway_id IS NOT NULL) AS behind"
        )
        self.parked = self._statement(
            "SELECT {columns} FROM unnest(%(topics)b::text[], %(partitions)b::int4[],"
            " %(after_seqs)b::int8[]) AS asked (topic, partition, after_seq)"
            " CROSS JOIN LATERAL (SELECT * FROM {letters}"
            " WHERE state = 'parked' AND NOT redelivery AND topic = asked.topic"
            " AND partition = asked.partition AND gateway_id = %(gateway_id)s"
            " AND seq > asked.after_seq ORDER BY seq LIMIT %(each)s) AS letters"
            " ORDER BY letters.topic, letters.partition, letters.seq"
        )
        self.revived = self._statement(
            "SELECT {columns} FROM {asked} CROSS JOIN LATERAL (SELECT * FROM {letters}"
            " WHERE state = 'parked' AND redelivery AND topic = asked.topic"
            " AND partition = asked.partition AND id > %(after_id)s"
            " AND NOT starts_with(gateway_id, {group_prefix})"
            " ORDER BY id LIMIT %(limit)s) AS letters ORDER BY letters.id LIMIT %(limit)s"
        )
        self.parked_of = self._statement(
            "SELECT {columns} FROM {letters} AS letters"
            " WHERE id = ANY(%s) AND state <> 'dead' ORDER BY id FOR UPDATE"
        )
        self.remove = self._statement(
            "DELETE FROM {letters} WHERE id IN (SELECT id FROM {letters}"
            " WHERE id = ANY(%s) AND state = 'parked' ORDER BY id FOR UPDATE)"
        )
        self.still_parked = self._statement(
            "SELECT id, delivery FROM {letters} WHERE id = ANY(%s) AND state = 'parked'"
            " ORDER BY id FOR UPDATE"
        )
        self.forget = self._statement("DELETE FROM {letters} WHERE id = ANY(%s)")
        self.bury = self._statement(
            "UPDATE {letters} AS letters SET state = 'dead', reason = new.reason,"
            " attempts = new.attempts, error = new.error, at_ms = %(now_ms)s,"
            " delivery = new.delivery FROM {joined} WHERE letters.id = new.id"
        )

    def _for_operators(self) -> None:
        self.counts = self._statement(
            "SELECT convert_to(state, 'UTF8'), convert_to(gateway_id, 'UTF8'),"
            " convert_to(topic, 'UTF8'), convert_to(reason, 'UTF8'), count(*), min(at_ms)"
            " FROM {letters} GROUP BY state, gateway_id, topic, reason ORDER BY 1, 2, 3, 4"
        )
        self.revive = self._statement(
            "UPDATE {letters} SET state = 'parked', redelivery = true, at_ms = %(now_ms)s"
            " WHERE id IN (SELECT id FROM {letters}"
            " WHERE id = ANY(%(ids)s) AND state = 'dead' ORDER BY id FOR UPDATE) RETURNING id"
        )
        # Of what is forgotten, first which there are, and how large: not all of it may go at once.
        self.dead = self._statement(
            "SELECT id, octet_length(delivery) FROM {letters}"
            " WHERE id = ANY(%(ids)s) AND state = 'dead' ORDER BY id"
        )
        self.delete = self._statement(
            "DELETE FROM {letters} WHERE id IN (SELECT id FROM {letters}"
            " WHERE id = ANY(%(ids)s) AND state = 'dead' ORDER BY id FOR UPDATE) RETURNING id"
        )
        self.of_partitions = self._statement(
            "SELECT letters.id, octet_length(letters.delivery) FROM {asked}"
            " JOIN {letters} AS letters USING (topic, partition)"
            " ORDER BY letters.id LIMIT %(limit)s"
        )
        self.abandon = self._statement(
            "DELETE FROM {letters} WHERE id IN (SELECT id FROM {letters}"
            " WHERE id = ANY(%(ids)s) ORDER BY id FOR UPDATE) RETURNING id"
        )
        self.old = self._statement(
            "SELECT id, octet_length(delivery) FROM {letters}"
            " WHERE state = 'dead' AND at_ms < %(before_ms)s ORDER BY at_ms LIMIT %(limit)s"
        )
        self.sweep = self._statement(
            "DELETE FROM {letters} WHERE id IN (SELECT id FROM {letters}"
            " WHERE id = ANY(%(ids)s) AND state = 'dead' AND at_ms < %(before_ms)s"
            " ORDER BY id FOR UPDATE SKIP LOCKED) RETURNING id"
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
            ("group", OF_GROUP, query.group),
            ("topic", SQL("topic = %(topic)s"), query.topic),
            ("partition", SQL("partition = %(partition)s"), query.partition),
            ("seq", SQL("seq = %(seq)s"), query.seq),
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
