"""What each producer may take of a node per second: of events, and of bytes.

Principals are counted by their name, callers without a credential by their address: that of the
connection, or the one that a gateway names for the client it asks for. What another ingest node
hands on was counted there. Invariant: a caller that is refused is told when to come again, before
its request is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headgate.decide.limits.addresses import FROM_HEADER, counted_as
from headgate.decide.limits.rates import Rate
from headgate.decide.links.passes import PASS_HEADER, PassKeeper
from headgate.errors import RateLimited
from headgate.model.http import Request

RETRY_MIN_S = 1.0


@dataclass(frozen=True, slots=True)
class ProduceRates:
    """Per second; 0: no limit. Those of a principal count before these."""

    events: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """What one caller takes of the node; without a name nobody counts it."""

    who: str = ""
    events_per_s: int = 0
    bytes_per_s: int = 0


UNCOUNTED = Share()


class Shares:
    def __init__(self, rates: ProduceRates, keeper: PassKeeper) -> None:
        self._rates = rates
        self._keeper = keeper
        self._events = Rate()
        self._bytes = Rate()

    def of(self, request: Request) -> Share:
        rates, principal = self._rates, request.principal
        if principal is not None and principal.kind == "role":
            return UNCOUNTED
        if principal is not None and principal.kind != "nobody":
            limits = principal.limits
            events, size = limits.events_per_s or rates.events, limits.bytes_per_s or rates.bytes
            return (
                Share(f"{principal.kind} {principal.name}", events, size)
                if events or size
                else UNCOUNTED
            )
        if not (rates.events or rates.bytes):
            return UNCOUNTED
        shown, peer = request.headers.get(PASS_HEADER), request.peer
        if self._keeper.asks and self._keeper.caller(shown) == "ingest":
            return UNCOUNTED
        if named := request.headers.get(FROM_HEADER):
            peer = named if self._keeper.admits(shown, ("gateway",)) else peer
        return Share(f"address {counted_as(peer)}", rates.events, rates.bytes)

    def check(self, share: Share, now_s: float) -> None:
        """Raises RateLimited for a caller that has taken all that it may."""
        if not share.who:
            return
        wait_s = max(
            self._events.wait_s(share.who, share.events_per_s, now_s),
            self._bytes.wait_s(share.who, share.bytes_per_s, now_s),
        )
        if wait_s:
            raise RateLimited(
                f"{share.who} sends more than this node takes of one in a second; send it again in "
                f"{max(wait_s, RETRY_MIN_S):.0f} s, or slower",
                retry_after_s=max(wait_s, RETRY_MIN_S),
            )

    def counted(self, share: Share, request: Request, now_s: Callable[[], float]) -> Request:
        """The request, with its body counted against the share: the declared length at once,
        anything beyond that as it comes."""
        declared = request.headers.get("content-length")
        ahead_bytes = int(declared) if declared.isascii() and declared.isdigit() else 0
        self.take(share, now_s(), size_bytes=ahead_bytes)

        async def receive() -> Mapping[str, Any]:
            nonlocal ahead_bytes
            message = await request.receive()
            ahead_bytes -= len(message.get("body", b""))
            if ahead_bytes < 0:
                self.take(share, now_s(), size_bytes=-ahead_bytes)
                ahead_bytes = 0
            return message

        return msgspec.structs.replace(request, receive=receive)

    def take(self, share: Share, now_s: float, *, events: int = 0, size_bytes: int = 0) -> None:
        if share.who:
            self._events.take(share.who, events, share.events_per_s, now_s)
            self._bytes.take(share.who, size_bytes, share.bytes_per_s, now_s)
