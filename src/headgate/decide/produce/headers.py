"""The headers of an event: short texts by name that travel beside its document.

A record keeps them as one JSON object, made here, so that everything that shows a record passes
them on as they are. Invariant: what comes out of `encoded` has names and values of at most
HEADERS_BYTES in all, and is never an empty object: no headers are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headgate.errors import InvalidRequest

HEADERS_BYTES = 4 * 1024

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, str]).decode


def encoded(headers: Mapping[Any, Any], whose: str) -> bytes | None:
    """What a record keeps; raises InvalidRequest, about the event `whose` they are."""
    size_bytes = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidRequest(
                f"the header {name!r} of {whose} isn't text: give names and values as text"
            )
        if not name:
            raise InvalidRequest(f"a header of {whose} has no name: give it one or leave it out")
        size_bytes += _size(name, whose) + _size(value, whose)
    if size_bytes > HEADERS_BYTES:
        raise InvalidRequest(
            f"the headers of {whose} have names and values of {size_bytes:,} bytes, and "
            f"{HEADERS_BYTES:,} is the most: shorten them, or put them into the document",
            limit=HEADERS_BYTES,
        )
    return _encode(headers) if headers else None


def decoded(headers: bytes | None) -> dict[str, str]:
    """By name, of what `encoded` made."""
    return {} if headers is None else _decode(headers)


def _size(text: str, whose: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"a header of {whose} has half a character (a lone surrogate), which UTF-8 doesn't "
            "have: take it out"
        ) from error
