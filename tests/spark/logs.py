"""Logs that events are appended to, in both stores, and what a Spark session reads from them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import apsw
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.adapters.postgres.log_writer import PostgresLogWriter
from headgate.model.event import Event, Op, PartitionRef
from headgate.ports.log import LogWriter
from headgate.spark.table.source import register

TOPIC = "flights"
NOW_MS = 1_700_000_000_123
AWAIT_S = 90


class Log:
    """A data folder that events are appended to; `option` is how Spark is told of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.heads: Counter[int] = Counter()

    @property
    def option(self) -> dict[str, str]:
        return {"data": str(self.root)}

    def writer(self) -> LogWriter:
        return EmbeddedLogWriter(DataFolder.open(self.root))

    def append(
        self, partition: int, events: Sequence[Event], *, version: int = 3, now_ms: int = NOW_MS
    ) -> None:
        async def work() -> None:
            writer = self.writer()
            ref = PartitionRef(TOPIC, partition)
            await writer.open(ref, epoch=1, version=version)
            await writer.append(ref, events, version=version, now_ms=now_ms)
            await writer.close()

        asyncio.run(work())

    def grow(self, partition: int, count: int, *, version: int = 3, now_ms: int = NOW_MS) -> None:
        """Append `count` events whose ids say where they stand: 2-15 is seq 15 of partition 2."""
        head = self.heads[partition]
        self.heads[partition] += count
        seqs = range(head + 1, head + count + 1)
        events = [Event(f"{partition}-{seq}", b"{}") for seq in seqs]
        self.append(partition, events, version=version, now_ms=now_ms)

    def say(self, partition: int, op: Op, collection: str = "") -> None:
        """Append what has neither a key nor a document."""
        self.heads[partition] += 1
        event_id = f"{partition}-{self.heads[partition]}"
        self.append(partition, [Event(event_id, b"null", op=op, collection=collection)])

    def spread(self, events: Sequence[Event], partitions: int, *, version: int) -> None:
        """Append under a version of so many partitions, by a key that is a number, and seal them
        all: nothing more comes under this version."""

        async def work() -> None:
            writer = self.writer()
            for number in range(partitions):
                ref = PartitionRef(TOPIC, number)
                await writer.open(ref, epoch=1, version=version)
                own = [one for one in events if int(one.key or 0) % partitions == number]
                await writer.append(ref, own, version=version, now_ms=NOW_MS)
                await writer.open(ref, epoch=1, version=version, sealed=True)
            await writer.close()

        asyncio.run(work())

    def damage(self, partition: int, seq: int) -> None:
        """What is stored as its document is another one than was appended."""
        file = DataFolder(self.root).log_file(PartitionRef(TOPIC, partition))
        connection = apsw.Connection(str(file))
        connection.execute("UPDATE records SET document = x'5b5d' WHERE seq = ?", (seq,))
        connection.close()

    def lose(self, partition: int, count: int) -> None:
        """What a lost history leaves: so many seqs that nobody has."""

        async def work() -> None:
            writer, ref = self.writer(), PartitionRef(TOPIC, partition)
            head = (await writer.open(ref, epoch=1, version=3)).head
            await writer.move_on(ref, from_head=head, to_head=head + count)
            await writer.close()

        asyncio.run(work())
        self.heads[partition] += count

    def drop(self, partition: int) -> None:
        """What retention does: the records go, the head stays."""

        async def work() -> None:
            writer = self.writer()
            await writer.drop_records(PartitionRef(TOPIC, partition), epoch=1)
            await writer.close()

        asyncio.run(work())


class PostgresLog(Log):
    """The same in a database of its own."""

    def __init__(self, dsn: str) -> None:
        super().__init__(Path())
        self.dsn = dsn

    @property
    def option(self) -> dict[str, str]:
        return {"dsn": self.dsn}

    def writer(self) -> LogWriter:
        return PostgresLogWriter(self.dsn)


def table(spark: SparkSession, log: Log, **options: object) -> DataFrame:
    register(spark)
    given = {name.rstrip("_"): str(value) for name, value in options.items()}
    return spark.read.format("headgate_log").options(**log.option, **given).load(TOPIC)


def ids(rows: DataFrame) -> list[str]:
    return [row.event_id for row in rows.select("event_id").collect()]


def named(partition: int, seqs: range) -> list[str]:
    return [f"{partition}-{seq}" for seq in seqs]


class Collected:
    """A sink: the event ids of every batch that had any."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def start(
        self, stream: DataFrame, checkpoint: Path, *, all_now: bool = False
    ) -> StreamingQuery:
        def collect(batch: DataFrame, _: int) -> None:
            found = ids(batch)
            if found:
                self.batches.append(found)

        writer = stream.writeStream.foreachBatch(collect)
        writer = writer.option("checkpointLocation", str(checkpoint))
        return (writer.trigger(availableNow=True) if all_now else writer).start()

    def take(self) -> list[str]:
        """What came since the last call."""
        taken = [one for batch in self.batches for one in batch]
        self.batches.clear()
        return taken
