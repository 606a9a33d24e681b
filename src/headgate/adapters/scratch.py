"""A folder for files that one process makes and that aren't needed after it, beside the folders of
others.

Invariant: nobody removes the folder of a process that lives, and what the dead left is removed by
the next that comes. Process ids can't say who lives: two containers that share a data folder may
have the same one. A lock can, because the kernel lets go of it with the process; it is in a file
beside the folder, which its owner may empty or remove.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from pathlib import Path

NAME_BYTES = 4


class Scratch:
    """`path` is this process's alone from now on; nothing is there yet."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_what_is_left(parent)
        self._lock_file, self._lock = _own(parent)
        self.path = self._lock_file.with_suffix("")

    def remove(self) -> None:
        """With everything in it; the process may go on."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock_file.unlink(missing_ok=True)
        os.close(self._lock)


def _own(parent: Path) -> tuple[Path, int]:
    """A lock that nobody else has, in a file that is still there: one that comes for the leftovers
    may have taken a new file for one."""
    while True:
        file = parent / f"{secrets.token_hex(NAME_BYTES)}.lock"
        descriptor = _taken(file, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        if descriptor is not None and file.exists():
            return file, descriptor
        if descriptor is not None:
            os.close(descriptor)


def _remove_what_is_left(parent: Path) -> None:
    for file in parent.glob("*.lock"):
        descriptor = _taken(file, os.O_RDWR)
        if descriptor is not None:
            shutil.rmtree(file.with_suffix(""), ignore_errors=True)
            file.unlink(missing_ok=True)
            os.close(descriptor)
    for folder in parent.iterdir():
        # Its lock comes before a folder and goes after it: this one had none.
        if folder.suffix != ".lock" and not folder.with_suffix(".lock").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _taken(file: Path, flags: int) -> int | None:
    """The lock of `file`; None where another process has it, or the file is gone."""
    try:
        descriptor = os.open(file, flags)
    except (FileNotFoundError, FileExistsError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
