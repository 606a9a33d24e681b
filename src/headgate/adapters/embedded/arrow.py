"""Records as Arrow: the columns that `read_arrow` gives.

Apart from the port, so that whoever needs the log's contract doesn't load Arrow with it.
"""

from __future__ import annotations

import pyarrow as pa

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
