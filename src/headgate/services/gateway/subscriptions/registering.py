"""Keeps the coordinator's registry in step with this gateway's subscriptions.

The registry at the coordinator may be lost at any time; this side has the truth and sends all of it
after every welcome. What the coordinator answers comes in as a call, and what that means to others
is returned. Invariant: `register` returns only once every lane has adopted the subscription.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headgate import errors
from headgate.model.control.from_coordinator import Registered
from headgate.model.control.to_coordinator import Register, Unregister
from headgate.model.subscription import Subscription
from headgate.services.gateway.control import Control
from headgate.tasks import Crew

CHUNK = 2_000
"""Subscriptions per message: few messages for many, and each of them quickly read."""


@dataclass(slots=True)
class _Waiter:
    """Somebody waits for a subscription; `revision` is known once it is registered."""

    adopted: asyncio.Future[None]
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class News:
    """What an answer of the coordinator means to the subscribers."""

    refused: Mapping[str, errors.HeadgateError] = field(default_factory=dict)
    """Subscriptions that were fine before and are refused now; nobody waits for them."""
    are_back: bool = False
    """Everything is registered and adopted again, after the lanes may have gone on without us."""


class Registering:
    def __init__(self, control: Control, crew: Crew) -> None:
        self._control = control
        self._crew = crew
        self._subscriptions: dict[str, Subscription] = {}
        self._waiters: dict[str, _Waiter] = {}
        self._unsent: dict[str, Subscription] = {}
        self._sending: asyncio.Task[None] | None = None
        self._requests: dict[int, tuple[str, ...]] = {}
        self._request_ids = itertools.count(1)
        self._floor = 0
        self._return_requests: set[int] | None = None
        self._return_revision = 0

    # --- from the gateway ------------------------------------------------------------------------

    async def register(self, subscription: Subscription, *, timeout_s: float) -> None:
        """Returns when every lane matches with `subscription`; forgets it otherwise."""
        waiter = _Waiter(asyncio.get_running_loop().create_future())
        self._subscriptions[subscription.id] = subscription
        self._waiters[subscription.id] = waiter
        try:
            async with asyncio.timeout(timeout_s):
                self._register_soon(subscription)
                await waiter.adopted
        except TimeoutError as error:
            await self.unregister(subscription.id)
            raise errors.Timeout(
                f"the routers have not taken up the subscription within {timeout_s:g} s; try again"
            ) from error
        except BaseException:
            await self.unregister(subscription.id)
            raise
        finally:
            self._waiters.pop(subscription.id, None)

    async def unregister(self, *subscription_ids: str) -> None:
        known = tuple(
            name for name in subscription_ids if self._subscriptions.pop(name, None) is not None
        )
        for name in known:
            self._unsent.pop(name, None)
        for begin in range(0, len(known), CHUNK):
            chunk = known[begin : begin + CHUNK]
            await self._control.send(Unregister(next(self._request_ids), chunk))

    def _register_soon(self, subscription: Subscription) -> None:
        """Together with whatever else comes in the meantime, so that many at once are few
        messages."""
        self._unsent[subscription.id] = subscription
        if self._sending is None:
            self._sending = self._crew.start("registering", self._send_unsent())

    async def _send_unsent(self) -> None:
        try:
            while self._unsent:
                chunk = tuple(itertools.islice(self._unsent.values(), CHUNK))
                for subscription in chunk:
                    del self._unsent[subscription.id]
                await self._register(chunk)
        finally:
            self._sending = None

    # --- from the coordinator --------------------------------------------------------------------

    async def register_all(self, *, forgotten: bool) -> int:
        """Register everything anew, and return how much that is; what an earlier coordinator said
        no longer counts. `forgotten`: a caller wants to know when it is adopted again."""
        self._floor = 0
        self._requests.clear()
        for waiter in self._waiters.values():
            waiter.revision = None
        requests = [await self._register(chunk) for chunk in self._chunks()]
        if forgotten or self._return_requests is not None:
            self._return_requests = set(requests)
            self._return_revision = 0
        return len(self._subscriptions)

    def _chunks(self) -> Iterator[tuple[Subscription, ...]]:
        """Everything there is, without what ended while an earlier chunk was sent."""
        ids = tuple(self._subscriptions)
        for begin in range(0, len(ids), CHUNK):
            chunk = [self._subscriptions.get(name) for name in ids[begin : begin + CHUNK]]
            yield tuple(subscription for subscription in chunk if subscription is not None)

    async def _register(self, subscriptions: tuple[Subscription, ...]) -> int:
        request_id = next(self._request_ids)
        ids = self._requests[request_id] = tuple(one.id for one in subscriptions)
        new = tuple(name for name in ids if name in self._waiters)
        if not await self._control.send(Register(request_id, subscriptions, new)):
            # The next welcome registers everything that is in `_subscriptions`.
            self._requests.pop(request_id, None)
        return request_id

    def registered(self, answer: Registered) -> News:
        over_quota = frozenset(answer.over_quota)
        refused: dict[str, errors.HeadgateError] = {}
        for subscription_id in self._requests.pop(answer.request_id, ()):
            waiter = self._waiters.get(subscription_id)
            reason = answer.errors.get(subscription_id)
            if reason is not None:
                self._subscriptions.pop(subscription_id, None)
                full = subscription_id in over_quota
                error = errors.Overloaded(reason) if full else errors.InvalidRequest(reason)
                if waiter is None:
                    refused[subscription_id] = error
                elif not waiter.adopted.done():
                    waiter.adopted.set_exception(error)
            elif waiter is not None:
                waiter.revision = answer.revision
        if self._return_requests is not None and answer.request_id in self._return_requests:
            self._return_requests.discard(answer.request_id)
            self._return_revision = max(self._return_revision, answer.revision)
        return News(refused, self._settle())

    def adopted(self, revision: int) -> News:
        """Every lane has adopted what was registered up to `revision`."""
        self._floor = revision
        return News(are_back=self._settle())

    def _settle(self) -> bool:
        """Tell the callers that wait for what is adopted; returns whether everything is adopted
        again."""
        for waiter in self._waiters.values():
            adopted = waiter.revision is not None and waiter.revision <= self._floor
            if adopted and not waiter.adopted.done():
                waiter.adopted.set_result(None)
        registered_again = self._return_requests is not None and not self._return_requests
        if registered_again and self._floor and self._return_revision <= self._floor:
            self._return_requests = None
            return True
        return False
