"""Where `headgate produce` reads its lines from: standard input and files, plain or gzipped.

What is gzipped shows in its first bytes, whatever its name. Invariants: reading takes what is there
and doesn't wait for more, so that `tail -f` flows; at most CHUNK_BYTES are unpacked at a time, so
that no small file fills the memory. Nothing is open before the first read, so that a thousand files
are no problem.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.errors import InvalidRequest

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CHUNK_BYTES = 256 * 1024
STANDARD_INPUT = Path("-")
_GZIP_MAGIC = b"\x1f\x8b"


class LineSource:
    """One input; `bytes_read` of its `size_bytes` (None: nobody knows) have been read so far."""

    def __init__(self, path: Path = STANDARD_INPUT) -> None:
        self._path = None if path == STANDARD_INPUT else path
        self.name = "standard input" if self._path is None else str(path)
        self._descriptor = 0
        self._raw: _Raw | None = None
        self._text: gzip.GzipFile | _Raw | None = None
        try:
            found = os.fstat(0) if self._path is None else self._path.stat()
            # A pipe that is opened twice would be another one; anything else is the same again.
            self.can_rewind = not any(
                kind(found.st_mode) for kind in (stat.S_ISFIFO, stat.S_ISCHR, stat.S_ISSOCK)
            )
            on_disk = self._path is None and self.can_rewind
            self._start = os.lseek(0, 0, os.SEEK_CUR) if on_disk else 0
        except OSError as error:
            raise self._unreadable(error) from error
        is_file = stat.S_ISREG(found.st_mode)
        self.size_bytes = max(found.st_size - self._start, 0) if is_file else None

    @property
    def is_terminal(self) -> bool:
        return self._path is None and os.isatty(0)

    @property
    def bytes_read(self) -> int:
        return 0 if self._raw is None else self._raw.bytes_read

    def read(self) -> bytes:
        """What is there, up to CHUNK_BYTES; waits only when nothing is; b"" at the end."""
        try:
            if self._text is None:
                self._text = self._open()
            if isinstance(self._text, gzip.GzipFile):
                return self._text.read1(CHUNK_BYTES)
            return self._text.read(CHUNK_BYTES) or b""
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidRequest(f"{self.name} is not a whole gzip file: {error}") from error
        except OSError as error:
            raise self._unreadable(error) from error

    def rewind(self) -> None:
        """Begin anew with the next read; until then nothing is open."""
        self.close()
        if self._path is None:
            os.lseek(0, self._start, os.SEEK_SET)

    def close(self) -> None:
        self._raw = self._text = None
        if self._descriptor:
            os.close(self._descriptor)
            self._descriptor = 0

    def _open(self) -> gzip.GzipFile | _Raw:
        if self._path is not None:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._raw = _Raw(self._descriptor)
        return gzip.GzipFile(fileobj=self._raw, mode="rb") if self._raw.is_gzip() else self._raw

    def _unreadable(self, error: OSError) -> InvalidRequest:
        return InvalidRequest(f"can't read {self.name}: {error.strerror}")


class _Raw(io.RawIOBase):
    """A descriptor without Python's buffers, so that a thread that waits for input holds no lock
    when the program ends; the first bytes can be looked at before they are read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._ahead = b""
        self.bytes_read = 0

    def is_gzip(self) -> bool:
        while len(self._ahead) < len(_GZIP_MAGIC) and _GZIP_MAGIC.startswith(self._ahead):
            more = self._take(len(_GZIP_MAGIC) - len(self._ahead))
            if not more:
                break
            self._ahead += more
        return self._ahead == _GZIP_MAGIC

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        taken, self._ahead = self._ahead[: len(view)], self._ahead[len(view) :]
        if not taken:
            taken = self._take(len(view))
        # Whether another gzip member follows is told by two bytes, which are asked for alone.
        while 0 < len(taken) < len(view) <= len(_GZIP_MAGIC):
            more = self._take(len(view) - len(taken))
            if not more:
                break
            taken += more
        view[: len(taken)] = taken
        return len(taken)

    def _take(self, most: int) -> bytes:
        data = os.read(self._descriptor, most)
        self.bytes_read += len(data)
        return data


def open_sources(paths: Sequence[Path]) -> list[LineSource]:
    """The inputs that `paths` name, in order; standard input when there are none."""
    if list(paths).count(STANDARD_INPUT) > 1:
        raise InvalidRequest("standard input (-) can be read only once; name it once")
    return [LineSource(path) for path in paths or [STANDARD_INPUT]]
