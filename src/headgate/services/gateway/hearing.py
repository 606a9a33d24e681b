"""Brings what the coordinator says to the part of the gateway it is for, one message after the
other.

    Control  ->  Hearing  ->  Registering, Subscriptions, Consumers

Everything that follows from a message is called from here; none of those calls back. Invariants: a
topology is applied before it is acknowledged; subscribers know that they were forgotten before
anything is registered again; after every welcome the coordinator hears of all that is here, and
then that this was all.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from headgate import errors
from headgate.model.access import ApiToken
from headgate.model.control.from_coordinator import (
    AdoptionFloor,
    AskEvidence,
    AssignTargets,
    FromCoordinator,
    LetGo,
    PushTokens,
    PushTopology,
    RefuseConsumer,
    Refused,
    Registered,
    Restart,
    Welcome,
)
from headgate.model.control.to_coordinator import (
    AckTopology,
    Evidence,
    Recall,
    RegistrationComplete,
    ToCoordinator,
)
from headgate.model.topology import Topology
from headgate.ports.control import ControlSession
from headgate.services.gateway.control import Control
from headgate.services.gateway.subscriptions.registering import News, Registering
from headgate.services.principals import KnownPrincipals
from headgate.telemetry import LogLine

log = structlog.get_logger()

GHOST_S = 10.0
"""For so long the node that has our name may be what is left of a stream of our own."""


class Subscribers(Protocol):
    """Those whose subscriptions are registered."""

    def apply(self, topology: Topology) -> None: ...

    def forgotten(self) -> None:
        """Lanes may go on without them from now on."""

    def returned(self) -> None:
        """All of them are registered and adopted again."""

    def refused(self, subscription_id: str, reason: errors.HeadgateError) -> None:
        """This subscription was fine before, and isn't now."""

    def turned_away(self, reason: str) -> None:
        """Lanes send the subscribers' records to another gateway, for good as it seems."""


class Groups(Protocol):
    """Those who consume here."""

    def announcements(self) -> list[ToCoordinator]:
        """The consumers, for a coordinator that may not know them."""

    def heard(self, message: AssignTargets | RefuseConsumer | LetGo) -> None: ...


class Witness(Protocol):
    """Can say what became of a record at this gateway."""

    def answer(self, asked: AskEvidence) -> Evidence: ...


class Hearing:
    def __init__(
        self,
        control: Control,
        registering: Registering,
        subscribers: Subscribers,
        groups: Groups,
        witness: Witness,
        principals: KnownPrincipals | None = None,
    ) -> None:
        self._control = control
        self._principals = principals
        self._registering = registering
        self._subscribers = subscribers
        self._groups = groups
        self._witness = witness
        self.restart = asyncio.Event()
        """Set when an operator wants this process to begin anew."""
        self._refused: tuple[float, float] | None = None
        """When the coordinator refused us first, and last, since it welcomed us."""

    async def listen(self, session: ControlSession) -> None:
        """Until the session is closed."""
        async for message in self._control.messages(session):
            await self._hear(message)

    async def _hear(self, message: FromCoordinator) -> None:
        match message:
            case Welcome():
                await self._welcomed(message)
            case Registered():
                self._tell(self._registering.registered(message))
            case AdoptionFloor(revision=revision):
                self._tell(self._registering.adopted(revision))
            case PushTopology(topology=topology):
                await self._pushed(topology)
            case AssignTargets() | RefuseConsumer() | LetGo():
                self._groups.heard(message)
            case PushTokens(tokens, revision):
                self._learn(tokens, revision)
            case AskEvidence():
                await self._control.send(self._witness.answer(message))
            case Restart():
                self.restart.set()
            case Refused(reason=reason):
                self._turned_away(reason)
            case _:
                log.debug("message_ignored", kind=type(message).__name__)

    def _turned_away(self, reason: str) -> None:
        """The session tries again, and the subscribers go elsewhere once it did so for long."""
        log.warning(LogLine.REFUSED, reason=reason)
        now_s = asyncio.get_running_loop().time()
        first_s, last_s = self._refused or (now_s, now_s)
        if now_s - last_s > GHOST_S:
            first_s = now_s  # nobody was there meanwhile
        self._refused = first_s, now_s
        if now_s - first_s >= GHOST_S:
            self._subscribers.turned_away(reason)

    async def _welcomed(self, welcome: Welcome) -> None:
        control, self._refused = self._control, None
        if welcome.learning:
            known = ((), 0) if self._principals is None else self._principals.told
            await control.send(Recall(control.topology, *known))
        self._learn(welcome.tokens, welcome.tokens_revision)
        forgotten = control.welcomed(welcome)
        if forgotten:
            self._subscribers.forgotten()
        registered = await self._registering.register_all(forgotten=forgotten)
        for message in self._groups.announcements():
            await control.send(message)
        await control.send(RegistrationComplete())
        log.info(LogLine.CONNECTED, subscriptions=registered, forgotten=forgotten)

    def _learn(self, tokens: tuple[ApiToken, ...], revision: int) -> None:
        if self._principals is not None:
            self._principals.learn(tokens, revision)

    async def _pushed(self, topology: Topology) -> None:
        if self._control.learn(topology):
            self._subscribers.apply(topology)
            await self._control.send(AckTopology(topology.generation))

    def _tell(self, news: News) -> None:
        for subscription_id, reason in news.refused.items():
            self._subscribers.refused(subscription_id, reason)
        if news.are_back:
            self._subscribers.returned()
