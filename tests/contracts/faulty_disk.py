"""Disks that are slow, fail or are full.

For SQLite one whose syncs can be slow or fail, while everything else is real. Only the write-ahead
log is affected: that is the file whose sync a commit waits for.
"""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

NAME = "headgate-faulty-disk"


class FaultyDisk(apsw.VFS):
    """Every connection that is opened while it is in place goes through it.

    `sync_s` slows every sync down; `stalls_s` holds up the next one of a file, by its path, once.
    """

    def __init__(self) -> None:
        self.sync_s = 0.0
        self.stalls_s: dict[str, float] = {}
        self.sync_fails = False
        self.syncs = 0
        self._never = threading.Event()
        self.real = apsw.vfs_names()[0]
        super().__init__(NAME, self.real, makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return _File(self, name, flags)

    def before_sync(self, path: str) -> None:
        self.syncs += 1
        pause_s = self.stalls_s.pop(path, self.sync_s)
        if pause_s:
            self._never.wait(pause_s)


class _File(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: Any, flags: Any) -> None:
        self._disk = disk
        self._is_wal = bool(flags[0] & apsw.SQLITE_OPEN_WAL)
        self._path = str(name.filename() if isinstance(name, apsw.URIFilename) else name)
        super().__init__(disk.real, name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        if self._is_wal:
            self._disk.before_sync(self._path.removesuffix("-wal"))
            super().xSync(flags)
            if self._disk.sync_fails:
                error = apsw.IOError("injected: the disk didn't confirm")
                error.extendedresult = apsw.SQLITE_IOERR_FSYNC  # type: ignore[attr-defined]
                raise error
        else:
            super().xSync(flags)


@contextmanager
def faulty_disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk()
    try:
        yield disk
    finally:
        disk.unregister()


def mount_tiny_disk(path: Path, size: str) -> Iterator[Path]:
    """A file system of `size` in memory, for as long as a fixture yields it."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        [reason, *_] = mounted.stderr.splitlines() or ["mount gave no reason"]
        pytest.skip(f"no file system can be mounted here, not even by root: {reason}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill_up(disk: Path) -> Path:
    """The file that leaves no room on `disk` until it is removed."""
    ballast = disk / "ballast"
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(descriptor, b"x" * 4096)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    finally:
        os.close(descriptor)
    return ballast
