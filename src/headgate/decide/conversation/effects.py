"""What a client's conversation with a gateway asks of the owner of the connection.

Invariant: effects are done in their order, at once and without waiting; only `Connect` begins
something that takes time, of which there is one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Send:
    message: bytes


@dataclass(frozen=True, slots=True)
class Connect:
    """Try to get a connection, after a pause of at most `pause_s`; another one, for a `reason`."""

    pause_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Redirected:
    """Let go of the connection; the attempt goes on at `gateway`, which is at `url`."""

    url: str
    gateway: str


@dataclass(frozen=True, slots=True)
class HangUp:
    """Let go of the connection, if there is one; nothing more is heard from it."""


@dataclass(frozen=True, slots=True)
class Remind:
    """Ask `reminded` after a while; of several, the last one counts."""

    after_s: float


Effect = Send | Connect | Redirected | HangUp | Remind
Effects = tuple[Effect, ...]
