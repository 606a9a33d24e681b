"""The tables in PostgreSQL, and every statement on them.

`partitions` has a row per partition: who may append, under which version, its extent, whether it is
sealed, what its records count in bytes, and a number by which its two tables are named (a topic's
name may be too long for one). After a restore a number may be another partition's, so statements
name the partition as well: where the two don't belong together any more, they find no row.
`earliest` is stored because looking for it would walk over all the rows that retention has just
deleted. `intakes` says how far connectors have come in each partition, `times` has the marks of the
index by time (adapters/log/times.py). Free text is stored as UTF-8 bytes: PostgreSQL's text can't
hold a zero, and an id must come back as it was.

Format 2 adds headers, checksums and `times`. A schema of format 1 is brought up to it partition by
partition, by the node that opens one; readers take both.
"""

from __future__ import annotations

from psycopg import sql
from psycopg.sql import SQL, Identifier

DEFAULT_SCHEMA = "headgate"
FORMAT = 2
INTAKE_KEY_COLUMNS = 3
"""Of a row about a connector: topic, partition and connector. What follows is its intake, in as
many columns as there were when the table was made."""

RECORD_COLUMNS = SQL(
    "seq, version, event_id, key, collection, op, document, earlier, source, time_ms,"
    " headers, checksum"
)
FORMER_COLUMNS = SQL(
    "seq, version, event_id, key, collection, op, document, earlier, source, time_ms,"
    " NULL::bytea AS headers, NULL::bytea AS checksum"
)
"""The same of a table that nobody has opened since format 2."""
NEW_ROWS = (
    "SELECT * FROM unnest("
    "%(seq)b::int8[], %(version)b::int4[], %(event_id)b::bytea[], %(key)b::bytea[],"
    "%(collection)b::bytea[], %(op)b::text[], %(document)b::bytea[], %(earlier)b::bytea[],"
    "%(source)b::bytea[], %(time_ms)b::int8[], %(headers)b::bytea[], %(checksum)b::bytea[])"
)
NEW_MARKS = (
    "marked AS (INSERT INTO {times} SELECT %(topic)s, %(partition)s, * FROM unnest("
    "%(mark_ms)b::int8[], %(mark_seq)b::int8[]))"
)


class SchemaStatements:
    """Statements on what all partitions share."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        name = Identifier(schema)
        partitions = Identifier(schema, "partitions")
        self.channel = name
        self.lock_creation = SQL("SELECT pg_advisory_xact_lock(hashtextextended({}, 0))").format(
            sql.Literal(f"headgate {schema}")
        )
        self.exists = SQL("SELECT to_regclass({}) IS NOT NULL").format(
            sql.Literal(partitions.as_string())
        )
        self.create = SQL(
            "CREATE SCHEMA IF NOT EXISTS {schema};"
            "CREATE TABLE IF NOT EXISTS {format} (version int NOT NULL);"
            "INSERT INTO {format} SELECT {number} WHERE NOT EXISTS (SELECT FROM {format});"
            "CREATE TABLE IF NOT EXISTS {partitions} ("
            " topic text NOT NULL, partition int NOT NULL,"
            " number bigint GENERATED ALWAYS AS IDENTITY UNIQUE,"
            " epoch bigint NOT NULL DEFAULT 0, version int NOT NULL DEFAULT 1,"
            " earliest bigint NOT NULL DEFAULT 1, head bigint NOT NULL DEFAULT 0,"
            " sealed boolean NOT NULL DEFAULT false, size_bytes bigint NOT NULL DEFAULT 0,"
            " PRIMARY KEY (topic, partition)) WITH (fillfactor = 50)"
        ).format(
            schema=name,
            format=Identifier(schema, "format"),
            number=sql.Literal(FORMAT),
            partitions=partitions,
        )
        self.format = SQL("SELECT version FROM {}").format(Identifier(schema, "format"))
        self.number = SQL("SELECT number FROM {} WHERE topic = %s AND partition = %s").format(
            partitions
        )
        self.numbered = SQL(
            "SELECT number, EXISTS (SELECT FROM pg_attribute WHERE attname = 'checksum'"
            " AND NOT attisdropped AND attrelid ="
            " to_regclass(quote_ident({}) || '.records_' || number))"
            " FROM {} WHERE topic = %s AND partition = %s"
        ).format(sql.Literal(schema), partitions)
        """With whether its table is of the present format."""
        times = Identifier(schema, "times")
        self.to_format_2 = SQL(
            "CREATE TABLE IF NOT EXISTS {times} ("
            " topic text NOT NULL, partition int NOT NULL, time_ms bigint NOT NULL,"
            " seq bigint NOT NULL, PRIMARY KEY (topic, partition, time_ms));"
            "UPDATE {format} SET version = {number} WHERE version < {number}"
        ).format(times=times, format=Identifier(schema, "format"), number=sql.Literal(FORMAT))
        self.has_times = SQL("SELECT to_regclass({}) IS NOT NULL").format(
            sql.Literal(times.as_string())
        )
        self.newest_mark = SQL(
            "SELECT max(time_ms) FROM {} WHERE topic = %(topic)s AND partition = %(partition)s"
        ).format(times)
        self.mark_before = SQL(
            "SELECT coalesce(max(seq), 0) FROM {} WHERE topic = %(topic)s"
            " AND partition = %(partition)s AND time_ms <= %(time_ms)s"
        ).format(times)
        self.forget_marks = SQL(
            "DELETE FROM {0} WHERE topic = %(topic)s AND partition = %(partition)s"
            " AND seq <= %(last)s AND time_ms < (SELECT max(time_ms) FROM {0}"
            " WHERE topic = %(topic)s AND partition = %(partition)s)"
        ).format(times)
        self.drop_marks = SQL(
            "DELETE FROM {} WHERE topic = %(topic)s AND partition = %(partition)s"
        ).format(times)
        self.add = SQL(
            "INSERT INTO {} (topic, partition) VALUES (%s, %s) ON CONFLICT DO NOTHING"
            " RETURNING number"
        ).format(partitions)
        self.renumber = SQL(
            "UPDATE {} SET number = DEFAULT WHERE topic = %s AND partition = %s RETURNING number"
        ).format(partitions)
        self.extent = SQL(
            "SELECT earliest, head FROM {} WHERE topic = %s AND partition = %s"
        ).format(partitions)
        self.stored = SQL("SELECT topic, partition FROM {} ORDER BY topic, partition").format(
            partitions
        )
        intakes = Identifier(schema, "intakes")
        self.has_intakes = SQL("SELECT to_regclass({}) IS NOT NULL").format(
            sql.Literal(intakes.as_string())
        )
        self.has_snapshots = SQL(
            "SELECT EXISTS (SELECT FROM pg_attribute"
            " WHERE attrelid = to_regclass({}) AND attname = 'snapshot')"
        ).format(sql.Literal(intakes.as_string()))
        self.create_intakes = SQL(
            "CREATE TABLE IF NOT EXISTS {} ("
            " topic text NOT NULL, partition int NOT NULL, connector bytea NOT NULL,"
            " version int NOT NULL, partitions int NOT NULL, epoch bigint NOT NULL,"
            " beginning bigint NOT NULL, position bytea NOT NULL, ended boolean NOT NULL,"
            " PRIMARY KEY (topic, partition, connector, version));"
            " ALTER TABLE {} ADD COLUMN IF NOT EXISTS snapshot bytea NOT NULL DEFAULT ''"
        ).format(intakes, intakes)
        self.intakes = SQL(
            "SELECT * FROM {}"
            " WHERE topic = %(topic)s AND partition = %(partition)s AND connector = %(connector)s"
            " ORDER BY version"
        ).format(intakes)
        self.put_intake = SQL(
            "INSERT INTO {} VALUES (%(topic)s, %(partition)s, %(connector)s, %(version)s,"
            " %(partitions)s, %(epoch)s, %(beginning)s, %(position)s, %(ended)s, %(snapshot)s)"
            " ON CONFLICT (topic, partition, connector, version) DO UPDATE SET"
            " partitions = excluded.partitions, epoch = excluded.epoch,"
            " beginning = excluded.beginning, position = excluded.position, ended = excluded.ended,"
            " snapshot = excluded.snapshot"
        ).format(intakes)
        self.forget_intakes = SQL(
            "DELETE FROM {} WHERE topic = %(topic)s AND partition = %(partition)s"
            " AND connector = %(connector)s AND version < %(below)s"
        ).format(intakes)
        self.drop_intakes = SQL(
            "DELETE FROM {} WHERE topic = %(topic)s AND partition = %(partition)s"
        ).format(intakes)
        self.notify = SQL("SELECT pg_notify({}, unnest(%s::text[]))").format(sql.Literal(schema))
        self.listen = SQL("LISTEN {}").format(name)


class PartitionStatements:
    """Statements on one partition's row and its tables.

    They take `topic` and `partition` with what else they need. Those on the tables alone don't look
    at them: they follow a `lock` of the row, in its transaction.
    """

    def __init__(self, schema: str, number: int, *, former: bool = False) -> None:
        """`former`: the table is of a format before there were checksums, and only read."""
        self.number = number
        names = {
            "partitions": Identifier(schema, "partitions"),
            "records": Identifier(schema, f"records_{number}"),
            "ids": Identifier(schema, f"ids_{number}"),
            "ids_by_time": Identifier(f"ids_{number}_by_time"),
            "mine": SQL("topic = %(topic)s AND partition = %(partition)s AND number = {}").format(
                sql.Literal(number)
            ),
            "columns": FORMER_COLUMNS if former else RECORD_COLUMNS,
            "new_rows": SQL(NEW_ROWS),
            "new_marks": SQL(NEW_MARKS).format(times=Identifier(schema, "times")),
        }

        def statement(text: str) -> SQL:
            # Composed once: psycopg would do it each time.
            return SQL(SQL(text).format(**names).as_string())

        self.exists = SQL("SELECT to_regclass({}) IS NOT NULL").format(
            sql.Literal(Identifier(schema, f"records_{number}").as_string())
        )
        self.create = statement(
            "CREATE TABLE IF NOT EXISTS {records} ("
            " seq bigint PRIMARY KEY, version int NOT NULL, event_id bytea NOT NULL, key bytea,"
            " collection bytea NOT NULL, op text NOT NULL, document bytea NOT NULL, earlier bytea,"
            " source bytea, time_ms bigint NOT NULL, headers bytea, checksum bytea);"
            "CREATE TABLE IF NOT EXISTS {ids} ("
            " event_id bytea PRIMARY KEY, seq bigint NOT NULL, time_ms bigint NOT NULL);"
            "CREATE INDEX IF NOT EXISTS {ids_by_time} ON {ids} (time_ms)"
        )
        self.to_format_2 = statement(
            "ALTER TABLE {records} ADD COLUMN IF NOT EXISTS headers bytea,"
            " ADD COLUMN IF NOT EXISTS checksum bytea"
        )
        self.lock = statement(
            "SELECT epoch, version, head, sealed, size_bytes, earliest"
            " FROM {partitions} WHERE {mine} FOR UPDATE"
        )
        self.open = statement(
            "UPDATE {partitions} SET epoch = %(epoch)s, version = greatest(version, %(version)s),"
            " sealed = %(sealed)s WHERE {mine}"
        )
        self.known = statement("SELECT event_id, seq FROM {ids} WHERE event_id = ANY(%(ids)s)")
        self.write = statement(
            "WITH written AS (INSERT INTO {records} ({columns}) {new_rows}), {new_marks},"
            " remembered AS (INSERT INTO {ids} SELECT * FROM unnest("
            "%(event_id)b::bytea[], %(seq)b::int8[], %(time_ms)b::int8[]))"
            " UPDATE {partitions} SET head = %(head)s, size_bytes = %(size_bytes)s"
            " WHERE {mine}"
        )
        self.take_in = statement(
            "WITH written AS (INSERT INTO {records} ({columns}) {new_rows}), {new_marks}"
            " UPDATE {partitions} SET head = %(head)s, size_bytes = %(size_bytes)s"
            " WHERE {mine}"
        )
        self.move_on = statement(
            "UPDATE {partitions} SET earliest = %(earliest)s, head = %(head)s WHERE {mine}"
        )
        self.front = statement(
            "SELECT seq, time_ms, octet_length(document),"
            " coalesce(octet_length(earlier), 0) + coalesce(octet_length(headers), 0)"
            " FROM {records} WHERE seq >= %(first)s AND seq <= %(last)s"
            " ORDER BY seq LIMIT %(limit)s"
        )
        self.drop_front = statement(
            "DELETE FROM {records} WHERE seq >= %(first)s AND seq <= %(last)s"
        )
        self.shrink = statement(
            "UPDATE {partitions} SET earliest = coalesce("
            "(SELECT min(seq) FROM {records} WHERE seq > %(last)s), head + 1),"
            " size_bytes = size_bytes - %(freed_bytes)s WHERE {mine}"
        )
        self.forget_ids = statement(
            "WITH old AS ("
            "SELECT event_id FROM {ids} WHERE time_ms < %(before_ms)s LIMIT %(limit)s),"
            " gone AS (DELETE FROM {ids} WHERE event_id IN (SELECT event_id FROM old) RETURNING 1)"
            " SELECT count(*) FROM gone"
        )
        self.empty = statement("TRUNCATE {records}, {ids}")
        self.reset = statement(
            "UPDATE {partitions} SET epoch = %(epoch)s, head = greatest(head, %(given_out)s),"
            " earliest = greatest(head, %(given_out)s) + 1, size_bytes = 0, sealed = false,"
            " version = 1 WHERE {mine}"
        )
        self.find = statement(
            "SELECT ids.event_id, ids.seq FROM {partitions} LEFT JOIN LATERAL (SELECT event_id, seq"
            " FROM {ids} WHERE event_id = ANY(%(ids)s)) ids ON true WHERE {mine}"
        )
        # One row without a record where there is none to read, and no row where the number isn't
        # the partition's: one statement tells both.
        self.read = statement(
            "SELECT records.* FROM {partitions} LEFT JOIN LATERAL (SELECT {columns} FROM"
            " (SELECT {columns}, sum(octet_length(document) + coalesce(octet_length(earlier), 0))"
            " OVER (ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_bytes"
            " FROM (SELECT {columns} FROM {records} WHERE seq > %(after)s AND seq <= %(up_to)s"
            " ORDER BY seq LIMIT %(limit)s) found) sized"
            " WHERE coalesce(before_bytes, 0) < %(limit_bytes)s) records ON true WHERE {mine}"
        )
        self.since = statement(
            "SELECT records.seq FROM {partitions} LEFT JOIN LATERAL (SELECT seq FROM {records}"
            " WHERE seq >= %(first)s AND seq < %(end)s AND time_ms >= %(time_ms)s"
            " ORDER BY seq LIMIT 1) records ON true WHERE {mine}"
        )
