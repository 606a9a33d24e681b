"""Keeps a partition's files small: free pages go back to the disk, its write-ahead log is moved.

No answer waits for any of it, and all of it is done in turns, between which appends get theirs.
"""

from __future__ import annotations

import contextlib

import apsw

from headgate.adapters.embedded.sqlite import storage_errors

CHECKPOINT_PAGES = 1_000
"""4 MB of write-ahead log are moved into the file at a time. More at once was not faster, and the
appends that come meanwhile wait longer."""
WAL_PAGES_MAX = 16_000
"""64 MB; a write-ahead log that is longer begins anew, as soon as those are done who read it now.
By itself it never does while two or more readers take turns: one of them always reads it."""
RESTART_TIMEOUT_MS = 100
"""Longest wait for them, which appends wait for, too. The next turn tries again."""
VACUUM_PAGES = 500
"""So many free pages are given back in one turn."""
FREE_PAGES_KEPT = 256


class Upkeep:
    def __init__(self, connection: apsw.Connection, what: str) -> None:
        self._connection = connection
        self._what = what
        self._moved_pages = 0

    def give_back(self) -> bool:
        """Return a bounded number of free pages to the disk; True when there are more.

        Some are kept: the next appends need them.
        """
        with storage_errors(self._what):
            free = int(self._connection.pragma("freelist_count"))
            if free <= FREE_PAGES_KEPT:
                return False
            pages = min(free - FREE_PAGES_KEPT, VACUUM_PAGES)
            self._connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
        return True

    def tidy(self) -> None:
        """Move the write-ahead log into the file when it has grown; no answer waits for it.

        When it can't be moved now, everything is still in the log: the next commit tries again.
        """
        with contextlib.suppress(apsw.Error):
            if self._written_pages() - self._moved_pages >= CHECKPOINT_PAGES:
                self.move_wal()

    def move_wal(self) -> None:
        with contextlib.suppress(apsw.Error):
            length, _ = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._moved_pages = self._written_pages()
            if length > WAL_PAGES_MAX:
                self._restart_wal()

    def _restart_wal(self) -> None:
        """Let the next commit begin at its beginning. Readers that begin meanwhile read the file
        itself, so this waits only for those that had begun before."""
        patience_ms = int(self._connection.pragma("busy_timeout"))
        self._connection.set_busy_timeout(RESTART_TIMEOUT_MS)
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        finally:
            self._connection.set_busy_timeout(patience_ms)

    def _written_pages(self) -> int:
        """By this connection, to its write-ahead log. A hook would know too, but it takes the
        interpreter lock in the middle of every commit."""
        return self._connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]
