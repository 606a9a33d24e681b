"""A streaming query that runs all along, and a batch read that must say the same when it is over.

The query is judged as it goes, like a subscriber; but nothing comes twice, and no record after one
of a later version. Spark has to be there: seconds to start, and a core while it runs.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple, Self

from pyspark.sql import DataFrame

from headgate.spark.starting.session import local_session
from headgate.spark.table.source import read_topic, stream_topic
from tests.system.soaking.flood import Violation
from tests.system.soaking.judge import Account

MASTER: Final = "local[2,4]"
COLUMNS: Final = ("version", "partition", "seq", "event_id", "key", "document")


class Row(NamedTuple):
    """A record as Spark tells it; of one key, rows sort as they were appended."""

    version: int
    partition: int
    seq: int
    event_id: str
    key: str
    document: str

    @property
    def number(self) -> int:
        number: int = json.loads(self.document)["n"]
        return number


def rows_of(table: DataFrame) -> list[Row]:
    return [Row(*row) for row in table.select(*COLUMNS).collect()]


class SparkQuery:
    """Use it as a context manager."""

    def __init__(self, data: Path, topic: str, account: Account, scratch: Path) -> None:
        self.name = account.name
        self.account = account
        self._data = data
        self._topic = topic
        self._came: list[tuple[list[Row], float]] = []
        self._lock = threading.Lock()
        self._rows: set[Row] = set()
        self._version = 0
        self.batches = 0
        self._spark = local_session("soak", MASTER)
        stream = stream_topic(self._spark, topic, data=data)
        writer = stream.writeStream.foreachBatch(self._collect)
        self._query = writer.option("checkpointLocation", str(scratch / "checkpoint")).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()
        self._spark.stop()

    def _collect(self, batch: DataFrame, _: int) -> None:
        rows = rows_of(batch)
        with self._lock:
            self._came.append((rows, time.monotonic()))

    @property
    def count(self) -> int:
        return self.account.count

    def look(self) -> None:
        with self._lock:
            came, self._came = self._came, []
        for rows, at_s in came:
            if rows:
                self.batches += 1
            self._judge(rows, at_s)

    def is_complete(self, count: int) -> bool:
        self.look()
        if not self._query.isActive:
            raise Violation(f"{self.name} ended: {self._query.exception()}")
        return self.count >= count

    def _judge(self, rows: list[Row], at_s: float) -> None:
        if len({row.version for row in rows}) > 1:
            raise Violation(f"{self.name} got several versions in one batch")
        for row in rows:
            if row.version < self._version:
                raise Violation(f"{self.name} got {row} after version {self._version}")
            self._version = row.version
            if not self.account.take(row.key, row.number, (row.partition, row.seq), at_s):
                raise Violation(f"{self.name} got {row} twice")
            self._rows.add(row)

    def compare(self, table: Account) -> None:
        """What a batch read says now is what the query has had, and in the order of version and
        seq each key is in the producer's: `table` takes it."""
        rows = rows_of(read_topic(self._spark, self._topic, data=self._data))
        if set(rows) != self._rows or len(rows) != len(self._rows):
            differ = sorted(set(rows) ^ self._rows)
            raise Violation(f"{self.name} and a batch read differ in {len(differ)}: {differ[:3]}")
        for row in sorted(rows, key=lambda row: (row.version, row.seq)):
            if not table.take(row.key, row.number, (row.partition, row.seq), 0.0):
                raise Violation(f"{table.name} has {row} twice")
