"""Who a caller is: what services ask of the code that knows credentials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from headgate import errors
from headgate.model.access import Principal
from headgate.model.http import Answer, Request, Route


class Gate(Protocol):
    """Before the routes of a role."""

    async def admit(self, route: Route, request: Request) -> Request:
        """The request with its principal. Raises Unauthorized for who isn't known, Forbidden for
        who isn't granted what the route needs, NotNow while nobody knows."""

    def error_for(self, request: Request, error: errors.UnknownTopic) -> errors.UnknownTopic:
        """The error as this principal may see it, which may not know which other topics there
        are."""

    def shown(self, route: Route, request: Request, answer: Answer) -> Answer:
        """What of the answer is for this principal."""


class Principals(Protocol):
    """Who is who, at this moment: asked again, the answer may be another one."""

    async def principal_of(self, credential: str) -> Principal:
        """The principal that holds this credential. Raises Unauthorized, which says nothing of why
        it isn't known; NotNow while this node has not heard who there is, or the keys can't be
        fetched."""

    def ticket_for(self, principal: Principal) -> tuple[str, int]:
        """One that is good for once, here, for that many milliseconds."""

    async def spend_ticket(self, ticket: str) -> Principal:
        """The principal that was given this ticket, which nobody can use again. Raises
        Unauthorized."""

    def ended(self, principal: Principal) -> errors.Unauthorized | None:
        """Why nobody is this any more: the credential has expired, was revoked, or may do something
        else by now. None while it holds."""


class SignedClaims(Protocol):
    """Checks JWTs: the signature, the issuer, the audience and the expiry."""

    def recognises(self, credential: str) -> bool:
        """Whether it looks like a JWT at all."""

    async def verified(self, credential: str) -> Mapping[str, Any]:
        """Its claims. Raises Unauthorized, and NotNow where the issuer's keys can't be fetched."""

    async def close(self) -> None: ...
