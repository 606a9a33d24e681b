"""Hands events on to the ingest node that owns their partition, for callers that don't route.

Invariant: a request is handed on at most `MAX_HOPS` times, so two nodes that each believe the other
is the owner can't play ping-pong; the ids that were given to the events here travel with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from headgate import errors
from headgate.decide.produce.headers import decoded
from headgate.model.api import ProduceEvent, ProduceRequest, ProduceResult
from headgate.model.event import Event, ProducedOp
from headgate.model.refusals import rebuild
from headgate.services.ingest.produce.outcomes import Outcome
from headgate.services.ingest.produce.peers import ProducePeers

MAX_HOPS = 2
SHORTEST_S = 0.011
"""The shortest request_timeout that a node accepts."""

ANSWER_MARGIN_S = 1.0
"""How much longer than the peer's own deadline to wait for its answer."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request that may be written, by `deadline_s` on the event loop's clock.

    `version` is the partitioning version its sender routed it under; None for senders that leave
    routing to us. `hops` counts the nodes that handed it on. `ids_given`: it may be a retry.
    `again`: some of the events may have been in another request, with another first id.
    """

    topic: str
    events: Sequence[Event]
    deadline_s: float
    version: int | None = None
    hops: int = 0
    ids_given: bool = True
    again: bool = False


class HandingOn:
    def __init__(self, peers: ProducePeers) -> None:
        self._peers = peers

    def may(self, incoming: Incoming) -> bool:
        return incoming.hops < MAX_HOPS

    async def hand_on(
        self,
        url: str,
        incoming: Incoming,
        events: Sequence[Event],
        *,
        partition: int | None = None,
        timeout_s: float | None = None,
    ) -> list[Outcome]:
        """One outcome per event, within `timeout_s` (None: what is left of the request).
        `partition` is named when their outcome is unknown."""
        if timeout_s is None:
            timeout_s = incoming.deadline_s - asyncio.get_running_loop().time()
        timeout_s = max(timeout_s, SHORTEST_S)
        request = ProduceRequest(
            [_offered(one) for one in events],
            f"{round(timeout_s * 1e3)}ms",
            again=incoming.again,
        )
        try:
            answer = await self._peers.produce(
                url,
                incoming.topic,
                request,
                hops=incoming.hops + 1,
                timeout_s=timeout_s + ANSWER_MARGIN_S,
            )
        except errors.OutcomeUnknown as error:
            if partition is not None:
                error.details.setdefault("partition", partition)
            return [error] * len(events)
        except errors.HeadgateError as error:
            return [error] * len(events)
        return [_outcome(result) for result in answer.events]


def _offered(event: Event) -> ProduceEvent:
    return ProduceEvent(
        document=msgspec.Raw(event.document),
        key=event.key,
        op=cast("ProducedOp", event.op),  # connectors' events go another way
        event_id=event.event_id,
        collection=event.collection,
        earlier=msgspec.UNSET if event.earlier is None else msgspec.Raw(event.earlier),
        headers=msgspec.UNSET if event.headers is None else decoded(event.headers),
    )


def _outcome(result: ProduceResult) -> Outcome:
    if result.error is not None:
        return rebuild(result.error)
    return result
