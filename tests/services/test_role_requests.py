"""What one role asks of another over HTTP: with a pass where there is a cluster token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from headgate.adapters.memory.machine import ScriptedMachine
from headgate.answering import HttpApp
from headgate.config import load_config
from headgate.decide.links.passes import PASS_HEADER, ClusterTokens, PassKeeper
from headgate.decide.produce.room import Room
from headgate.model.http import Headers, Request, Response, Route
from headgate.services.gateway.public.forwarding import Forwarder
from headgate.services.ingest.connectors.origin_checks import OriginChecks
from headgate.services.ingest.connectors.taking_in import TakingIn
from headgate.services.principals import AccessOptions, KnownPrincipals
from headgate.wiring import roles
from headgate.wiring.machine import with_cluster_token

TOKENS = ClusterTokens(("a-token-of-this-cluster",))
KEEPER = TOKENS.keeper("ingest")
INTERNAL = "/internal/"


class Calls:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []

    async def send(self, *_: object, headers: Any = (), **__: object) -> Response:
        self.headers.append(dict(headers))
        return Response()

    async def close(self) -> None:
        pass


def request(path: str, headers: Mapping[str, str]) -> Request:
    messages = [{"type": "http.request", "body": b"{}"}]

    async def receive() -> Mapping[str, Any]:
        if not messages:
            await asyncio.Event().wait()  # the client is still there
        return messages.pop()

    return Request("POST", path, receive, path, headers=Headers(headers.items()))


def internal_routes() -> list[Route]:
    """All that an ingest node answers to other roles only."""
    nothing: Any = None
    return [*TakingIn(nothing, nothing, nothing).routes(), *OriginChecks(nothing).routes()]


def test_whatever_is_internal_says_who_may_call_it() -> None:
    assert len(internal_routes()) == 3
    for route in internal_routes():
        assert route.path.startswith(INTERNAL)
        assert route.callers


@pytest.mark.parametrize("route", internal_routes(), ids=lambda route: str(route.path))
@pytest.mark.parametrize("caller", ["ingest", "router", "lane", "gateway", None])
async def test_a_role_may_do_only_what_its_role_does(route: Route, caller: Any) -> None:
    async def done(_request: Request) -> Response:
        return Response(204)

    shown = "nonsense" if caller is None else TOKENS.passes(caller).to("ingest")
    path = route.path.format(name="flights", partition="0")
    asked = request(path, {PASS_HEADER: shown, "content-type": "application/msgpack"})
    open_route = answered_by(route, done)
    answer = await HttpApp([open_route], keeper=KEEPER).answer(asked)
    assert answer.status == (204 if caller in route.callers else 401)
    assert (await HttpApp([open_route]).answer(asked)).status == 204, "without a token"
    assert isinstance(answer, Response)
    assert shown.encode() not in answer.body


def answered_by(route: Route, handler: Any) -> Route:
    return Route("POST", route.path, handler, accepts=route.accepts, callers=route.callers)


async def test_a_refusal_tells_nothing_of_what_it_compares_with() -> None:
    [route, *_] = internal_routes()
    path = route.path.format(name="flights", partition="0")
    answer = await HttpApp([route], keeper=KEEPER).answer(
        request(path, {"content-type": "application/msgpack"})
    )
    assert isinstance(answer, Response)
    error = msgspec.json.decode(answer.body)["error"]
    assert error["code"] == "unauthorized"
    assert "security.cluster.tokens" in error["message"]
    assert error["details"] == {}
    assert not any(secret.encode() in answer.body for _, secret in KEEPER.known)


@pytest.mark.parametrize("to", ["ingest", "coordinator"])
async def test_a_gateway_shows_its_own_pass_and_never_a_callers(to: Any) -> None:
    calls = Calls()
    passes = TOKENS.passes("gateway")
    room = Room(1_000, setting="here")
    forwarder = Forwarder(calls, body_limit_bytes=100, room=room, passes=passes)
    stolen = {PASS_HEADER: TOKENS.passes("ingest").to("ingest"), "authorization": "Bearer x"}
    await forwarder.forward(request("/v1/topics", stolen), "http://peer", to=to, timeout_s=5.0)
    [headers] = calls.headers
    assert TOKENS.keeper(to).caller(headers[PASS_HEADER]) == "gateway"
    assert headers["authorization"] == "Bearer x"


async def test_without_a_cluster_token_a_callers_pass_goes_no_further_either() -> None:
    calls = Calls()
    forwarder = Forwarder(calls, body_limit_bytes=100, room=Room(1_000, setting="here"))
    asked = request("/v1/topics", {PASS_HEADER: "anything"})
    await forwarder.forward(asked, "http://peer", to="ingest", timeout_s=5.0)
    assert PASS_HEADER not in calls.headers[0]


def test_every_role_is_built_with_the_passes_it_needs_and_no_more() -> None:
    token = TOKENS.tokens[0]
    config = load_config(command_line={"security.cluster.tokens": token}, environ={}).config
    coordinator = roles.coordinator_settings(config).keeper
    assert coordinator == TOKENS.keeper("coordinator")
    assert roles.ingest_options(config).keeper == KEEPER
    assert roles.listener_options(config).keeper == TOKENS.keeper("gateway")
    lanes = roles.lane_settings(config)
    assert coordinator.caller(lanes.coordinator_pass) == "lane"
    assert TOKENS.keeper("gateway").caller(lanes.transport.shown) == "lane"
    assert token.encode() not in msgspec.json.encode(lanes), "executors get passes alone"


def test_where_nobody_is_asked_nothing_is_compared() -> None:
    config = load_config(environ={}).config
    for keeper in (
        roles.coordinator_settings(config).keeper,
        roles.ingest_options(config).keeper,
        roles.listener_options(config).keeper,
    ):
        assert keeper == PassKeeper()
    assert roles.lane_settings(config).transport.shown == ""


async def test_an_ingest_node_hands_on_where_everybody_has_to_say_who_they_are() -> None:
    """What it hands on was let in by itself, and it may do no more than that."""
    principals = KnownPrincipals(AccessOptions(), ScriptedMachine(), None, KEEPER)
    produce = Route("POST", "/v1/topics/{name}/produce", answered)
    create = Route("POST", "/v1/topics", answered)
    app = HttpApp([produce, create], gate=principals, keeper=KEEPER)
    shown = {PASS_HEADER: TOKENS.passes("ingest").to("ingest")}
    assert (await app.answer(request("/v1/topics/flights/produce", shown))).status == 204
    assert (await app.answer(request("/v1/topics", shown))).status == 403


@pytest.mark.parametrize("caller", ["gateway", "lane", "router", None])
async def test_nobody_else_produces_by_a_pass(caller: Any) -> None:
    """A gateway passes on who asks: without that, it asks for nobody."""
    principals = KnownPrincipals(AccessOptions(), ScriptedMachine(), None, KEEPER)
    app = HttpApp([Route("POST", "/v1/topics/{name}/produce", answered)], gate=principals)
    shown = TOKENS.passes(caller).to("ingest") if caller else ""
    answer = await app.answer(request("/v1/topics/flights/produce", {PASS_HEADER: shown}))
    assert answer.status in (401, 403)


async def answered(_request: Request) -> Response:
    return Response(204)


def test_roles_that_are_started_together_have_a_token_of_that_start() -> None:
    config = load_config(command_line={"security.enabled": True}, environ={}).config
    one, other = with_cluster_token(config), with_cluster_token(config)
    assert one.security.cluster.tokens != other.security.cluster.tokens
    assert roles.cluster_tokens(one).keeper("gateway").asks
    assert with_cluster_token(one) == one
    laptop = load_config(environ={}).config
    assert with_cluster_token(laptop) == laptop
