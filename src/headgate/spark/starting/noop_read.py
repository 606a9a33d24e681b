"""What Spark does with a topic by itself: read it, through an identity, into the noop sink.

The baseline that the lanes are measured against. Its session is the process's only one: a router
that starts in the same process after it takes it for its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from headgate.spark.starting.java import Java
from headgate.spark.starting.session import build_session
from headgate.spark.table.source import read_topic, register


class NoopReads:
    """Blocks for seconds, also when it is made."""

    def __init__(self, *, master: str, java: Java, scratch: Path, driver_memory: str) -> None:
        self._spark = build_session(
            app_name="headgate-noop",
            master=master,
            java=java,
            scratch=scratch,
            driver_memory=driver_memory,
        )
        register(self._spark)

    def read(self, topic: str, data: Path) -> None:
        """All that is there of `topic` in the log in the folder `data`."""
        records = read_topic(self._spark, topic, data=data)
        same = records.mapInArrow(identity, records.schema)
        same.write.format("noop").mode("overwrite").save()

    def stop(self) -> None:
        self._spark.stop()


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches
