"""How much, and for how long, an HTTP/1.1 client may keep a server waiting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Http1Limits:
    """`head_s` is for a whole head, `stall_s` for each further piece of a body or an answer.

    Up to `buffer_bytes` of a body wait for their handler; reading stops beyond that.
    """

    connections: int = 16_384
    head_bytes: int = 64 * 1_024
    buffer_bytes: int = 64 * 1_024
    linger_bytes: int = 32 * 1_024 * 1_024
    idle_s: float = 75.0
    head_s: float = 15.0
    stall_s: float = 30.0
    linger_s: float = 2.0
