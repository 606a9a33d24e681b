"""Who opens a control stream where there is a cluster token: roles with a pass of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from headgate.adapters.control_stream import encode
from headgate.adapters.grpc.control import METHOD, GrpcControlServer, GrpcControlSession
from headgate.decide.links.passes import Caller, ClusterTokens
from headgate.model.audit import AuditLine
from headgate.model.control.from_coordinator import FromCoordinator, Refused, Welcome
from headgate.model.control.to_coordinator import Hello, SessionRole
from headgate.ports.control import ControlStream
from headgate.telemetry import LogLine
from tests.waiting import until

LOOPBACK = "127.0.0.1"
TOKENS = ClusterTokens(("a-token-of-this-cluster",))
OTHERS = ClusterTokens(("a-token-of-another-cluster",))
WAIT_S = 30.0


class Coordinator:
    def __init__(self) -> None:
        self.hellos: list[Hello] = []

    async def serve(self, stream: ControlStream, hello: Hello) -> None:
        self.hellos.append(hello)
        stream.send(Welcome("c-1", 30_000, 5_000))
        writing = asyncio.ensure_future(stream.write_until_hung())
        while await stream.receive() is not None:
            pass
        writing.cancel()


class Trail:
    """Implements ports.audit.AuditTrail."""

    def __init__(self) -> None:
        self.lines: list[AuditLine] = []

    def note(self, line: AuditLine) -> None:
        self.lines.append(line)


@asynccontextmanager
async def serving(
    tokens: ClusterTokens = TOKENS, trail: Trail | None = None
) -> AsyncIterator[tuple[Coordinator, str]]:
    coordinator = Coordinator()
    server = GrpcControlServer(tokens.keeper("coordinator"), trail)
    [port] = await server.start(coordinator.serve, LOOPBACK, [0])
    try:
        yield coordinator, f"{LOOPBACK}:{port}"
    finally:
        await server.stop(0.0)


def hello(role: SessionRole) -> Callable[[], Hello]:
    return lambda: Hello(role=role, node_id="n-1", incarnation="1")


async def first_heard(session: GrpcControlSession) -> FromCoordinator:
    async with asyncio.timeout(WAIT_S):
        return await anext(aiter(session.messages()))


@pytest.mark.parametrize("role", ["ingest", "router", "lane", "gateway"])
async def test_a_role_with_its_pass_is_served(role: Caller) -> None:
    async with serving() as (coordinator, address):
        shown = TOKENS.passes(role).to("coordinator")
        session = GrpcControlSession(address, hello(role), shown=shown)
        assert isinstance(await first_heard(session), Welcome)
        assert [one.role for one in coordinator.hellos] == [role]
        await session.close()


@pytest.mark.parametrize("role", ["ingest", "router", "lane", "client"])
async def test_a_gateways_pass_makes_nobody_another_role(role: SessionRole) -> None:
    async with serving() as (coordinator, address):
        shown = TOKENS.passes("gateway").to("coordinator")
        session = GrpcControlSession(address, hello(role), shown=shown)
        heard = await first_heard(session)
        assert isinstance(heard, Refused)
        assert f"the pass of a gateway can't be a {role}" in heard.reason
        assert not coordinator.hellos
        await session.close()


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "nonsense",
        OTHERS.passes("gateway").to("coordinator"),
        TOKENS.passes("gateway").to("ingest"),
    ],
    ids=["nothing", "nonsense", "of another cluster", "of another way"],
)
async def test_whoever_shows_no_pass_is_sent_away_and_both_sides_say_so_once(shown: str) -> None:
    async with serving() as (coordinator, address):
        with capture_logs() as lines:
            session = GrpcControlSession(address, hello("gateway"), shown=shown)
            refused = asyncio.ensure_future(anext(aiter(session.messages())))
            await until(lambda: len(lines) >= 2)
            for _ in range(3):
                await turned_away(address)
        assert not refused.done(), "it is as if there were no coordinator"
        assert not coordinator.hellos
        await session.close()
        refused.cancel()
    said = [line["event"] for line in lines]
    assert sorted(said) == sorted([LogLine.TOKEN_REFUSED, LogLine.PASS_REFUSED])
    told = next(line for line in lines if line["event"] == LogLine.PASS_REFUSED)
    assert "security.cluster.tokens" in told["reason"]
    assert not any(shown and shown in str(line) for line in lines)


async def test_not_a_word_is_read_of_whoever_shows_no_pass() -> None:
    async with serving() as (coordinator, address):
        await turned_away(address)
        assert not coordinator.hellos


async def test_whoever_is_turned_away_stands_in_the_audit_trail() -> None:
    trail = Trail()
    async with serving(trail=trail) as (_, address):
        await turned_away(address)
        shown = TOKENS.passes("gateway").to("coordinator")
        session = GrpcControlSession(address, hello("ingest"), shown=shown)
        assert isinstance(await first_heard(session), Refused)
        await session.close()
    nobody, gateway = trail.lines[0], trail.lines[-1]
    assert (nobody.who, nobody.what, nobody.outcome) == ("nobody", "control stream", "refused")
    assert (gateway.who, gateway.kind, gateway.status) == ("a gateway", "role", 401)
    assert all(LOOPBACK in line.from_ for line in trail.lines)
    assert shown not in str(trail.lines)


async def turned_away(address: str) -> None:
    """gRPC calls it INTERNAL where the call ends while a message is written, whatever the server
    says; that is no answer."""
    code = grpc.StatusCode.INTERNAL
    async with asyncio.timeout(WAIT_S), grpc.aio.insecure_channel(address) as channel:
        while code is grpc.StatusCode.INTERNAL:
            call: Any = channel.stream_stream(METHOD)()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(encode(hello("router")()))
            code = await call.code()
    assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_without_a_token_nobody_is_asked() -> None:
    async with serving(ClusterTokens()) as (coordinator, address):
        session = GrpcControlSession(address, hello("client"))
        assert isinstance(await first_heard(session), Welcome)
        assert [one.role for one in coordinator.hellos] == ["client"]
        await session.close()
