"""Passes requests on to the coordinator that leads, also where only another one is known.

A gateway that has yet to be welcomed knows the coordinator of its configuration, and one that was
welcomed before a change of leaders the former. Such a one does nothing, and says who leads.

Invariant: a request goes to a second coordinator only where the first has said that it doesn't
lead, and to no third.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

import msgspec

from headgate.model.api import ErrorAnswer
from headgate.model.http import Request, Response
from headgate.services.gateway.public.forwarding import Forwarder


class LeaderCalls:
    """`url` is that of the coordinator to ask first."""

    def __init__(self, forwarder: Forwarder, url: Callable[[], str], *, timeout_s: float) -> None:
        self._forwarder = forwarder
        self._url = url
        self._timeout_s = timeout_s

    async def forward(self, request: Request) -> Response:
        with self._forwarder.room.arriving() as place:
            return await self.pass_on(request, await self._forwarder.body_of(request, place))

    async def pass_on(self, request: Request, body: bytes) -> Response:
        asked = self._url()
        answer = await self._ask(request, body, asked)
        leader = _leader_named_in(answer)
        if not leader or leader == asked:
            return answer
        return await self._ask(request, body, leader)

    async def _ask(self, request: Request, body: bytes, url: str) -> Response:
        return await self._forwarder.pass_on(
            request, body, url, to="coordinator", timeout_s=self._timeout_s
        )


def _leader_named_in(answer: Response) -> str:
    if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
        return ""
    try:
        details = msgspec.json.decode(answer.body, type=ErrorAnswer).error.details
    except msgspec.MsgspecError:
        return ""
    leader = details.get("leader", "")
    return leader if isinstance(leader, str) else ""
