"""Keeps the coordinator's registry in step with this gateway's subscriptions.

The registry at the coordinator may be lost at any time; this side has the truth and sends all of it
after every (re)connection. Invariants: `register` returns only once every lane has adopted the
subscription; a topology is applied before it is acknowledged, and never an older one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from headgate import errors
from headgate.model.control import (
    AckTopology,
    AdoptionFloor,
    AssignTargets,
    FromCoordinator,
    LetGo,
    PushTopology,
    Recall,
    RefuseConsumer,
    Refused,
    Register,
    Registered,
    RegistrationComplete,
    ToCoordinator,
    Unregister,
    Welcome,
)
from headgate.model.subscription import Subscription
from headgate.model.topology import Topology
from headgate.ports.control import ControlSession
from headgate.tasks import Crew
from headgate.telemetry import LogEvent

log = structlog.get_logger()

CHUNK = 2_000
"""Subscriptions per message: few messages for many, and no pause for anybody who reads one."""


@dataclass(slots=True)
class _Waiter:
    """Somebody waits for a subscription; `revision` is known once it is registered."""

    adopted: asyncio.Future[None]
    revision: int | None = None


class Registration:
    """`on_topology` applies a newer topology. `on_return` is called when everything is registered
    and adopted again, after the lanes may have gone on without us. `on_refused` gets the
    subscriptions that were fine before and are refused now."""

    def __init__(
        self,
        *,
        on_topology: Callable[[Topology], None],
        on_forgotten: Callable[[], None],
        on_return: Callable[[], None],
        on_refused: Callable[[str, errors.HeadgateError], None],
        crew: Crew,
    ) -> None:
        self._crew = crew
        self._on_topology = on_topology
        self._on_forgotten = on_forgotten
        self._on_return = on_return
        self._on_refused = on_refused
        self._announce: Callable[[], list[ToCoordinator]] = list
        self._on_group: Callable[[AssignTargets | RefuseConsumer | LetGo], None] | None = None
        self._session: ControlSession | None = None
        self._subscriptions: dict[str, Subscription] = {}
        self._waiters: dict[str, _Waiter] = {}
        self._unsent: dict[str, Subscription] = {}
        self._sending: asyncio.Task[None] | None = None
        self._requests: dict[int, tuple[str, ...]] = {}
        self._request_ids = itertools.count(1)
        self._floor = 0
        self._welcomed_before = False
        self._return_requests: set[int] | None = None
        self._return_revision = 0
        self.coordinator_url = ""
        """Where the coordinator that welcomed us serves HTTP; empty before that."""
        self.topology = Topology(generation=0)
        self.topology_changed = asyncio.Event()

    def on_consumers(
        self,
        announce: Callable[[], list[ToCoordinator]],
        on_group: Callable[[AssignTargets | RefuseConsumer | LetGo], None],
    ) -> None:
        """`announce` says who consumes here, after every (re)connection; `on_group` hears what the
        coordinator has to say to them."""
        self._announce = announce
        self._on_group = on_group

    @property
    def connected(self) -> bool:
        return self._session is not None and self._session.connected

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
            await self.send(Unregister(next(self._request_ids), known[begin : begin + CHUNK]))

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

    async def send(self, message: ToCoordinator) -> bool:
        return self._session is not None and await self._session.send(message)

    # --- from the coordinator --------------------------------------------------------------------

    async def listen(self, session: ControlSession) -> None:
        self._session = session
        async for message in session.messages():
            await self._handle(message)

    async def _handle(self, message: FromCoordinator) -> None:
        match message:
            case Welcome():
                await self._welcomed(message)
            case Registered():
                self._registered(message)
            case AdoptionFloor(revision=revision):
                self._floor = revision
                self._settle_waiters()
            case PushTopology(topology=topology):
                await self._pushed(topology)
            case AssignTargets() | RefuseConsumer() | LetGo() if self._on_group is not None:
                self._on_group(message)
            case Refused(reason=reason):
                # The session tries again: whoever has our name may be a ghost of ourselves.
                log.warning(LogEvent.REFUSED, reason=reason)
            case _:
                log.debug("message_ignored", kind=type(message).__name__)

    async def _welcomed(self, welcome: Welcome) -> None:
        """Register everything anew; what an earlier coordinator said no longer counts."""
        if welcome.learning:
            await self.send(Recall(self.topology))
        self.coordinator_url = welcome.url or self.coordinator_url
        forgotten = self._welcomed_before and not welcome.resumed
        self._welcomed_before = True
        if forgotten:
            self._on_forgotten()
        self._floor = 0
        self._requests.clear()
        for waiter in self._waiters.values():
            waiter.revision = None
        requests = [await self._register(chunk) for chunk in self._chunks()]
        if forgotten or self._return_requests is not None:
            self._return_requests = set(requests)
            self._return_revision = 0
        for message in self._announce():
            await self.send(message)
        await self.send(RegistrationComplete())
        log.info(LogEvent.CONNECTED, subscriptions=len(self._subscriptions), forgotten=forgotten)

    def _chunks(self) -> Iterator[tuple[Subscription, ...]]:
        """Everything there is, without what ended while an earlier chunk was sent."""
        ids = tuple(self._subscriptions)
        for begin in range(0, len(ids), CHUNK):
            chunk = [self._subscriptions.get(name) for name in ids[begin : begin + CHUNK]]
            yield tuple(subscription for subscription in chunk if subscription is not None)

    async def _register(self, subscriptions: tuple[Subscription, ...]) -> int:
        request_id = next(self._request_ids)
        self._requests[request_id] = tuple(subscription.id for subscription in subscriptions)
        if not await self.send(Register(request_id, subscriptions)):
            # The next Welcome registers everything that is in `_subscriptions`.
            self._requests.pop(request_id, None)
        return request_id

    def _registered(self, answer: Registered) -> None:
        over_quota = frozenset(answer.over_quota)
        for subscription_id in self._requests.pop(answer.request_id, ()):
            waiter = self._waiters.get(subscription_id)
            reason = answer.errors.get(subscription_id)
            if reason is not None:
                self._subscriptions.pop(subscription_id, None)
                full = subscription_id in over_quota
                error = errors.Overloaded(reason) if full else errors.InvalidRequest(reason)
                if waiter is None:
                    self._on_refused(subscription_id, error)
                elif not waiter.adopted.done():
                    waiter.adopted.set_exception(error)
            elif waiter is not None:
                waiter.revision = answer.revision
        if self._return_requests is not None and answer.request_id in self._return_requests:
            self._return_requests.discard(answer.request_id)
            self._return_revision = max(self._return_revision, answer.revision)
        self._settle_waiters()

    def _settle_waiters(self) -> None:
        for waiter in self._waiters.values():
            adopted = waiter.revision is not None and waiter.revision <= self._floor
            if adopted and not waiter.adopted.done():
                waiter.adopted.set_result(None)
        registered_again = self._return_requests is not None and not self._return_requests
        if registered_again and self._floor and self._return_revision <= self._floor:
            self._return_requests = None
            self._on_return()

    async def _pushed(self, topology: Topology) -> None:
        if topology.generation < self.topology.generation:
            return
        self.topology = topology
        self._on_topology(topology)
        self.topology_changed.set()
        self.topology_changed = asyncio.Event()
        await self.send(AckTopology(topology.generation))
