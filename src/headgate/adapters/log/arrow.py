"""Records as Arrow: the columns that `read_arrow` gives, the same for every store.

Apart from the port and from the readers, which load it with the first `read_arrow`: Arrow takes
half as much memory as an ingest node does, and only Spark's tasks ask for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from headgate.model.event import PartitionRef

ARROW_BATCH_ROWS = 10_000

RECORD_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("version", pa.int32(), nullable=False),
        pa.field("event_id", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("collection", pa.string(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("document", pa.binary(), nullable=False),
        pa.field("earlier", pa.binary()),
        pa.field("source", pa.string()),
        pa.field("time_ms", pa.int64(), nullable=False),
        pa.field("headers", pa.binary()),
    ]
)
"""The columns of Record as Arrow; documents and headers are raw JSON in UTF-8."""


def batches_of(
    ref: PartitionRef, pages: Iterable[Sequence[tuple[Any, ...]]]
) -> pa.RecordBatchReader:
    """A batch of each page, read when it is its turn. Rows have the columns of Record from `seq`
    on, and a page has at least one."""
    return pa.RecordBatchReader.from_batches(RECORD_SCHEMA, (_batch(ref, rows) for rows in pages))


def _batch(ref: PartitionRef, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns: list[Sequence[Any]] = [
        [ref.topic] * len(rows),
        [ref.partition] * len(rows),
        *zip(*rows, strict=True),
    ]
    arrays = [
        pa.array(column, type=field.type)
        for column, field in zip(columns, RECORD_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)
