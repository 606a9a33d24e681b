"""JSON lines: where they are read from, how they are cut, and how each becomes an event.

Invariants: a document goes on exactly as it stands in its line; a line that can't be sent is
refused with its number and what is wrong with it; no line takes more memory than the longest line
allowed. Reading takes what is there and doesn't wait for more, so that `tail -f` flows.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headgate.client.outgoing import OutgoingEvent
from headgate.errors import InvalidRequest
from headgate.model.event import Op

CHUNK_BYTES = 256 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class EventShape:
    """What `headgate produce` adds to each document. `key_field` is a dotted path."""

    key_field: str | None = None
    collection: str = ""
    op: Op = "insert"


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    line: int
    event: OutgoingEvent


class LineSource:
    """Standard input or a file, also a gzipped one. Reads past Python's buffers, so that a thread
    that waits for input holds no lock when the program ends."""

    def __init__(self, path: Path | None) -> None:
        self.name = "standard input" if path is None else str(path)
        self._gzip: gzip.GzipFile | None = None
        self._descriptor = 0
        if path is not None:
            self._descriptor = self._open(path)
            if path.suffix == ".gz":
                self._file = os.fdopen(self._descriptor, "rb")
                self._gzip = gzip.GzipFile(fileobj=self._file, mode="rb")
        self._start = self._position()

    @property
    def is_terminal(self) -> bool:
        return os.isatty(self._descriptor)

    @property
    def can_rewind(self) -> bool:
        """Whether the whole input can be looked at before any of it is sent."""
        return self._start is not None

    def read(self) -> bytes:
        """What is there, up to CHUNK_BYTES; waits only when nothing is; b"" at the end."""
        try:
            if self._gzip is not None:
                return self._gzip.read1(CHUNK_BYTES)
            return os.read(self._descriptor, CHUNK_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidRequest(f"{self.name} is not a whole gzip file: {error}") from error
        except OSError as error:
            raise InvalidRequest(f"can't read {self.name}: {error.strerror}") from error

    def close(self) -> None:
        if self._gzip is not None:
            self._file.close()
        elif self._descriptor:
            os.close(self._descriptor)

    def rewind(self) -> None:
        if self._gzip is not None:
            self._gzip.rewind()
        elif self._start is not None:
            os.lseek(self._descriptor, self._start, os.SEEK_SET)

    def _open(self, path: Path) -> int:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidRequest(f"can't read {self.name}: {error.strerror}") from error

    def _position(self) -> int | None:
        try:
            return os.lseek(self._descriptor, 0, os.SEEK_CUR)
        except OSError:
            return None


class EventReader:
    """Cuts chunks into lines and lines into events; counts the lines from 1, empty ones too."""

    def __init__(self, shape: EventShape) -> None:
        self._shape = shape
        self._key_path = None if shape.key_field is None else shape.key_field.split(".")
        self._rest = b""
        self.lines = 0

    def feed(self, chunk: bytes) -> Iterator[NumberedEvent]:
        """The events of the lines that `chunk` ends; raises at the first bad line."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise InvalidRequest(f"line {self.lines + len(lines) + 1} is longer than 16 MiB")
        return self._events(lines)

    def finish(self) -> Iterator[NumberedEvent]:
        """The event of a last line that has no line break."""
        rest, self._rest = self._rest, b""
        return self._events([rest] if rest else [])

    def _events(self, lines: list[bytes]) -> Iterator[NumberedEvent]:
        for line in lines:
            self.lines += 1
            text = line.removeprefix(_BYTE_ORDER_MARK) if self.lines == 1 else line
            text = text.strip()
            if text:
                yield NumberedEvent(self.lines, self._event(text))

    def _event(self, text: bytes) -> OutgoingEvent:
        try:
            document = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(
                f"line {self.lines} is not valid JSON: {_reason(error)}"
            ) from error
        if not isinstance(document, dict):
            raise InvalidRequest(f"line {self.lines} is not a JSON object")
        key = None if self._key_path is None else self._key(document)
        return OutgoingEvent(text, key, self._shape.op, None, self._shape.collection)

    def _key(self, document: dict[str, Any]) -> str:
        value: Any = document
        for name in self._key_path or ():
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return msgspec.json.encode(value).decode()
        problem = "has no" if value is None else "has neither text nor a number in the"
        raise InvalidRequest(f"line {self.lines} {problem} field {self._shape.key_field}")


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error).removeprefix("JSON is malformed: ")
