"""Where a reader who browses a topic goes on: a text that only this module reads and writes.

Invariant: what comes in is checked like any other input; a cursor that was cut, made up or is of
another topic is refused with one sentence, and never leads anywhere that its reader couldn't have
asked for with `from`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Literal

import msgspec

from headgate.errors import InvalidRequest

Direction = Literal["forward", "backward"]
MAX_SEQ = 2**63 - 1


class BrowseCursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`at` has, per partition, the last seq that was passed going forward, or the first one going
    backward. `turn` is the partition that is read first: the one before it had its turn."""

    topic: str
    direction: Direction
    at: dict[int, int]
    turn: int = 0


_decode = msgspec.msgpack.Decoder(BrowseCursor).decode
_encode = msgspec.msgpack.Encoder().encode


def written(cursor: BrowseCursor) -> str:
    return base64.urlsafe_b64encode(_encode(cursor)).decode().rstrip("=")


def read(text: str, *, topic: str) -> BrowseCursor:
    """Raises InvalidRequest for what isn't a cursor of that topic."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursor = _decode(raw)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise _refused() from error
    if not all(number >= 0 and 0 <= seq <= MAX_SEQ for number, seq in cursor.at.items()):
        raise _refused()
    if cursor.topic != topic:
        raise InvalidRequest(
            f"that cursor is of topic {cursor.topic[:100]}, not of {topic[:100]}: begin with from "
            "instead",
            parameter="cursor",
        )
    return cursor


def _refused() -> InvalidRequest:
    return InvalidRequest(
        "that is no cursor of an answer before: pass it on as it came, or begin with from",
        parameter="cursor",
    )
