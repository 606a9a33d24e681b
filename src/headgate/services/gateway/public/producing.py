"""Passes a produce request on to ingest nodes until one of them has taken it, or its time is up.

Any node will do, and the one that was asked first may be dying or restarting. Invariants: the same
request goes to another node only if the first one wrote nothing for sure, or if it can't be written
twice, because every event came with an id, which leads to the node that knows that id. What may
have been written is never told as "not written". Nobody is asked after the request's time. That
there is no such topic is the answer only of all nodes, and where this gateway has none either: news
of a topic comes to each of them at another moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headgate import errors
from headgate.decide.produce import passing_on
from headgate.decide.produce.unknown_topic import SHOWN
from headgate.model.http import Request, Response
from headgate.services.gateway.public.forwarding import Forwarder

AGAIN_S = 0.25
"""Between two rounds: a node that was killed is replaced within seconds."""
UNHEARD_OF = (
    "an ingest node has no topic {}, created or deleted a moment ago; nothing was written, "
    "try again"
)


class Producing:
    """`ingest_urls` names the nodes to produce to, by topic and request, the first one first;
    `knows` says whether this gateway has heard of a topic, and not of its end."""

    def __init__(
        self,
        forwarder: Forwarder,
        *,
        ingest_urls: Callable[[str, bytes], Sequence[str]],
        knows: Callable[[str], bool],
    ) -> None:
        self._forwarder = forwarder
        self._ingest_urls = ingest_urls
        self._knows = knows

    async def produce(self, request: Request) -> Response:
        with self._forwarder.room.arriving() as place:
            body = await self._forwarder.body_of(request, place)
            return await self._produced(request, body)

    async def _produced(self, request: Request, body: bytes) -> Response:
        loop, topic = asyncio.get_running_loop(), request.params["name"]
        deadline_s = loop.time() + passing_on.timeout_s(body)
        doubt: errors.OutcomeUnknown | None = None
        while True:
            failure: errors.HeadgateError | Response = errors.PeerUnreachable(
                "no ingest node is known at the moment; try again"
            )
            urls, denied = self._ingest_urls(topic, body), list[Response]()
            for url in urls:
                try:
                    answer = await self._ask(request, body, url)
                except errors.PeerUnreachable as error:
                    if error.details.get("url") != url:
                        raise  # the client went away
                    failure = error
                    continue
                except errors.OutcomeUnknown as error:
                    doubt = doubt or error
                    if not passing_on.may_repeat(body):
                        raise
                    failure = doubt
                    break  # the others may know that node as the owner still
                if passing_on.has_no_such_topic(answer.status, answer.body):
                    denied.append(answer)
                elif passing_on.was_refused_for_now(answer.status, answer.body):
                    failure = answer
                else:
                    return answer
            if denied and self._knows(topic):
                failure = errors.NotNow(UNHEARD_OF.format(topic[:SHOWN]), topic=topic[:SHOWN])
            elif denied and len(denied) == len(urls):
                return self._ended(doubt or denied[0])
            left_s = deadline_s - loop.time()
            if left_s <= 2 * AGAIN_S:
                return self._ended(doubt or failure)
            await asyncio.sleep(AGAIN_S)
            body = passing_on.within(body, left_s - AGAIN_S)

    async def _ask(self, request: Request, body: bytes, url: str) -> Response:
        return await self._forwarder.pass_on(
            request, body, url, to="ingest", timeout_s=passing_on.wait_s(body)
        )

    def _ended(self, failure: errors.HeadgateError | Response) -> Response:
        if isinstance(failure, Response):
            return failure
        raise failure
