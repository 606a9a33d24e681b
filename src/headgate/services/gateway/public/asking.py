"""What explaining asks the coordinator: who is subscribed, and what the others remember.

Invariant: never more than EXAMINED_MAX subscriptions are asked about a record, nor for longer than
EXAMINE_S; subscribers of this gateway have a turn in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from headgate import errors
from headgate.decide.explaining.disclosure import Sight
from headgate.decide.explaining.given import Given
from headgate.decide.explaining.predicates import verdict_on
from headgate.decide.explaining.question import About
from headgate.decide.explaining.told import Chosen
from headgate.decide.pacing import Pace
from headgate.model.account import (
    ACCOUNT_PATH,
    SUBSCRIPTIONS_PATH,
    Account,
    AccountQuestion,
    SubscriptionsListed,
)
from headgate.model.explain_api import EXAMINED_MAX
from headgate.model.groups import Group
from headgate.model.http import Headers, Request
from headgate.model.subscription import Subscription
from headgate.ports.machine import Machine
from headgate.services.gateway.public.leader_calls import LeaderCalls
from headgate.services.principals import identifying

ASK_TIMEOUT_S = 10.0
EXAMINE_S = 3.0

T = TypeVar("T")


class Asking:
    """Asks with the credential of the principal that wants the explanation: what it may not see is
    not told."""

    def __init__(self, leader: LeaderCalls, *, machine: Machine) -> None:
        self._leader = leader
        self._now_s = machine.monotonic_s

    async def account(self, asked: AccountQuestion, request: Request) -> Account:
        """Raises NotNow where the coordinator can't be asked."""
        body = msgspec.json.encode(asked)
        return await self._ask(request, "POST", ACCOUNT_PATH, Account, body=body)

    async def chosen(self, given: Given, about: About, sight: Sight, request: Request) -> Chosen:
        """The subscriptions to show, those first that the record concerns. A group's targets, which
        are subscriptions like any other, are told by the group itself."""
        if about.where is not None or not sight.system:
            return Chosen()
        try:
            if about.subscription is not None:
                page = await self._page(request, id=about.subscription)
                found = page.subscriptions
                if found and found[0].topic != given.ref.topic and sight.topic(found[0].topic):
                    raise errors.NotFound(
                        f"subscription {found[0].id} is to {found[0].topic}, which has nothing of "
                        f"{given.ref.topic}",
                        name=found[0].id,
                    )
                found = [one for one in found if one.topic == given.ref.topic]
                return Chosen(found, len(found), are_known=page.complete)
            if given.looked is None:
                return Chosen()  # no node knows of a record that isn't there
            return await self._examined(given, about, request)
        except errors.NotNow as error:
            return Chosen(error=error.message)

    async def _examined(self, given: Given, about: About, request: Request) -> Chosen:
        seen = _Seen(about)
        pace, until_s, after = Pace(self._now_s), self._now_s() + EXAMINE_S, 0
        while after >= 0 and seen.examined < EXAMINED_MAX and self._now_s() < until_s:
            page = await self._page(request, topic=given.ref.topic, after=str(after))
            seen.groups += page.groups
            seen.are_known = page.complete
            pace.begin()
            for one in page.subscriptions:
                if one.shard is None:
                    seen.take(one, given)
                if pace.is_over():
                    await asyncio.sleep(0)
                    pace.begin()
            after = page.next
        return seen.chosen(are_all=after < 0)

    async def _page(self, request: Request, **query: str) -> SubscriptionsListed:
        return await self._ask(
            request, "GET", SUBSCRIPTIONS_PATH, SubscriptionsListed, query=urlencode(query)
        )

    async def _ask(
        self,
        request: Request,
        method: str,
        path: str,
        kind: type[T],
        *,
        query: str = "",
        body: bytes = b"",
    ) -> T:
        headers = Headers(identifying(request))
        asking = Request(method, path, request.receive, path, query, headers)
        answer = await self._leader.pass_on(asking, body)
        if answer.status != HTTPStatus.OK:
            raise errors.NotNow(f"the coordinator answered {answer.status}; try again")
        return msgspec.json.decode(answer.body, type=kind)


@dataclass(slots=True)
class _Seen:
    about: About
    concerned: list[Subscription] = field(default_factory=list)
    others: list[Subscription] = field(default_factory=list)
    examined: int = 0
    groups: list[Group] = field(default_factory=list)
    are_known: bool = True

    def take(self, one: Subscription, given: Given) -> None:
        self.examined += 1
        if given.looked is not None and _concerns(one, given):
            if len(self.concerned) < self.about.limit:
                self.concerned.append(one)
        elif len(self.others) < self.about.limit and self.about.show == "all":
            self.others.append(one)

    def chosen(self, *, are_all: bool) -> Chosen:
        shown: Sequence[Subscription] = [*self.concerned, *self.others][: self.about.limit]
        more = not are_all or len(shown) < self.examined
        return Chosen(shown, self.examined, more, groups=self.groups, are_known=self.are_known)


def _concerns(one: Subscription, given: Given) -> bool:
    assert given.looked is not None
    try:
        return verdict_on(given.looked, one.where).concerns
    except errors.InvalidFilter:
        return False  # registered by another version: it can't be asked here
