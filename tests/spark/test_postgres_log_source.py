"""Topics as Spark tables when the log is in PostgreSQL: the same answers, from a real server."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headgate.errors import InvalidRequest, StorageFailed, UnknownTopic
from headgate.model.event import Event
from headgate.spark.table.source import read_topic, stream_topic
from tests.servers.postgres import Postgres
from tests.spark.logs import AWAIT_S, NOW_MS, TOPIC, Collected, PostgresLog, ids, named, table


@pytest.fixture
def log(postgres: Postgres) -> PostgresLog:
    name = f"log_{uuid4().hex[:12]}"
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return PostgresLog(f"host=127.0.0.1 port={postgres.port} user=postgres dbname={name}")


def test_a_table_has_exactly_what_was_appended(spark: SparkSession, log: PostgresLog) -> None:
    document = '{"name":"Zoë ✈ 東京"}'
    log.append(0, [Event("a", document.encode(), key="é", op="update", collection="c")])
    log.append(2, [Event("b", b"[1, 2]", key="", earlier=b"{}", source="lsn/7")])
    time = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    rows = table(spark, log).collect()
    assert [(*row[:-2], row.time.astimezone(UTC)) for row in rows] == [
        (TOPIC, 0, 1, 3, "a", "é", "c", "update", document, None, None, time),
        (TOPIC, 2, 1, 3, "b", "", "", "insert", "[1, 2]", "{}", "lsn/7", time),
    ]


def test_a_table_is_a_snapshot_in_order_and_cut_where_asked(
    spark: SparkSession, log: PostgresLog
) -> None:
    log.grow(0, 25)
    log.grow(1, 10)
    made = table(spark, log, rows_per_partition=10)
    log.grow(0, 5)
    assert ids(made) == [*named(0, range(1, 26)), *named(1, range(1, 11))]
    stretch = read_topic(spark, TOPIC, dsn=log.dsn, start="0:28,1:10", up_to="0:29")
    assert ids(stretch) == ["0-28", "0-29", "1-10"]


def test_what_retention_took_is_missed_only_by_whoever_asks_for_it(
    spark: SparkSession, log: PostgresLog
) -> None:
    log.grow(0, 5)
    exact = table(spark, log, from_="0:2")
    log.drop(0)
    log.grow(0, 2)
    assert ids(table(spark, log)) == ["0-6", "0-7"]
    with pytest.raises(PySparkException, match="doesn't have the records from 2 to 5 any more"):
        exact.count()


def test_a_stream_reads_appends_once_through_a_restart(
    spark: SparkSession, log: PostgresLog, tmp_path: Path
) -> None:
    log.grow(0, 3)
    seen = Collected()
    stream = stream_topic(spark, TOPIC, dsn=log.dsn)
    query = seen.start(stream, tmp_path / "checkpoint")
    try:
        query.processAllAvailable()
        assert seen.take() == named(0, range(1, 4))
        log.grow(0, 2)
        log.grow(1, 2)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(seen.take()) == [*named(0, range(4, 6)), *named(1, range(1, 3))]
    log.grow(1, 1)
    again = seen.start(stream, tmp_path / "checkpoint", all_now=True)
    assert again.awaitTermination(AWAIT_S)
    assert seen.take() == ["1-3"]


def test_a_stream_reads_one_version_after_the_other(
    spark: SparkSession, log: PostgresLog, tmp_path: Path
) -> None:
    log.grow(0, 2, version=1)
    log.grow(0, 1, version=2)
    log.grow(1, 2, version=2)
    seen = Collected()
    query = seen.start(stream_topic(spark, TOPIC, dsn=log.dsn), tmp_path / "c", all_now=True)
    assert query.awaitTermination(AWAIT_S)
    assert seen.batches == [["0-1", "0-2"], ["0-3", "1-1", "1-2"]]


def test_mistakes_are_plain_sentences_without_the_password(
    spark: SparkSession, log: PostgresLog, tmp_path: Path, unused_tcp_port: int
) -> None:
    with pytest.raises(UnknownTopic, match=r"PostgreSQL has no topic .*: it has none yet"):
        read_topic(spark, TOPIC, dsn=log.dsn)
    log.grow(0, 1)
    with pytest.raises(UnknownTopic, match="has no topic ships: it has flights; create the topic"):
        stream_topic(spark, "ships", dsn=log.dsn)
    with pytest.raises(InvalidRequest, match="leave one of them out"):
        read_topic(spark, TOPIC, dsn=log.dsn, data=tmp_path)
    with pytest.raises(InvalidRequest, match="dsn must be the address") as mistyped:
        read_topic(spark, TOPIC, dsn="host=db port=5432 secret hunter2")
    nowhere = f"host=127.0.0.1 port={unused_tcp_port} user=u password=hunter2 dbname=d"
    with pytest.raises(StorageFailed) as unreachable:
        read_topic(spark, TOPIC, dsn=nowhere)
    assert "hunter2" not in f"{mistyped.value} {unreachable.value}"
