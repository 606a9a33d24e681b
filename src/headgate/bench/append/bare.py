"""The baseline of the append benchmark: the same rows into the same files by SQLite alone.

Same schema, same pragmas (WAL, synchronous=FULL), the idempotency keys and the head included; one
thread per file, one transaction per request. No HTTP, no JSON, no event loop, no other process:
what this disk and this database can do. Rows are made before the clock starts.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import apsw
import msgspec

from headgate.adapters.embedded.log.schema import LOG_SCHEMA, rows
from headgate.adapters.embedded.sqlite import connect
from headgate.bench.append.rows import document, event_id, key
from headgate.bench.worker import serve

RECORDS = (
    "INSERT INTO records "
    "(seq, version, event_id, key, collection, op, document, earlier, source, time_ms) VALUES "
)
IDS = "INSERT INTO ids (event_id, seq, time_ms) VALUES "
ROWS_PER_STATEMENT = 100
READY_TIMEOUT_S = 60.0


class Bare(msgspec.Struct):
    folder: str
    round_name: str
    writers: int
    commits: int
    rows: int
    document_bytes: int


class Written(msgspec.Struct):
    seconds: float


Commit = list[tuple[str, list[object]]]
"""The statements of one transaction."""


def run(order: Bare) -> Written:
    writers = [_Writer(order, number) for number in range(order.writers)]
    with ThreadPoolExecutor(order.writers) as threads:
        writing = [threads.submit(writer.run) for writer in writers]
        for writer in writers:
            writer.is_ready.wait(READY_TIMEOUT_S)
        started_s = time.perf_counter()
        for writer in writers:
            writer.go.set()
        for one in writing:
            one.result()
        return Written(time.perf_counter() - started_s)


class _Writer:
    """Its share of the commits, one after the other, into a file that stays for the next round."""

    def __init__(self, order: Bare, number: int) -> None:
        self._order = order
        self._number = number
        self.is_ready = threading.Event()
        self.go = threading.Event()

    def run(self) -> None:
        order = self._order
        connection = _kept_open(Path(order.folder) / f"{self._number}.db")
        head = _head(connection)
        count = order.commits // order.writers
        commits = [self._commit(head, at) for at in range(count)]
        self.is_ready.set()
        self.go.wait()
        for at, statements in enumerate(commits):
            connection.execute("BEGIN IMMEDIATE")
            for statement, values in statements:
                connection.execute(statement, values)
            last = head + (at + 1) * order.rows
            connection.execute("UPDATE partition SET head = ?", (last,))
            connection.execute("COMMIT")

    def _commit(self, head: int, at: int) -> Commit:
        order, statements = self._order, Commit()
        start = at * order.rows
        for first in range(start, start + order.rows, ROWS_PER_STATEMENT):
            numbers = range(first, min(first + ROWS_PER_STATEMENT, start + order.rows))
            ids: list[object] = []
            records: list[object] = []
            for number in numbers:
                name = event_id(f"{order.round_name}.{self._number}", number)
                seq, body = head + number + 1, document(number, order.document_bytes)
                ids += (name, seq, 0)
                records += (seq, 1, name, key(number), "", "insert", body, None, None, 0)
            statements.append((IDS + rows(3, len(numbers)), ids))
            statements.append((RECORDS + rows(10, len(numbers)), records))
        return statements


@cache
def _kept_open(path: Path) -> apsw.Connection:
    """From round to round, as the system keeps its own: a new write-ahead log costs more to sync,
    because it grows."""
    return connect(path, LOG_SCHEMA)


def _head(connection: apsw.Connection) -> int:
    [(head,)] = connection.execute("SELECT head FROM partition")
    return int(head)


if __name__ == "__main__":
    serve(Bare, run)
