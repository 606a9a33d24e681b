"""Whether the files of a database are still those that were opened.

SQLite goes on with the files that it has open, wherever they are by now. Into one that was deleted,
or replaced by a restore, it writes as happily as ever, and a crash takes all of that along. The
same goes for the write-ahead log beside it; and a process that opens a file after its shared memory
was deleted sees none of what is written from then on, and overwrites it. So all three are compared.

Invariant: `changed` is empty only where all three were at their paths at the time of the call.
A look costs one system call as long as nothing was added to their directory or taken from it,
and nothing is a link.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from pathlib import Path

import apsw

from headgate.errors import StorageFailed

BESIDE = ("-wal", "-shm")
"""A database's write-ahead log, and the shared memory of its users."""
FRESH_NS = 50_000_000
"""A directory changed this recently may change again without another time of change."""

Identity = tuple[int, int]


class OpenFiles:
    """What `connection` has opened at `path`; its first read or write must be past."""

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        real = connection.filename  # Where `path` is a link, the others are beside what it names.
        self.paths = (str(path), *(f"{real}{suffix}" for suffix in BESIDE))
        self._directory = str(path.parent)
        self._one_directory = identity(str(Path(real).parent)) == identity(self._directory)
        self._opened = [identity(one) for one in self.paths]
        self._unchanged_since: tuple[int, int, int] | None = None
        if _has_moved(connection):
            self._opened[0] = None

    def changed(self) -> str:
        """The path of a file that isn't the one that was opened; empty when all of them are."""
        try:
            found = os.stat(self._directory)  # noqa: PTH116 - every commit waits for it
        except OSError:
            return self._directory
        state = (found.st_dev, found.st_ino, found.st_ctime_ns)
        if state == self._unchanged_since:
            return ""
        for path in self.paths:
            if not self.is_ours(path):
                return path
        if self._one_directory and time.time_ns() - found.st_ctime_ns > FRESH_NS:
            self._unchanged_since = state
        return ""

    def replaced(self) -> bool:
        """Is there something else in the place of what was opened?

        A log or shared memory that is merely missing is its writer's to make again.
        """
        if not self.changed():
            return False
        database, *beside = self.paths
        return not self.is_ours(database) or any(
            identity(path) is not None and not self.is_ours(path) for path in beside
        )

    def is_ours(self, path: str) -> bool:
        """Is what was opened still at `path`?"""
        opened = self._opened[self.paths.index(path)]
        return opened is not None and identity(path) == opened


def let_go(connection: apsw.Connection, files: OpenFiles) -> None:
    """Close a database whose files aren't all at their paths, and leave those paths to the next.

    What its write-ahead log holds goes into the database first, wherever that is: nothing is lost
    where only the log or the shared memory was deleted. Beside another database, what is ours goes,
    because it would be taken for a part of that one. What others have made beside ours stays: left
    to itself, SQLite would mix the two, and delete theirs.
    """
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    database, *beside = files.paths
    stale = []
    if not files.is_ours(database):
        stale = [path for path in beside if files.is_ours(path)]
        with contextlib.suppress(apsw.Error):
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    elif files.replaced():
        raise StorageFailed(
            f"what belongs to {database} was replaced while it is in use: stop every node that "
            "uses the data folder, then start them again"
        )
    else:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close(True)
    for path in stale:
        Path(path).unlink(missing_ok=True)


def identity(path: str) -> Identity | None:
    """Of the file at `path`, for as long as a process has it open; None where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - every read of a busy directory waits for it
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _has_moved(connection: apsw.Connection) -> bool:
    """Whether it was too late to look at the path: SQLite knows what it opened."""
    moved = ctypes.c_int(0)
    connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(moved))
    return bool(moved.value)
