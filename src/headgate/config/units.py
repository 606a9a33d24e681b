"""Durations and sizes: how a person writes them, and the number the code works with.

Inside the program a duration is a float of seconds and a size an int of bytes; the text exists only
at the edge. Invariant: `parse` of `format` gives the same number back. A field is marked with one
of the two classes below so that the edge knows how its text is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headgate.decide.durations import parse_duration_ms
from headgate.errors import InvalidRequest

LONGEST_S = 3650 * 86_400.0
"""Ten years: beyond it clocks and timers overflow instead of waiting."""

_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
_SIZE = re.compile(r"(\d{1,15})(B|KiB|MiB|GiB)?", re.ASCII)
_SIZE_BYTES = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


class NotAllowed(ValueError):
    """A text that stands for no value; the message completes the words "must be"."""

    @property
    def allowed(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class DurationUnit:
    """Marks a field in seconds. `plain_ms`: a bare number is taken as milliseconds."""

    plain_ms: bool = False

    @property
    def example(self) -> str:
        text = "a duration such as 50ms, 5s, 3m, 1h or 7d"
        return f"{text} (a plain number is milliseconds)" if self.plain_ms else text

    def parse(self, raw: object) -> float:
        """Seconds of `raw`; raises NotAllowed."""
        text = str(raw).strip()
        if self.plain_ms and re.fullmatch(r"\d+", text, re.ASCII):
            text += "ms"
        try:
            seconds = parse_duration_ms(text) / 1_000
        except InvalidRequest as error:
            raise NotAllowed(self.example) from error
        if seconds > LONGEST_S:
            raise NotAllowed(f"a duration of at most {self.format(LONGEST_S)}")
        return seconds

    def format(self, seconds: float) -> str:
        """In the largest whole unit: 0.05 is 50ms, 180 is 3m, 90 is 90s."""
        ms = round(seconds * 1_000)
        for unit, unit_ms in _UNITS_MS:
            if ms and ms % unit_ms == 0:
                return f"{ms // unit_ms}{unit}"
        return f"{ms}ms" if ms else "0s"


@dataclass(frozen=True, slots=True)
class SizeUnit:
    """Marks a field in bytes."""

    @property
    def example(self) -> str:
        return "a size such as 512KiB, 16MiB or 1GiB (a plain number is bytes)"

    def parse(self, raw: object) -> int:
        """Bytes of `raw`; raises NotAllowed."""
        match = _SIZE.fullmatch(str(raw).strip())
        if match is None:
            raise NotAllowed(self.example)
        number, unit = match.groups()
        return int(number) * _SIZE_BYTES[unit or "B"]

    def format(self, count: int) -> str:
        for unit, unit_bytes in _SIZE_BYTES.items():
            if count and count % unit_bytes == 0:
                return f"{count // unit_bytes}{unit}"
        return "0B"


def seconds(text: str) -> float:
    """A default, written the way a user would write it."""
    return DurationUnit().parse(text)


def size_bytes(text: str) -> int:
    """A default, written the way a user would write it."""
    return SizeUnit().parse(text)
