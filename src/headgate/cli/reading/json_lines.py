"""JSON lines: how an input is cut into them, and how each becomes an event.

Invariants: a document goes on exactly as it stands in its line; a line that can't be sent is
refused with its number and what is wrong with it; no line takes more memory than the longest line
allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headgate.client.producing.outgoing import OutgoingEvent
from headgate.errors import InvalidRequest
from headgate.model.event import ProducedOp

LINE_BYTES_MAX = 16 * 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class EventShape:
    """What `headgate produce` adds to each document. `key_field` is a dotted path."""

    key_field: str | None = None
    collection: str = ""
    op: ProducedOp = "insert"
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, order=True)
class Input:
    """The input that lines are from: its place among all, its name where there are several, and a
    mark of its own, whatever other inputs there are."""

    number: int = 0
    name: str = ""
    mark: int = 0

    def of(self, lines: object) -> str:
        """`line 3`, or `line 3 of events.jsonl`."""
        return f"{lines} of {self.name}" if self.name else str(lines)


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    line: int
    event: OutgoingEvent
    origin: Input = field(default_factory=Input)

    def __str__(self) -> str:
        return self.origin.of(f"line {self.line}")


class EventReader:
    """Cuts the chunks of one input into lines and lines into events; counts the lines from 1,
    empty ones too."""

    def __init__(self, shape: EventShape, origin: Input | None = None) -> None:
        self._shape = shape
        self._origin = origin or Input()
        self._key_path = None if shape.key_field is None else shape.key_field.split(".")
        self._rest = b""
        self.lines = 0

    def feed(self, chunk: bytes) -> Iterator[NumberedEvent]:
        """The events of the lines that `chunk` ends; raises at the first bad line."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            line = self._origin.of(f"line {self.lines + len(lines) + 1}")
            raise InvalidRequest(f"{line} is longer than 16 MiB")
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
                yield NumberedEvent(self.lines, self._event(text), self._origin)

    def _event(self, text: bytes) -> OutgoingEvent:
        try:
            document = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"{self._line()} is not valid JSON: {_reason(error)}") from error
        if not isinstance(document, dict):
            raise InvalidRequest(f"{self._line()} is not a JSON object")
        key = None if self._key_path is None else self._key(document)
        shape = self._shape
        return OutgoingEvent(text, key, shape.op, None, shape.collection, headers=shape.headers)

    def _key(self, document: dict[str, Any]) -> str:
        value: Any = document
        for name in self._key_path or ():
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return msgspec.json.encode(value).decode()
        problem = "has no" if value is None else "has neither text nor a number in the"
        raise InvalidRequest(f"{self._line()} {problem} field {self._shape.key_field}")

    def _line(self) -> str:
        return self._origin.of(f"line {self.lines}")


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error).removeprefix("JSON is malformed: ")
