"""Topics as Spark tables: `spark.read` and `spark.readStream` with `format("headgate_log")`.

A batch read is a snapshot: the ends of all partitions are taken when the DataFrame is made, on the
driver, so every action on it sees the same records while producers go on. A stream's offsets are
the next seq of every partition, and Spark's checkpoint keeps them; partitions that appear later
join. Invariants: between two offsets lie the same records however often they are read; a
micro-batch has records of one partitioning version, and all of former ones are in earlier batches.
The driver looks at the ends of the log, and where versions meet: no other record passes through it,
and nothing is ever written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self
from weakref import WeakSet

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headgate.decide.feed.start_positions import Since, Stretch, ends_at, refuse_gaps, starts_after
from headgate.decide.log.ranges import advance, split
from headgate.decide.log.versions import CompleteStretch, Versions
from headgate.errors import CorruptRecord, InvalidRequest
from headgate.model.event import FIRST_SEQ, PartitionRef, Record
from headgate.ports.log import Extent
from headgate.spark.table.options import (
    FAIL_ON_DATA_LOSS,
    FORMAT,
    LogOptions,
    read_options,
    topic_partitions,
)
from headgate.spark.table.tasks import SCHEMA, LogTask, read_task

_known_to: WeakSet[SparkSession] = WeakSet()
"""Spark warns of a source that is registered again."""


def register(spark: SparkSession) -> None:
    """Make `format("headgate_log")` known to `spark`; calling it again does nothing."""
    if spark not in _known_to:
        spark.dataSource.register(LogSource)
        _known_to.add(spark)


def read_topic(
    spark: SparkSession,
    topic: str,
    *,
    data: str | Path | None = None,
    dsn: str | None = None,
    start: str = "earliest",
    up_to: str | None = None,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """The records of `topic` that are there now, as a DataFrame.

    The log is the one in the folder `data` (headgate-data) or in the PostgreSQL database `dsn`.
    """
    options = _given(topic=topic, data=data, dsn=dsn, start=start, up_to=up_to)
    options[FAIL_ON_DATA_LOSS] = str(fail_on_data_loss)
    register(spark)
    return spark.read.format(FORMAT).options(**_checked_here(options)).load()


def stream_topic(
    spark: SparkSession,
    topic: str,
    *,
    data: str | Path | None = None,
    dsn: str | None = None,
    start: str = "earliest",
    max_records_per_batch: int | None = None,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """The records of `topic` as a streaming DataFrame, those to come included; what is "now" is
    decided here, whenever the query starts."""
    options = _given(
        topic=topic, data=data, dsn=dsn, start=start, max_records_per_batch=max_records_per_batch
    )
    options[FAIL_ON_DATA_LOSS] = str(fail_on_data_loss)
    register(spark)
    return spark.readStream.format(FORMAT).options(**_checked_here(options)).load()


def _given(*, start: str, **options: object) -> dict[str, str]:
    """As Spark wants them; `from` is no name for a parameter."""
    named = {"from": start, **options}
    return {name: str(value) for name, value in named.items() if value is not None}


def _checked_here(options: dict[str, str]) -> dict[str, str]:
    """Mistakes surface here as plain errors, and `data` is relative to this process's folder."""
    wanted = read_options(options)
    topic_partitions(wanted)
    return {**options, **dict([wanted.place.option])}


NOTHING_YET = CompleteStretch(FIRST_SEQ, 0)


class LogSource(DataSource):
    """Spark asks for the schema once, when the DataFrame is made, and ships this very object from
    there to wherever a reader is needed: so the extents taken then belong to the DataFrame."""

    _extents: dict[int, CompleteStretch] | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        with _Log(read_options(self.options)) as log:
            self._extents = log.versions.complete()
        return SCHEMA

    def reader(self, schema: StructType) -> LogBatchReader:
        wanted = read_options(self.options)
        _refuse_other_columns(schema)
        if wanted.max_records_per_batch is not None:
            raise InvalidRequest("max_records_per_batch is for spark.readStream; leave it out here")
        if self._extents is None:
            with _Log(wanted) as log:
                self._extents = log.versions.complete()
        return LogBatchReader(wanted, self._extents)

    def streamReader(self, schema: StructType) -> LogStreamReader:
        wanted = read_options(self.options)
        _refuse_other_columns(schema)
        if wanted.up_to is not None:
            raise InvalidRequest("up_to is for spark.read, since a stream has no end; leave it out")
        return LogStreamReader(wanted, self._extents)


def _refuse_other_columns(schema: StructType) -> None:
    if [(one.name, one.dataType) for one in schema] != [(one.name, one.dataType) for one in SCHEMA]:
        raise InvalidRequest(
            f"{FORMAT} has its own columns; leave .schema(...) out and select what you need"
        )


class LogBatchReader(DataSourceReader):
    def __init__(self, wanted: LogOptions, extents: Mapping[int, CompleteStretch]) -> None:
        self._wanted = wanted
        self._extents = extents

    def partitions(self) -> list[InputPartition]:
        wanted = self._wanted
        with _Log(wanted) as log:
            start = _first_seqs(wanted, self._extents, log)
        ends = ends_at(wanted.up_to or {}, self._extents, wanted.topic)
        return _tasks(wanted, start, {partition: seq + 1 for partition, seq in ends.items()})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in Spark's source runner, a process of its own; tasks get fresh copies. `made` is what
    there was when the DataFrame was made, which is what "now" means."""

    def __init__(
        self, wanted: LogOptions, made: Mapping[int, CompleteStretch] | None = None
    ) -> None:
        self._wanted = wanted
        self._made = made
        self._log = _Log(wanted)
        self._target: dict[int, int] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (LogStreamReader, (self._wanted, self._made))

    def initialOffset(self) -> dict[str, int]:
        made = self._made if self._wanted.start == "now" else None
        extents = self._log.versions.complete() if made is None else made
        return _as_offset(_first_seqs(self._wanted, extents, self._log))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._wanted.max_records_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        self._target = _next_seqs(self._log.versions.complete())

    def reportLatestOffset(self) -> dict[str, int]:
        return _as_offset(_next_seqs(self._log.extents()))

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        found = self._log.versions.complete()
        begin = _firsts(found) | _as_positions(start)
        extents = dict.fromkeys(begin, NOTHING_YET) | found
        _refuse_another_log(begin, extents, self._wanted.topic)
        if _may_be_partial(self._wanted):
            # Without this, a limit would be spent on what retention took, or a lost history.
            begin = {
                one: self._log.first_from(one, max(seq, extents[one].earliest))
                for one, seq in begin.items()
            }
        else:
            refuse_gaps(begin, extents, self._wanted.topic)
        available = _next_seqs(extents)
        if self._target is not None:
            target = self._target
            available = {
                one: min(available[one], target[one]) for one in available if one in target
            }
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = self._log.versions.same_version(begin, available)
        return _as_offset(advance(begin, ends, limit=most))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        begin, ends = _as_positions(start), _as_positions(end)
        if ends.keys() - begin.keys():
            begin = _firsts(self._log.extents()) | begin
        return _tasks(self._wanted, begin, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition)

    def stop(self) -> None:
        self._log.close()


# --- on the driver --------------------------------------------------------------------------------


class _Log:
    """What is there of the topic, asked again with every call: partitions may have been added.

    All calls share one event loop, because a reader's connections belong to the loop they were
    opened on.
    """

    def __init__(self, wanted: LogOptions) -> None:
        self._wanted = wanted
        self._reader = wanted.place.open_reader()
        self._runner = asyncio.Runner()
        self.versions = Versions(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def extents(self) -> dict[int, Extent]:
        return self._runner.run(self._extents())

    def version_at(self, partition: int, seq: int) -> int | None:
        """Versions never go down, so the next record stands for a corrupt one before it."""
        while True:
            try:
                found = self._next(partition, seq)
            except CorruptRecord as error:
                seq = error.seq + 1
            else:
                return found.version if found else None

    def first_from(self, partition: int, seq: int) -> int:
        """The first record there is from `seq` on; `seq` itself where there is none."""
        try:
            found = self._next(partition, seq)
        except CorruptRecord as error:
            return error.seq
        return found.seq if found else seq

    def _next(self, partition: int, seq: int) -> Record | None:
        ref = PartitionRef(self._wanted.topic, partition)
        found = self._runner.run(self._reader.read(ref, after_seq=seq - 1, limit=1))
        return found[0] if found else None

    def first_since(self, partition: int, time_ms: int) -> int:
        ref = PartitionRef(self._wanted.topic, partition)
        return self._runner.run(self._reader.first_since(ref, time_ms))

    def close(self) -> None:
        self._runner.run(self._reader.close())
        self._runner.close()

    async def _extents(self) -> dict[int, Extent]:
        refs = topic_partitions(self._wanted)
        return {ref.partition: await self._reader.extent(ref) for ref in refs}


def _first_seqs(
    wanted: LogOptions, extents: Mapping[int, CompleteStretch], log: _Log
) -> dict[int, int]:
    start = wanted.start
    if isinstance(start, Since):
        # What has come since the extents were taken isn't looked at.
        return {
            partition: max(
                there.earliest, min(log.first_since(partition, start.time_ms), there.head + 1)
            )
            for partition, there in extents.items()
        }
    after = starts_after(start, extents, wanted.topic)
    firsts = {partition: seq + 1 for partition, seq in after.items()}
    if isinstance(start, dict):
        if not _may_be_partial(wanted):
            refuse_gaps(start, extents, wanted.topic)
        firsts |= log.versions.since(start, extents)
    return firsts


def _firsts(extents: Mapping[int, Stretch]) -> dict[int, int]:
    """Where partitions begin that came later. What retention took before they were ever looked at
    can't be told from what a former topic of this name had."""
    return {partition: extent.earliest for partition, extent in extents.items()}


def _next_seqs(extents: Mapping[int, Stretch]) -> dict[int, int]:
    return {partition: extent.head + 1 for partition, extent in extents.items()}


def _refuse_another_log(
    begin: Mapping[int, int], extents: Mapping[int, Stretch], topic: str
) -> None:
    for partition, seq in begin.items():
        head = extents[partition].head
        if seq > head + 1:
            raise InvalidRequest(
                f"the stream's checkpoint has read partition {partition} of {topic} up to seq "
                f"{seq - 1}, but the log ends at {head}: it belongs to another log; "
                "start with a new checkpointLocation",
                partition=partition,
                head=head,
            )


def _tasks(
    wanted: LogOptions, start: Mapping[int, int], end: Mapping[int, int]
) -> list[InputPartition]:
    partial = _may_be_partial(wanted)
    return [
        LogTask(
            place=wanted.place,
            topic=wanted.topic,
            seqs=seqs,
            partial=partial,
            fails_on_loss=wanted.fails_on_loss,
        )
        for seqs in split(start, end, rows=wanted.rows_per_partition)
    ]


def _may_be_partial(wanted: LogOptions) -> bool:
    """Is it fine that retention took some of what is wanted? Who begins with the earliest wants
    what is left."""
    return wanted.start == "earliest" or not wanted.fails_on_loss


def _as_offset(positions: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): positions[partition] for partition in sorted(positions)}


def _as_positions(offset: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): seq for partition, seq in offset.items()}
