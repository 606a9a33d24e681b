"""What a task of a topic's DataFrame does: read one range of the log as Arrow, in Spark's columns.

Invariant: `seq` is dense, so a range is read whole or the task fails; only a task that may be
`partial` takes what retention has left. Where a record says that its origin has lost changes, a
task that `fails_on_loss` does, and any other one shows it as a row; where one is corrupt, it does
too, and any other one goes on without it. A task opens the log for
itself, after the fork, and closes it before it ends; what it holds in memory is bounded by
BATCH_ROWS and BATCH_BYTES.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headgate.decide.feed.start_positions import corrupt, gone, lost_at_origin
from headgate.decide.log.ranges import SeqRange
from headgate.decide.produce.headers import decoded
from headgate.errors import CorruptRecord
from headgate.model.event import PartitionRef
from headgate.ports.log import LogReader
from headgate.spark.table.place import LogPlace

SCHEMA = StructType(
    [
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("seq", LongType(), nullable=False),
        StructField("version", IntegerType(), nullable=False),
        StructField("event_id", StringType(), nullable=False),
        StructField("key", StringType()),
        StructField("collection", StringType(), nullable=False),
        StructField("op", StringType(), nullable=False),
        StructField("document", StringType(), nullable=False),
        StructField("earlier", StringType()),
        StructField("source", StringType()),
        StructField("time", TimestampType(), nullable=False),
        StructField("headers", MapType(StringType(), StringType())),
    ]
)
"""The columns of Record; documents as JSON text, the time as an instant, headers as a map."""

_ARROW_TYPES: dict[type, pa.DataType] = {
    StringType: pa.string(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    TimestampType: pa.timestamp("us", tz="UTC"),
    MapType: pa.map_(pa.string(), pa.string()),
}
_ARROW_SCHEMA = pa.schema(
    [pa.field(one.name, _ARROW_TYPES[type(one.dataType)], one.nullable) for one in SCHEMA]
)

BATCH_ROWS = 100_000
"""Large batches cost Spark less: a count took about a tenth less CPU time than with 10,000."""
BATCH_BYTES = 64 * 1024 * 1024
"""What a task gathers in memory at most, give or take one read of the log."""


class LogTask(InputPartition):
    """One range for one task. `partial` says that what retention took may be missing."""

    def __init__(
        self,
        *,
        place: LogPlace,
        topic: str,
        seqs: SeqRange,
        partial: bool,
        fails_on_loss: bool = True,
    ) -> None:
        super().__init__(None)
        self.place = place
        self.topic = topic
        self.seqs = seqs
        self.partial = partial
        self.fails_on_loss = fails_on_loss


def read_task(task: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(task, LogTask):
        return  # Spark makes up an empty task for a read without any.
    partition, after_seq, up_to_seq = task.seqs
    reader = task.place.open_reader()
    try:
        ref = PartitionRef(task.topic, partition)
        batches = _batches(reader, task, ref)
        expected = after_seq + 1
        for batch in _gathered(batches):
            first, last = batch["seq"][0].as_py(), batch["seq"][-1].as_py()
            if not task.partial and (first > expected or last - first >= batch.num_rows):
                raise gone(task.topic, partition, first=expected, last=last)
            if task.fails_on_loss:
                _refuse_markers(batch, task.topic, partition)
            yield _for_spark(batch)
            expected = last + 1
        if not task.partial and expected <= up_to_seq:
            raise gone(task.topic, partition, first=expected, last=up_to_seq)
    finally:
        asyncio.run(reader.close())


def _batches(reader: LogReader, task: LogTask, ref: PartitionRef) -> Iterator[pa.RecordBatch]:
    """What can be read of the task's range, up to a corrupt record where that counts as a loss."""
    _, after_seq, up_to_seq = task.seqs
    while after_seq < up_to_seq:
        try:
            yield from reader.read_arrow(ref, after_seq=after_seq, up_to_seq=up_to_seq)
        except CorruptRecord as error:
            if task.fails_on_loss:
                raise corrupt(ref.topic, ref.partition, error.seq) from error
            after_seq = error.seq
        else:
            return


def _refuse_markers(batch: pa.RecordBatch, topic: str, partition: int) -> None:
    at = pc.index(batch["op"], "lost").as_py()
    if at >= 0:
        raise lost_at_origin(topic, partition, batch["seq"][at].as_py())


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of the size that Spark takes fastest."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    [joined] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _for_spark(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["time"] = columns.pop("time_ms").cast(pa.timestamp("ms", tz="UTC"))
    columns["headers"] = _maps(columns["headers"])
    arrays = [columns[field.name].cast(field.type) for field in _ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def _maps(headers: pa.Array) -> pa.Array:
    """Of the JSON that a record keeps; most have none."""
    kind = _ARROW_TYPES[MapType]
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), kind)
    by_name = [decoded(one) for one in headers.to_pylist()]
    return pa.array([list(one.items()) or None for one in by_name], kind)
