"""Whether an origin can be read from here, asked before a connector is created; and what a deleted
one has made there, removed.

Invariant: an answer says all that was found, also that nothing was reached, and comes within a
bound. A check changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from headgate.decide.connectors import rules as connector_rules
from headgate.errors import HeadgateError, OriginUnavailable
from headgate.model.connector import Connector
from headgate.model.connectors_api import (
    DeletedConnector,
    OriginChecked,
    OriginFinding,
    OriginSettings,
    ReleaseOrigin,
)
from headgate.model.http import Request, Response, Route, json_response
from headgate.ports.origin import Finding, OpenOrigin

PATH = "/internal/v1/connectors/check"
MAX_BODY_BYTES = 512 * 1024
RELEASE_PATH = "/internal/v1/connectors/release"
CHECK_TIMEOUT_S = 20.0
RELEASE_PAUSE_S = 0.5
"""Before it is tried again: its reader may not have heard yet that it is to end."""


class OriginChecks:
    def __init__(self, open_origin: OpenOrigin, *, timeout_s: float = CHECK_TIMEOUT_S) -> None:
        self._open_origin = open_origin
        self._timeout_s = timeout_s

    def routes(self) -> list[Route]:
        return [
            Route("POST", PATH, self._answer, public=False, callers=("gateway",)),
            Route("POST", RELEASE_PATH, self._release, public=False, callers=("gateway",)),
        ]

    async def _release(self, request: Request) -> Response:
        raw = await request.body(MAX_BODY_BYTES)
        body = msgspec.json.decode(raw, type=ReleaseOrigin)
        refusal = connector_rules.settings_refusal(body.type, body.settings)
        if refusal is not None:
            raise refusal
        kind = connector_rules.connector_type(body.type)
        left = await self._left(Connector(body.name, kind, (), body.settings))
        return json_response(DeletedConnector(body.name, left))

    async def _left(self, connector: Connector) -> str:
        """Why something is still there; empty: nothing is."""
        why = f"it gave no answer within {self._timeout_s:g} s"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                while why:
                    try:
                        await self._released(connector)
                        why = ""
                    except OriginUnavailable as error:
                        why = error.message
                        await asyncio.sleep(RELEASE_PAUSE_S)
                    except HeadgateError as error:
                        return error.message
        return why

    async def _released(self, connector: Connector) -> None:
        origin = self._open_origin(connector)
        try:
            await origin.release()
        finally:
            await origin.close()

    async def _answer(self, request: Request) -> Response:
        body = msgspec.json.decode(await request.body(MAX_BODY_BYTES), type=OriginSettings)
        refusal = connector_rules.settings_refusal(body.type, body.settings)
        if refusal is not None:
            raise refusal
        found = await self._found(body)
        findings = [OriginFinding(one.what, one.verdict, one.sentence) for one in found]
        ok = all(one.verdict != "failed" for one in findings)
        return json_response(OriginChecked(ok, findings))

    async def _found(self, body: OriginSettings) -> list[Finding]:
        kind = connector_rules.connector_type(body.type)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._checked(Connector("", kind, (), body.settings))
        except TimeoutError:
            sentence = f"it gave no answer within {self._timeout_s:g} s; see the network between"
            return [Finding("origin", "failed", sentence)]
        except HeadgateError as error:
            return [Finding("origin", "failed", error.message)]

    async def _checked(self, connector: Connector) -> list[Finding]:
        origin = self._open_origin(connector)
        try:
            return await origin.check()
        finally:
            await origin.close()
