"""Passes a produce request on to ingest nodes until one of them has taken it, or its time is up.

Any node will do, and the one that was asked first may be dying or restarting. Invariants: the same
request goes to another node only if the first one wrote nothing for sure, or if it can't be written
twice: on a keyed topic, where every event came with an id, which leads to whoever knows that id.
What may have been written is never told as "not written". Nobody is asked after the request's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headgate import errors
from headgate.decide import passing_on
from headgate.model.http import Request, Response
from headgate.services.gateway.forwarding import Forwarder

AGAIN_S = 0.25
"""Between two rounds: a node that was killed is replaced within seconds."""


class Producing:
    """`ingest_urls` names the nodes to produce to, by topic and request, the first one first;
    `is_keyed` says whether a key leads to the partition in a topic."""

    def __init__(
        self,
        forwarder: Forwarder,
        *,
        ingest_urls: Callable[[str, bytes], Sequence[str]],
        is_keyed: Callable[[str], bool],
    ) -> None:
        self._forwarder = forwarder
        self._ingest_urls = ingest_urls
        self._is_keyed = is_keyed

    async def produce(self, request: Request) -> Response:
        loop = asyncio.get_running_loop()
        body, topic = await self._forwarder.body_of(request), request.params["name"]
        deadline_s = loop.time() + passing_on.timeout_s(body)
        doubt: errors.OutcomeUnknown | None = None
        while True:
            failure: errors.HeadgateError | Response = errors.PeerUnreachable(
                "no ingest node is known at the moment; try again"
            )
            for url in self._ingest_urls(topic, body):
                try:
                    answer = await self._ask(request, body, url)
                except errors.PeerUnreachable as error:
                    if error.details.get("url") != url:
                        raise  # the client went away
                    failure = error
                    continue
                except errors.OutcomeUnknown as error:
                    doubt = doubt or error
                    if not (self._is_keyed(topic) and passing_on.may_repeat(body)):
                        raise
                    failure = doubt
                    break  # the others may know that node as the owner still
                if not passing_on.was_refused_for_now(answer.status, answer.body):
                    return answer
                failure = answer
            left_s = deadline_s - loop.time()
            if left_s <= 2 * AGAIN_S:
                return self._ended(doubt or failure)
            await asyncio.sleep(AGAIN_S)
            body = passing_on.within(body, left_s - AGAIN_S)

    async def _ask(self, request: Request, body: bytes, url: str) -> Response:
        return await self._forwarder.pass_on(request, body, url, timeout_s=passing_on.wait_s(body))

    def _ended(self, failure: errors.HeadgateError | Response) -> Response:
        if isinstance(failure, Response):
            return failure
        raise failure
