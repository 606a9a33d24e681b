"""Ids for events that came without one: UUID version 7, a clock reading and randomness.

Ids of one source grow with time, so that the index over the idempotency keys grows at its end
instead of everywhere. Never asked for order: two ids of one millisecond compare at random.
"""

from __future__ import annotations

ENTROPY_BYTES = 10


def event_id(now_ms: int, entropy: bytes) -> str:
    """The id for `now_ms` and ENTROPY_BYTES random bytes; both come from the caller."""
    value = ((now_ms & 0xFFFF_FFFF_FFFF) << 80) | int.from_bytes(entropy[:ENTROPY_BYTES], "big")
    text = f"{_stamped(value):032x}"  # as a UUID has it, for less
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _stamped(value: int) -> int:
    """RFC 9562: four bits say version 7, two bits say which family of UUIDs this is."""
    value = value & ~(0xF << 76) | (0x7 << 76)
    return value & ~(0x3 << 62) | (0x2 << 62)
