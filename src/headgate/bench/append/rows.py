"""The events of the append benchmark: the same for the system and for the bare store."""

from __future__ import annotations

import msgspec

KEYS = 1_000
KEY_BYTES = 5


def key(number: int) -> str:
    return f"k{number % KEYS:04d}"


def event_id(round_name: str, number: int) -> str:
    """As long as the ids that a producer makes."""
    return f"{round_name}-{number}".ljust(26, "x")


def document(number: int, size_bytes: int) -> bytes:
    """A JSON object of exactly `size_bytes`."""
    start = msgspec.json.encode({"number": number, "key": key(number), "text": ""})[:-2]
    return start + b"x" * (size_bytes - len(start) - 2) + b'"}'
