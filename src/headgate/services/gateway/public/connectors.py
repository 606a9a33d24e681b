"""Connectors at the public address: an ingest node checks, the coordinator decides.

Invariant: a connector whose check failed is not created, unless its creator says that it shall not
be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus

import msgspec

from headgate import errors
from headgate.decide.connectors import rules as connector_rules
from headgate.model.connectors_api import (
    ConnectorInfo,
    ConnectorList,
    CreateConnector,
    DeletedConnector,
    OriginChecked,
    OriginSettings,
    ReleaseOrigin,
    ResetConnector,
    SkipChange,
    SnapshotConnector,
)
from headgate.model.http import (
    Parameter,
    Request,
    Response,
    Route,
    json_response,
)
from headgate.services.gateway.public.forwarding import Forwarder
from headgate.services.gateway.public.leader_calls import LeaderCalls

CHECK_PATH = "/internal/v1/connectors/check"
RELEASE_PATH = "/internal/v1/connectors/release"
CHECK_TIMEOUT_S = 30.0
"""Above what an ingest node takes at most."""
NODELESS = "no ingest node is known at the moment, and only they can look at an origin; try again"
CHECK = Parameter("check", "false: create it without a look at the origin first.")


class ConnectorRoutes:
    """`leader` is the coordinator that leads; `ingest_urls` names the nodes that may check,
    the first one first."""

    def __init__(
        self,
        forwarder: Forwarder,
        *,
        leader: LeaderCalls,
        ingest_urls: Callable[[str, bytes], Sequence[str]],
    ) -> None:
        self._forwarder = forwarder
        self._leader = leader
        self._ingest_urls = ingest_urls

    def table(self) -> list[Route]:
        ask, info, base = self._leader.forward, ConnectorInfo, "/v1/connectors"
        one = base + "/{name}"
        return [
            Route("GET", base, ask, "List the connectors.", response=ConnectorList),
            Route(
                "POST",
                base,
                self._create,
                "Create a connector, if its origin can be read.",
                CreateConnector,
                info,
                status=201,
                parameters=(CHECK,),
            ),
            Route(
                "POST",
                f"{base}/check",
                self._check,
                "Look whether an origin can be read; nothing is created.",
                OriginSettings,
                OriginChecked,
            ),
            Route("GET", one, ask, "Describe a connector.", response=info),
            Route(
                "DELETE",
                one,
                self._delete,
                "Delete a connector, and what it has made at its origin.",
                response=DeletedConnector,
            ),
            Route("POST", f"{one}/pause", ask, "Let a connector rest.", response=info),
            Route("POST", f"{one}/resume", ask, "Let a connector go on.", response=info),
            Route(
                "POST",
                f"{one}/skip",
                ask,
                "Leave out the change that a connector has stopped at.",
                SkipChange,
                info,
            ),
            Route(
                "POST",
                f"{one}/reset",
                ask,
                "Let a connector begin anew elsewhere.",
                ResetConnector,
                info,
            ),
            Route(
                "POST",
                f"{one}/snapshot",
                ask,
                "Let a connector read what is there, beside the changes.",
                SnapshotConnector,
                info,
            ),
            Route(
                "DELETE",
                f"{one}/snapshot",
                ask,
                "End the snapshots of a connector that aren't done.",
                response=info,
            ),
        ]

    async def _create(self, request: Request) -> Response:
        with self._forwarder.room.arriving() as place:
            return await self._created(request, await self._forwarder.body_of(request, place))

    async def _created(self, request: Request, body: bytes) -> Response:
        wanted = msgspec.json.decode(body, type=CreateConnector)
        if _is_to_be_checked(request):
            answer = await self._checked(request, OriginSettings(wanted.type, wanted.settings))
            if answer.status != HTTPStatus.OK:
                return answer
            _refuse_failed(msgspec.json.decode(answer.body, type=OriginChecked))
        return await self._leader.pass_on(request, body)

    async def _delete(self, request: Request) -> Response:
        """Delete the connector and what it has made at its origin; the answer says what is left
        there."""
        with self._forwarder.room.arriving() as place:
            await self._forwarder.body_of(request, place)  # there is none that says anything
        look = msgspec.structs.replace(request, method="GET")
        found = await self._leader.pass_on(look, b"")
        if found.status != HTTPStatus.OK:
            return found
        answer = await self._leader.pass_on(request, b"")
        if answer.status != HTTPStatus.NO_CONTENT:
            return answer
        gone = msgspec.json.decode(found.body, type=ConnectorInfo)
        body = msgspec.json.encode(ReleaseOrigin(gone.name, gone.type, gone.settings))
        left = await self._left(request, body)
        if left:
            left = f"{gone.name} is deleted; at its origin something of it is left, {left}"
        return json_response(DeletedConnector(gone.name, left))

    async def _left(self, request: Request, body: bytes) -> str:
        inner = msgspec.structs.replace(
            request, method="POST", raw_path=RELEASE_PATH, path=RELEASE_PATH, query_string=""
        )
        for url in self._ingest_urls("", body):
            try:
                answer = await self._forwarder.pass_on(
                    inner, body, url, to="ingest", timeout_s=CHECK_TIMEOUT_S
                )
            except errors.HeadgateError:
                continue
            if answer.status == HTTPStatus.OK:
                return msgspec.json.decode(answer.body, type=DeletedConnector).left
        return "because no ingest node could be asked to remove it"

    async def _check(self, request: Request) -> Response:
        with self._forwarder.room.arriving() as place:
            body = await self._forwarder.body_of(request, place)
            return await self._checked(request, msgspec.json.decode(body, type=OriginSettings))

    async def _checked(self, request: Request, wanted: OriginSettings) -> Response:
        """What the first node says that is there; a check changes nothing, so any may be asked."""
        refusal = connector_rules.settings_refusal(wanted.type, wanted.settings)
        if refusal is not None:
            raise refusal  # before anything is sent anywhere
        inner = msgspec.structs.replace(
            request, raw_path=CHECK_PATH, path=CHECK_PATH, query_string=""
        )
        body = msgspec.json.encode(wanted)
        failure = errors.PeerUnreachable(NODELESS)
        for url in self._ingest_urls("", body):
            try:
                return await self._forwarder.pass_on(
                    inner, body, url, to="ingest", timeout_s=CHECK_TIMEOUT_S
                )
            except errors.PeerUnreachable as error:
                if error.details.get("url") != url:
                    raise  # the client went away
                failure = error
            except errors.OutcomeUnknown as error:
                raise errors.Timeout(
                    f"{url} gave no answer about the origin; try again, or create the connector "
                    "without a check",
                    url=url,
                ) from error
        raise failure


def _is_to_be_checked(request: Request) -> bool:
    asked = request.query.get("check", "true")
    if asked not in ("true", "false"):
        raise errors.InvalidRequest(
            f"check is {asked[:100]!r}: write true or false", parameter="check"
        )
    return asked == "true"


def _refuse_failed(checked: OriginChecked) -> None:
    failed = [one for one in checked.findings if one.verdict == "failed"]
    if checked.ok and not failed:
        return
    first = f"{failed[0].what}: {failed[0].sentence}" if failed else "see what was found"
    raise errors.InvalidRequest(
        f"nothing was created, because the origin isn't ready ({first})",
        findings=msgspec.to_builtins(checked.findings),
    )
