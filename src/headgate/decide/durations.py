"""Durations as people write them: a number and a unit, like 50ms, 5s, 3m, 2h or 7d.

The number may have decimals, the result is whole milliseconds. Never guesses a unit: a bare number
is an error, because half of the world would mean seconds by it and the other half milliseconds.
"""

from __future__ import annotations

import re

from headgate.errors import InvalidRequest

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WORDS = {"ms": "ms", "s": "s", "m": "min", "h": "h", "d": "days"}
_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)(ms|s|m|h|d)", re.ASCII)


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `text`; raises InvalidRequest for anything but a number with a unit."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"{text[:40]!r} is not a duration: write a number and a unit, like 50ms, 5s, 3m or 7d",
            value=text[:40],
        )
    number, unit = match.groups()
    ms = float(number) * _UNIT_MS[unit]
    if 0 < ms < 1:  # never none at all, which means something else
        raise InvalidRequest(
            f"{text[:40]!r} is shorter than 1ms: write 0s or more", value=text[:40]
        )
    return round(ms)


def written(ms: int) -> str:
    """`ms` as a person says it: in the largest unit of which there is at least one."""
    unit, of_ms = next(
        (one for one in reversed(_UNIT_MS.items()) if ms >= one[1]), ("ms", _UNIT_MS["ms"])
    )
    return f"{round(ms / of_ms, 1):g} {_WORDS[unit]}"
