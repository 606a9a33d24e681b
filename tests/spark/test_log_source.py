"""Topics as Spark tables: a real session reads what was really appended to the embedded log."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from headgate.adapters.log import arrow
from headgate.decide.log.ranges import SeqRange
from headgate.errors import DataFolderError, InvalidRequest, UnknownTopic
from headgate.model.event import Event
from headgate.spark.starting.noop_read import identity
from headgate.spark.table import tasks as log_tasks
from headgate.spark.table.options import read_options
from headgate.spark.table.place import LogPlace
from headgate.spark.table.source import LogStreamReader, read_topic, register, stream_topic
from tests.spark.logs import AWAIT_S, NOW_MS, TOPIC, Collected, Log, ids, named, table
from tests.system.documents import blocks_of


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "data")


# --- batch ----------------------------------------------------------------------------------------


def test_a_table_has_exactly_what_was_appended(spark: SparkSession, log: Log) -> None:
    log.append(
        0,
        [
            Event("a", '{"name":"Zoë ✈ 東京"}'.encode(), key="é", op="update", collection="c"),
            Event(
                "b",
                b"{}",
                op="delete",
                earlier='{"was":"ß"}'.encode(),
                source="lsn/7",
                headers='{"trace":"ß","x":""}'.encode(),
            ),
        ],
    )
    log.append(2, [Event("c", b"[1, 2]", key="")])
    rows = table(spark, log).collect()
    time = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert [(*row[:-2], row.time.astimezone(UTC)) for row in rows] == [
        (TOPIC, 0, 1, 3, "a", "é", "c", "update", '{"name":"Zoë ✈ 東京"}', None, None, time),
        (TOPIC, 0, 2, 3, "b", None, "", "delete", "{}", '{"was":"ß"}', "lsn/7", time),
        (TOPIC, 2, 1, 3, "c", "", "", "insert", "[1, 2]", None, None, time),
    ]
    assert [row.headers for row in rows] == [None, {"trace": "ß", "x": ""}, None]


def test_a_table_cut_into_ranges_has_everything_once_and_in_order(
    spark: SparkSession, log: Log
) -> None:
    log.grow(0, 25)
    log.grow(1, 10)
    cut = table(spark, log, rows_per_partition=10)
    assert cut.rdd.getNumPartitions() == 4
    assert ids(cut) == [*named(0, range(1, 26)), *named(1, range(1, 11))]


def test_a_table_is_a_snapshot_of_when_it_was_made(spark: SparkSession, log: Log) -> None:
    log.grow(0, 5)
    made = table(spark, log)
    log.grow(0, 5)
    log.grow(1, 5)
    assert made.count() == 5
    assert made.join(made.select("seq"), "seq").count() == 5
    assert table(spark, log).count() == 15


def test_from_and_up_to_choose_a_stretch(spark: SparkSession, log: Log) -> None:
    log.grow(0, 10)
    log.grow(1, 10)
    assert ids(table(spark, log, from_="0:8")) == named(0, range(8, 11))
    assert ids(table(spark, log, from_="0:8,1:10", up_to="0:9")) == ["0-8", "0-9", "1-10"]
    assert ids(table(spark, log, from_="now")) == []


def test_what_retention_took_is_missed_only_by_whoever_asks_for_it(
    spark: SparkSession, log: Log
) -> None:
    log.grow(0, 5)
    made, exact = table(spark, log), table(spark, log, from_="0:2")
    log.drop(0)
    log.grow(0, 2)
    assert ids(table(spark, log)) == ["0-6", "0-7"]
    assert ids(table(spark, log, from_="0:6")) == ["0-6", "0-7"]
    with pytest.raises(PySparkException, match="doesn't have the records from 3 to 5 any more"):
        table(spark, log, from_="0:3").count()
    # Gone after the DataFrame was made: the tasks find out.
    assert ids(made) == []
    with pytest.raises(PySparkException, match="doesn't have the records from 2 to 5 any more"):
        exact.count()


def test_what_is_about_a_whole_collection_is_a_row_without_a_key(
    spark: SparkSession, log: Log
) -> None:
    log.grow(0, 1)
    log.say(0, "drop", "shop.orders")
    assert [
        (row.seq, row.op, row.key, row.collection, row.document)
        for row in table(spark, log).where("key is null and seq > 1").collect()
    ] == [(2, "drop", None, "shop.orders", "null")]


def test_where_an_origin_lost_changes_a_read_fails_or_shows_it(
    spark: SparkSession, log: Log
) -> None:
    log.grow(0, 2)
    log.say(0, "lost")
    log.grow(0, 2)
    sentence = r"record 3 of partition 0 of flights says .* set failOnDataLoss to false to go on"
    for options in ({}, {"failOnDataLoss": "true"}, {"from_": "0:2"}):
        with pytest.raises(PySparkException, match=sentence):
            table(spark, log, **options).count()
    assert ids(table(spark, log, from_="0:4")) == ["0-4", "0-5"]
    assert ids(table(spark, log, up_to="0:2")) == ["0-1", "0-2"]
    shown = table(spark, log, failOnDataLoss="False")
    assert [(row.seq, row.op) for row in shown.where("op = 'lost'").collect()] == [(3, "lost")]
    assert ids(read_topic(spark, TOPIC, data=log.root, fail_on_data_loss=False)) == named(
        0, range(1, 6)
    )


def test_where_a_record_is_corrupt_a_read_fails_or_goes_on_without_it(
    spark: SparkSession, log: Log
) -> None:
    log.grow(0, 5)
    log.damage(0, 2)
    log.damage(0, 5)
    sentence = r"record 2 of partition 0 of flights is corrupt.* set failOnDataLoss to false to go"
    for options in ({}, {"from_": "0:2"}):
        with pytest.raises(PySparkException, match=sentence):
            table(spark, log, **options).count()
    assert ids(table(spark, log, from_="0:3", up_to="0:4")) == ["0-3", "0-4"]
    assert ids(table(spark, log, failOnDataLoss="false")) == ["0-1", "0-3", "0-4"]


def test_who_does_not_want_to_fail_reads_what_retention_left_from_wherever(
    spark: SparkSession, log: Log
) -> None:
    log.grow(0, 5)
    made = table(spark, log, from_="0:2", failOnDataLoss="false")
    log.drop(0)
    log.grow(0, 2)
    assert ids(table(spark, log, from_="0:3", failOnDataLoss="false")) == ["0-6", "0-7"]
    assert ids(made) == []


def test_a_task_gathers_small_reads_and_loses_none(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "ARROW_BATCH_ROWS", 3)
    monkeypatch.setattr(log_tasks, "BATCH_ROWS", 6)
    log.grow(0, 20)
    task = log_tasks.LogTask(
        place=LogPlace(root=str(log.root)), topic=TOPIC, seqs=SeqRange(0, 2, 19), partial=False
    )
    batches = [batch["seq"].to_pylist() for batch in log_tasks.read_task(task)]
    assert batches == [[*range(3, 9)], [*range(9, 15)], [*range(15, 20)]]


def test_sql_reads_a_topic(spark: SparkSession, log: Log) -> None:
    log.grow(0, 3)
    register(spark)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW flights_view USING headgate_log "
        f"OPTIONS (topic '{TOPIC}', data '{log.root}')"
    )
    assert spark.sql("SELECT count(*) AS n FROM flights_view WHERE seq > 1").collect() == [Row(n=2)]


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        pytest.param({"from_": "latest"}, "from=latest is not understood", id="from"),
        pytest.param({"from_": "7:1"}, "flights has no partition 7: it has 0 to 0", id="partition"),
        pytest.param({"up_to": "0:9"}, "ends at seq 1, so 9 isn't there yet", id="up_to"),
        pytest.param({"max_records_per_batch": 5}, "is for spark.readStream", id="stream-option"),
        pytest.param(
            {"failOnDataLoss": "no"}, "failOnDataLoss=no is neither true nor false", id="not-a-bool"
        ),
        pytest.param({"failOnLoss": "no"}, "has no option failonloss; it has", id="unknown"),
    ],
)
def test_a_bad_batch_read_is_one_sentence(
    spark: SparkSession, log: Log, options: dict[str, object], sentence: str
) -> None:
    log.grow(0, 1)
    with pytest.raises(PySparkException, match=sentence):
        table(spark, log, **options).count()


def test_other_columns_are_refused(spark: SparkSession, log: Log) -> None:
    log.grow(0, 1)
    register(spark)
    reader = spark.read.format("headgate_log").schema("seq long").option("data", str(log.root))
    with pytest.raises(PySparkException, match="headgate_log has its own columns"):
        reader.load(TOPIC).count()


def test_a_time_chooses_what_was_appended_since(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.grow(0, 2)
    log.grow(1, 1)
    log.grow(0, 2, now_ms=NOW_MS + 5_000)
    moment = datetime.fromtimestamp(NOW_MS / 1000 + 1, UTC).isoformat()
    assert ids(table(spark, log, from_=moment)) == ["0-3", "0-4"]
    before = datetime.fromtimestamp(NOW_MS / 1000, UTC).isoformat().replace("+00:00", "Z")
    assert sorted(ids(table(spark, log, from_=before))) == sorted(
        [*named(0, range(1, 5)), *named(1, range(1, 2))]
    )
    seen = Collected()
    stream = stream_topic(spark, TOPIC, data=log.root, start=moment)
    log.grow(1, 1, now_ms=NOW_MS + 9_000)
    assert seen.start(stream, tmp_path / "c", all_now=True).awaitTermination(AWAIT_S)
    assert sorted(seen.take()) == ["0-3", "0-4", "1-2"]


def test_a_stream_has_no_end(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    log.grow(0, 1)
    register(spark)
    reader = spark.readStream.format("headgate_log").option("data", str(log.root))
    query = Collected().start(reader.option("up_to", "0:1").load(TOPIC), tmp_path / "checkpoint")
    with pytest.raises(PySparkException, match=r"up_to is for spark\.read"):
        query.awaitTermination(AWAIT_S)


def test_conveniences_raise_plain_errors(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataFolderError, match="headgate-data is not a Headgate data folder"):
        read_topic(spark, TOPIC)
    assert not (tmp_path / "headgate-data").exists()
    log.grow(0, 1)
    with pytest.raises(UnknownTopic, match="has no topic ships: it has flights"):
        stream_topic(spark, "ships", data=log.root)
    with pytest.raises(InvalidRequest, match="max_records_per_batch=0 is not a number of records"):
        stream_topic(spark, TOPIC, data=log.root, max_records_per_batch=0)
    # Relative to the folder of this process, which isn't the one that Spark was started in.
    assert read_topic(spark, TOPIC, data="data", start="0:1", up_to="0:1").count() == 1


# --- streams --------------------------------------------------------------------------------------


def test_a_stream_reads_appends_once_through_a_restart(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.grow(0, 3)
    seen = Collected()
    stream = stream_topic(spark, TOPIC, data=log.root)
    query = seen.start(stream, tmp_path / "checkpoint")
    try:
        query.processAllAvailable()
        assert seen.take() == named(0, range(1, 4))
        log.grow(0, 2)
        log.grow(1, 2)  # a new partition
        query.processAllAvailable()
        assert sorted(seen.take()) == ["0-4", "0-5", "1-1", "1-2"]
    finally:
        query.stop()
    log.grow(1, 1)
    log.grow(2, 1)
    query = seen.start(stream, tmp_path / "checkpoint", all_now=True)
    assert query.awaitTermination(AWAIT_S)
    assert sorted(seen.take()) == ["1-3", "2-1"]


def test_a_stream_reads_in_batches_no_larger_than_asked(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.grow(0, 7)
    log.grow(1, 2)
    seen = Collected()
    stream = stream_topic(spark, TOPIC, data=log.root, max_records_per_batch=4)
    query = seen.start(stream, tmp_path / "checkpoint", all_now=True)
    assert query.awaitTermination(AWAIT_S)
    assert [len(batch) for batch in seen.batches] == [4, 4, 1]
    assert seen.batches[0] == ["0-1", "0-2", "1-1", "1-2"]
    assert sorted(seen.take()) == sorted([*named(0, range(1, 8)), *named(1, range(1, 3))])


def test_a_stream_of_what_is_there_ends_although_more_comes(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.grow(0, 2)
    batches: list[list[str]] = []

    def collect(batch: DataFrame, number: int) -> None:
        batches.append(ids(batch))
        if number == 0:
            log.grow(0, 1)
            log.grow(1, 1)

    stream = stream_topic(spark, TOPIC, data=log.root, max_records_per_batch=1)
    query = (
        stream.writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(AWAIT_S)
    assert batches == [["0-1"], ["0-2"]]


@pytest.mark.parametrize(
    ("start", "first"),
    [pytest.param("now", 4, id="now"), pytest.param("0:2", 2, id="a-position")],
)
def test_a_stream_begins_where_it_is_told(
    spark: SparkSession, log: Log, tmp_path: Path, start: str, first: int
) -> None:
    log.grow(0, 3)
    log.grow(1, 3)
    seen = Collected()
    query = seen.start(
        stream_topic(spark, TOPIC, data=log.root, start=start), tmp_path / "checkpoint"
    )
    try:
        query.processAllAvailable()
        log.grow(0, 1)
        log.grow(1, 1)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(seen.take()) == [*named(0, range(first, 5)), "1-4"]


def test_a_stream_goes_on_through_repartitions_with_every_key_in_order(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    produced = [Event(f"{at:02}", b"{}", key=str(at * 7 % 5)) for at in range(60)]
    log.spread(produced[:10], 2, version=1)
    batches: list[list[Row]] = []
    stream = stream_topic(spark, TOPIC, data=log.root)
    writer = stream.writeStream.foreachBatch(lambda batch, _: batches.append(batch.collect()))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        # A query that is behind finds several versions at once.
        log.spread(produced[10:20], 2, version=1)
        log.spread(produced[20:40], 3, version=2)
        log.spread(produced[40:], 1, version=3)
        query.processAllAvailable()
    finally:
        query.stop()
    assert all(len({row.version for row in batch}) <= 1 for batch in batches)
    streamed = [row for batch in batches for row in batch]
    keys = range(5)
    in_order = [[one.event_id for one in produced if one.key == str(key)] for key in keys]
    assert [[row.event_id for row in streamed if row.key == str(key)] for key in keys] == in_order
    table_now = table(spark, log).orderBy("key", "version", "seq")
    assert ids(table_now) == [one for ids_of_key in in_order for one in ids_of_key]
    assert sorted(streamed) == sorted(table_now.collect())


def test_saved_positions_read_later_partitions_from_their_first_record(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.grow(0, 3, version=1)
    log.grow(0, 1, version=2)
    log.grow(1, 2, version=2)
    wanted = ["0-3", "0-4", "1-1", "1-2"]
    assert ids(table(spark, log, from_="0:3")) == wanted
    seen = Collected()
    stream = stream_topic(spark, TOPIC, data=log.root, start="0:3")
    assert seen.start(stream, tmp_path / "c", all_now=True).awaitTermination(AWAIT_S)
    assert seen.batches == [wanted[:1], wanted[1:]]


def test_a_later_partition_begins_behind_what_a_former_topic_had(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.grow(0, 1)
    stream = stream_topic(spark, TOPIC, data=log.root, start="now")
    log.grow(1, 2)
    log.drop(1)
    log.grow(1, 1)
    seen = Collected()
    assert seen.start(stream, tmp_path / "c", all_now=True).awaitTermination(AWAIT_S)
    assert seen.take() == ["1-3"]
    log.grow(1, 1)
    log.drop(1)
    with pytest.raises(PySparkException, match="doesn't have the records from 4 to 4 any more"):
        seen.start(stream, tmp_path / "c", all_now=True).awaitTermination(AWAIT_S)


def test_what_is_now_is_decided_when_the_stream_is_made(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.grow(0, 3)
    seen = Collected()
    stream = stream_topic(spark, TOPIC, data=log.root, start="now")
    log.grow(0, 2)
    log.grow(1, 1)
    query = seen.start(stream, tmp_path / "checkpoint", all_now=True)
    assert query.awaitTermination(AWAIT_S)
    assert sorted(seen.take()) == ["0-4", "0-5", "1-1"]


def test_a_session_that_knows_the_source_isnt_told_again(spark: SparkSession) -> None:
    """Spark would warn of it."""
    register(spark)
    told: list[type] = []

    class Session: ...

    other: Any = Session()
    other.dataSource = SimpleNamespace(register=told.append)
    register(other)
    register(other)
    assert [one.__name__ for one in told] == ["LogSource"]


@pytest.mark.timeout(180)
def test_the_page_about_it_runs_as_it_stands(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for where Spark was started, which is what `load` goes by."""
    monkeypatch.chdir(tmp_path)
    log = Log(tmp_path / "headgate-data")
    for partition in range(2):
        log.grow(partition, 30)
    blocks = [block for block in blocks_of("docs/spark.md") if block.language == "python"]
    names: dict[str, Any] = {}
    try:
        for block in blocks:
            # Spark takes a relative path for one in the folder in which it was started.
            text = block.text.replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
            exec(text.replace("headgate-data", str(log.root)), names)
        assert spark.table("flights").count() == 60
        assert names["query"].isActive
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.catalog.dropTempView("flights")
    assert len(blocks) == 2


def test_a_stream_that_retention_overtook_says_so_unless_it_reads_from_earliest(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.grow(0, 3)
    seen = Collected()
    exact = stream_topic(spark, TOPIC, data=log.root, start="0:1")
    lenient = stream_topic(spark, TOPIC, data=log.root, max_records_per_batch=1)
    for name, stream in (("exact", exact), ("lenient", lenient)):
        assert seen.start(stream, tmp_path / name, all_now=True).awaitTermination(AWAIT_S)
        assert seen.take() == named(0, range(1, 4))
    log.grow(0, 2)
    log.drop(0)
    log.grow(0, 1)
    with pytest.raises(PySparkException, match="doesn't have the records from 4 to 5 any more"):
        seen.start(exact, tmp_path / "exact", all_now=True).awaitTermination(AWAIT_S)
    assert seen.start(lenient, tmp_path / "lenient", all_now=True).awaitTermination(AWAIT_S)
    assert seen.take() == ["0-6"]


def test_a_lost_history_is_one_batch_of_a_limited_stream(log: Log) -> None:
    """A million seqs may be missing then."""
    log.grow(0, 3)
    log.lose(0, 1_000)
    log.grow(0, 2)
    reader = LogStreamReader(
        read_options({"data": str(log.root), "topic": TOPIC, "max_records_per_batch": "2"}), None
    )
    limit = reader.getDefaultReadLimit()
    offsets = [reader.initialOffset()]
    for _ in range(3):
        offsets.append(reader.latestOffset(offsets[-1], limit))
    reader.stop()
    assert [offset["0"] for offset in offsets] == [1, 3, 5, 1_006]


def test_a_stream_stops_where_an_origin_lost_changes_and_goes_on_when_it_is_told_to(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.grow(0, 2)
    seen = Collected()
    strict = stream_topic(spark, TOPIC, data=log.root, start="0:1")
    assert seen.start(strict, tmp_path / "c", all_now=True).awaitTermination(AWAIT_S)
    log.say(0, "lost")
    log.grow(0, 1)
    with pytest.raises(PySparkException, match="record 3 of partition 0 of flights says"):
        seen.start(strict, tmp_path / "c", all_now=True).awaitTermination(AWAIT_S)
    assert seen.take() == ["0-1", "0-2"]
    lenient = stream_topic(spark, TOPIC, data=log.root, start="0:1", fail_on_data_loss=False)
    assert seen.start(lenient, tmp_path / "c", all_now=True).awaitTermination(AWAIT_S)
    assert seen.take() == ["0-3", "0-4"], "the marker is a row"
    log.grow(0, 2)
    log.drop(0)
    log.grow(0, 1)
    assert seen.start(lenient, tmp_path / "c", all_now=True).awaitTermination(AWAIT_S)
    assert seen.take() == ["0-7"]


def test_a_checkpoint_of_another_log_is_refused(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.grow(0, 3)
    seen = Collected()
    query = seen.start(stream_topic(spark, TOPIC, data=log.root), tmp_path / "c", all_now=True)
    assert query.awaitTermination(AWAIT_S)
    other = Log(tmp_path / "other")
    other.grow(0, 1)
    with pytest.raises(PySparkException, match="it belongs to another log"):
        seen.start(
            stream_topic(spark, TOPIC, data=other.root), tmp_path / "c", all_now=True
        ).awaitTermination(AWAIT_S)


def test_what_maps_batches_has_all_that_spark_asks_for(spark: SparkSession) -> None:
    """Spark refuses it without pandas, for what never sees any."""
    same = spark.range(8, numPartitions=2).mapInArrow(identity, "id long")
    assert same.count() == 8
