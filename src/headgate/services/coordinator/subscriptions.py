"""Subscriptions over HTTP: searched and counted, some thousands at a time.

Invariant: looking at a million of them lets the coordinator decide in between, and shows them as
they were at one revision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate.decide.operations.subscription_queries import SubscriptionSearch, question_of
from headgate.decide.pacing import Pace
from headgate.model.http import Request, Response, Route, json_response
from headgate.model.subscriptions_api import SubscriptionList
from headgate.ports.machine import Machine
from headgate.services.coordinator.term import Term


class SubscriptionRoutes:
    """`term` raises NotNow where another coordinator leads."""

    def __init__(self, term: Callable[[], Term], machine: Machine) -> None:
        self._term = term
        self._machine = machine

    def table(self) -> list[Route]:
        return [Route("GET", "/v1/subscriptions", self._list)]

    async def _list(self, request: Request) -> Response:
        question = question_of(request.query)
        registry = self._term().cluster.registry
        parts = registry.snapshot()
        search, pace = SubscriptionSearch(question), Pace(self._machine.monotonic_s)
        pace.begin()
        for part in parts:
            search.look_at(part.subscriptions)
            if pace.is_over():
                await asyncio.sleep(0)
                pace.begin()
        return json_response(
            SubscriptionList(
                search.found,
                question.offset,
                search.matching,
                total=sum(len(part.subscriptions) for part in parts),
                revision=parts[0].revision,
            )
        )
