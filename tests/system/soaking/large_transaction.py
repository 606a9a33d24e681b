"""A transaction of a million rows of PostgreSQL, by a connector into the log, for `make soak`.

Judged are that each row is in the log once and in the transaction's order, and that no ingest node
grows by what the transaction would take in memory.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final, Self

import psutil
import psycopg

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.model.event import PartitionRef
from tests.servers.postgres import Postgres
from tests.system.cluster import Cluster, own_port
from tests.system.harness import create_topic, until
from tests.system.soaking.flood import Violation

ROWS: Final = 1_000_000
BODY: Final = 200
"""Characters of each row: all of them are far more than a node may grow."""
GROWS_MOST_MIB: Final = 100
PARTITIONS: Final = 4
TOPIC: Final = "bulk"
READ: Final = 5_000
PATIENCE_S: Final = 900.0
LOOK_EVERY_S: Final = 0.2
MIB: Final = 2**20


say = print
"""What the command says."""


def large_transaction(folder: Path, rows: int) -> None:
    """Raises Violation."""
    settings = own_port()
    with (
        Postgres(max_wal_size="4GB") as server,
        Cluster(folder / "bulk", ingest_nodes=2, settings=settings) as cluster,
    ):
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE bulk (id int PRIMARY KEY, body text)")
            create_topic(cluster.url, TOPIC, PARTITIONS)
            created = cluster.command(
                *("connector", "create", TOPIC, "--type", "postgresql", "--dsn", server.dsn),
                *("--table", "public.bulk", "--topic", TOPIC),
            )
            if created.wait() != 0:
                raise Violation(f"no connector: {created.err.lines}")
            active = "SELECT 1 FROM pg_replication_slots WHERE active"
            until(lambda: connection.execute(active).fetchone() is not None, "it reads", 60.0)
            with _Memory([cluster.pid(one) for one in cluster.ingest_ids]) as memory:
                begun_s = time.monotonic()
                connection.execute(
                    "INSERT INTO bulk SELECT i, repeat('x', %s) FROM generate_series(1, %s) i",
                    (BODY, rows),
                )
                committed_s = time.monotonic()
                asyncio.run(_arrived(cluster.data, rows))
                took_s = time.monotonic() - committed_s
        asyncio.run(_judge(cluster.data, rows))
    said = f"{rows:,} rows in one transaction: committed after {committed_s - begun_s:.0f} s, "
    said += f"in the log {took_s:.0f} s later; ingest nodes grew by {memory.grown_mib:.0f} MiB"
    say(said)
    if memory.grown_mib > GROWS_MOST_MIB:
        raise Violation(f"{said}, more than {GROWS_MOST_MIB}")


class _Memory:
    """How much the largest grower of some processes grows while it is looked at."""

    def __init__(self, pids: list[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self._before = [one.memory_info().rss for one in self._processes]
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch)
        self.grown_mib = 0.0

    def __enter__(self) -> Self:
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watching.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            for process, before in zip(self._processes, self._before, strict=True):
                grown = (process.memory_info().rss - before) / MIB
                self.grown_mib = max(self.grown_mib, grown)


async def _arrived(data: Path, rows: int) -> None:
    reader = EmbeddedLogReader(DataFolder.open(data))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                heads = [(await reader.extent(ref)).head for ref in _refs()]
                if sum(heads) >= rows:
                    return
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise Violation(f"{sum(heads):,} of {rows:,} rows are in the log") from None
    finally:
        await reader.close()


async def _judge(data: Path, rows: int) -> None:
    reader = EmbeddedLogReader(DataFolder.open(data))
    seen = bytearray(rows + 1)
    try:
        for ref in _refs():
            after, last = 0, 0
            while found := await reader.read(ref, after_seq=after, limit=READ):
                for record in found:
                    number = int(record.key or 0)
                    if number <= last or seen[number]:
                        raise Violation(f"row {number} came behind {last} in {ref}, or twice")
                    seen[number], last = 1, number
                after = found[-1].seq
    finally:
        await reader.close()
    if sum(seen) != rows:
        raise Violation(f"{rows - sum(seen):,} rows are missing in the log")


def _refs() -> list[PartitionRef]:
    return [PartitionRef(TOPIC, number) for number in range(PARTITIONS)]


def main() -> int:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory(prefix="headgate-soak-", ignore_cleanup_errors=True) as folder:
        try:
            large_transaction(Path(folder), rows)
        except (Violation, AssertionError) as error:
            say(f"FAILED: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
