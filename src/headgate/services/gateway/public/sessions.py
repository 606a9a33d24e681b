"""Who uses the dashboard: GET, POST and DELETE /v1/session.

Invariant: a token that nobody knows makes no session; the answer to one that is known has what may
be done with it, and not the token.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate import errors
from headgate.decide.access import sessions
from headgate.model.access import NOBODY, Principal
from headgate.model.access_api import CreateSession, Session
from headgate.model.http import JSON, Request, Response, Route, json_response
from headgate.ports.machine import Machine
from headgate.services.gateway.rights import Rights

BODY_BYTES = 16 * 1024


class SessionRoutes:
    """`rights` None: callers need no credential."""

    def __init__(self, rights: Callable[[], Rights | None], machine: Machine) -> None:
        self._rights = rights
        self._machine = machine

    def table(self) -> list[Route]:
        path = "/v1/session"
        return [
            Route("GET", path, self._show, "Who you are, and what you may do.", response=Session),
            Route(
                "POST",
                path,
                self._begin,
                "Log a browser in: the token goes into a cookie that no script reads.",
                CreateSession,
                Session,
                accepts=(JSON,),
            ),
            Route("DELETE", path, self._end, "Log a browser out.", response=Session),
        ]

    async def _show(self, request: Request) -> Response:
        return json_response(self._session(request.principal))

    async def _begin(self, request: Request) -> Response:
        token = (await request.decode(CreateSession, BODY_BYTES)).token.strip()
        rights = self._rights()
        if rights is None:
            raise errors.InvalidRequest("nobody has to log in here: leave it out")
        principal = await rights.principals.principal_of(token)
        cookie = sessions.begun(
            token,
            lasts_s=self._lasts_s(principal),
            encrypted=request.headers.get("x-forwarded-proto") == "https",
        )
        headers = {"set-cookie": cookie, "cache-control": "no-store"}
        return json_response(self._session(principal), headers=headers)

    async def _end(self, request: Request) -> Response:
        await request.body(BODY_BYTES)
        return json_response(self._session(NOBODY), headers={"set-cookie": sessions.ended()})

    def _lasts_s(self, principal: Principal) -> int | None:
        if not principal.expires_ms:
            return None
        return max(0, (principal.expires_ms - self._machine.wall_ms()) // 1_000)

    def _session(self, principal: Principal | None) -> Session:
        if self._rights() is None:
            return Session(required=False, may=sessions.allowed(None))
        who = NOBODY if principal is None else principal
        name = "" if who.kind == "nobody" else who.name
        return Session(required=True, name=name, may=sessions.allowed(who))
