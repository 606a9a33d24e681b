"""Records as Arrow: the columns that `read_arrow` gives, whichever the store.

Apart from the port, so that whoever needs the log's contract doesn't load Arrow with it.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    ]
)
"""The columns of Record as Arrow; documents are raw JSON in UTF-8."""


def record_batch(ref: PartitionRef, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """`rows` have the columns of Record from `seq` on; there is at least one."""
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
