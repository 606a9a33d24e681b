"""Passes a request on to another role and its answer back.

Invariants: method, path, query, body and end-to-end headers arrive unchanged; hop-by-hop headers
don't, nor what a browser says of its page, which was judged here, nor a pass, which is this
gateway's own. A write whose answer never came
is reported as of unknown outcome, never as "not done". What bodies take that are on their way is
bounded.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headgate import errors
from headgate.decide.limits.addresses import FROM_HEADER
from headgate.decide.links.passes import PASS_HEADER, Called, Passes
from headgate.decide.produce.room import Arriving, Room
from headgate.model.http import Request, Response
from headgate.ports.http import HttpCalls
from headgate.tasks import first_of

HOP_BY_HOP = frozenset(
    {
        "connection",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
OF_A_BROWSER = frozenset({"origin", "sec-fetch-mode", "sec-fetch-site"})
OF_THIS_SERVER = frozenset({"content-length", "content-type", "date", "server"})
UNSENT = HOP_BY_HOP | OF_A_BROWSER | {"content-length", PASS_HEADER, FROM_HEADER}

NO_PASSES = Passes()


class Forwarder:
    """`room` is for the bodies of requests, from their first byte to the answer; `passes` are what
    this gateway shows to the roles that it passes them on to."""

    def __init__(
        self, calls: HttpCalls, *, body_limit_bytes: int, room: Room, passes: Passes = NO_PASSES
    ) -> None:
        self._calls = calls
        self._passes = passes
        self._body_limit_bytes = body_limit_bytes
        self.room = room

    async def forward(
        self, request: Request, base_url: str, *, to: Called, timeout_s: float
    ) -> Response:
        with self.room.arriving() as place:
            body = await self.body_of(request, place)
            return await self.pass_on(request, body, base_url, to=to, timeout_s=timeout_s)

    async def body_of(self, request: Request, place: Arriving) -> bytes:
        """`place` is held for as long as the body is."""
        return await request.body(self._body_limit_bytes, arrived=place.arrived)

    async def pass_on(
        self, request: Request, body: bytes, base_url: str, *, to: Called, timeout_s: float
    ) -> Response:
        """The answer of a peer of role `to`; not waited for any longer when `request`'s client goes
        away. Raises PeerUnreachable with the `url` of a peer that got nothing."""
        query = f"?{request.query_string}" if request.query_string else ""
        sending = self._calls.send(
            request.method,
            f"{base_url.rstrip('/')}{request.raw_path}{query}",
            timeout_s=timeout_s,
            headers=[
                *_end_to_end(request.headers.items(), UNSENT),
                *self._passes.headers(to),
                *([(FROM_HEADER, request.peer)] if request.peer else ()),
            ],
            body=body,
        )
        try:
            answer = await first_of(sending, request.disconnected())
        except errors.PeerUnreachable as error:
            raise errors.PeerUnreachable(
                f"nothing answers at {base_url} at the moment; try again", url=base_url
            ) from error
        except (errors.Timeout, errors.OutcomeUnknown) as error:
            if request.method in ("GET", "HEAD"):
                raise errors.PeerUnreachable(
                    f"{base_url} did not answer; try again", url=base_url
                ) from error
            raise errors.OutcomeUnknown(
                f"{base_url} did not answer, so this may or may not have been done; "
                "repeat it with the same event ids",
                url=base_url,
            ) from error
        if answer is None:
            raise errors.PeerUnreachable("the client went away before it was answered")
        headers = dict(_end_to_end(answer.headers.items(), HOP_BY_HOP | OF_THIS_SERVER))
        return msgspec.structs.replace(answer, headers=headers)


def _end_to_end(
    headers: Iterable[tuple[str, str]], dropped: frozenset[str] | set[str]
) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() not in dropped]
