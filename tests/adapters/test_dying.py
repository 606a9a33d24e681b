"""What an adapter does in the background dies of a mistake: it goes on, or says that it can't."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from headgate.adapters.control_stream import encode
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.doorbell import Bell
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.adapters.etcd.election import EtcdLeadership
from headgate.adapters.grpc.control import METHOD, GrpcControlServer, GrpcControlSession
from headgate.adapters.http.server import HttpServer
from headgate.adapters.nats.delivery import NatsDeliveryServer
from headgate.adapters.postgres import notices
from headgate.adapters.postgres.schema import SchemaStatements
from headgate.answering import HttpApp
from headgate.model.control.from_coordinator import Welcome
from headgate.model.control.to_coordinator import CheckIn, Hello
from headgate.model.event import Event, PartitionRef
from headgate.ports.control import ControlStream
from headgate.tasks import Crew, TaskDied, deaths
from tests.waiting import until

REF = PartitionRef("flights", 0)
LOOPBACK = "127.0.0.1"
HELLO = Hello(role="ingest", node_id="ingest-1", incarnation="a", url="http://x")
WELCOME = Welcome("coordinator", lease_ms=1_000, check_in_ms=20)


class Mistake:
    """Fails as often as it is told, then does what it should."""

    def __init__(self, times: int, result: Any = None) -> None:
        self.left = times
        self.result = result
        self.calls = 0

    def __call__(self, *_: object, **__: object) -> Any:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise RuntimeError("a mistake")
        return self.result


# --- control sessions ----------------------------------------------------------------------------


class Coordinator:
    """Welcomes everybody, as often as they come."""

    def __init__(self) -> None:
        self.streams = 0
        self.server = GrpcControlServer()

    async def serve(self, stream: ControlStream, _hello: Hello) -> None:
        self.streams += 1
        stream.send(WELCOME)
        writing = asyncio.create_task(stream.write_until_hung())
        while await stream.receive() is not None:
            stream.send(WELCOME)
        stream.hang()
        await writing


@pytest.mark.parametrize("times", [1, 2])
async def test_a_control_session_that_died_connects_again(times: int) -> None:
    hello = Mistake(times, HELLO)
    coordinator = Coordinator()
    [port] = await coordinator.server.start(coordinator.serve, LOOPBACK, [0])
    session = GrpcControlSession(f"{LOOPBACK}:{port}", hello)
    try:
        await until(lambda: session.connected)
        assert deaths.counts() == {"control session": times}
    finally:
        await session.close()
        await coordinator.server.stop(0)


async def test_a_control_session_that_can_not_write_begins_a_new_stream() -> None:
    coordinator = Coordinator()
    [port] = await coordinator.server.start(coordinator.serve, LOOPBACK, [0])
    session = GrpcControlSession(f"{LOOPBACK}:{port}", lambda: HELLO)
    try:
        await until(lambda: session.connected)
        await session.send(object())  # type: ignore[arg-type]  # nothing that could be encoded
        await until(lambda: coordinator.streams == 2 and session.connected)
        assert await session.send(CheckIn())
        assert sum(deaths.counts().values()) == 1
    finally:
        await session.close()
        await coordinator.server.stop(0)


async def test_a_peer_that_goes_away_while_it_is_written_to_is_no_mistake() -> None:
    crew, begun, served = Crew("coordinator"), asyncio.Event(), asyncio.Event()

    async def serve(stream: ControlStream, _hello: Hello) -> None:
        for _ in range(50):
            stream.send(Welcome("c" * 1_000_000, lease_ms=1_000, check_in_ms=20))
        begun.set()
        try:
            await asyncio.wait({crew.start("writing", stream.write_until_hung())})
        finally:
            served.set()

    server = GrpcControlServer()
    [port] = await server.start(serve, LOOPBACK, [0])
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel:
        stream: Any = channel.stream_stream(METHOD)()
        await stream.write(encode(HELLO))
        await asyncio.wait_for(begun.wait(), 30)  # and nobody reads: it is in the middle of it
    await asyncio.wait_for(served.wait(), 30)
    await crew.close(grace_s=10)
    assert deaths.counts() == {}
    await server.stop(0)


# --- servers -------------------------------------------------------------------------------------


async def test_a_server_that_ends_by_itself_says_so() -> None:
    server = HttpServer()
    await server.start(HttpApp([]), LOOPBACK, 0)
    assert server._server is not None
    server._server.stop()  # type: ignore[no-untyped-call]
    with pytest.raises(TaskDied, match="http server returned"):
        await asyncio.wait_for(server.failed(), 30)
    await server.stop(0.1)


async def test_a_server_that_is_stopped_has_not_failed() -> None:
    server = HttpServer()
    await server.start(HttpApp([]), LOOPBACK, 0)
    await server.stop(0.1)
    await server.failed()
    assert deaths.counts() == {}


class NatsClient:
    async def subscribe(self, *_: object, **__: object) -> None: ...

    async def flush(self) -> None: ...

    async def close(self) -> None: ...


async def test_deliveries_over_nats_go_on_after_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    server = NatsDeliveryServer(lambda _: None, "nats://nowhere", name="g")  # type: ignore[arg-type,return-value]
    connected = Mistake(0, NatsClient())

    async def connect(_closed: asyncio.Event) -> Any:
        return connected()

    monkeypatch.setattr(server, "_connected", connect)
    await server.start("subject", lambda _: None)
    connected.left = 1
    server._closed.set()
    await until(lambda: connected.calls == 3)
    assert deaths.counts() == {"nats deliveries": 1}
    await server._crew.close()


# --- stores --------------------------------------------------------------------------------------


async def test_a_log_whose_thread_died_takes_the_next_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Mistake(1)
    monkeypatch.setattr(Bell, "ring", ring)
    writer = EmbeddedLogWriter(DataFolder.open(tmp_path / "data"))
    await writer.open(REF, epoch=1, version=1)
    first = asyncio.ensure_future(writer.append(REF, [Event("a", b"{}")], version=1, now_ms=1))
    await until(lambda: deaths.counts() == {"log writer": 1})
    [second] = await writer.append(REF, [Event("b", b"{}")], version=1, now_ms=1)
    assert second.seq == 2
    # Nobody told how the first one ended, so its caller looks for it, and finds it.
    assert not first.done()
    assert await writer.find(REF, ["a", "b"]) == {"a": 1, "b": 2}
    first.cancel()
    await writer.close()


async def test_wake_ups_of_postgres_go_on_after_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = Mistake(100)
    monkeypatch.setattr(notices, "connect", connect)
    notifier = notices.Notifier("", SchemaStatements("headgate"))
    listener = notices.Listener("", SchemaStatements("headgate"))
    notifier.ring(REF)
    await until(lambda: deaths.counts().get("postgres listener", 0) >= 2)
    notifier.ring(REF)
    await until(lambda: deaths.counts()["postgres notifier"] >= 2)
    await listener.close()
    await notifier.close()


async def test_a_leadership_that_can_not_be_renewed_is_lost() -> None:
    class Connection:
        def key(self, name: str) -> bytes:
            return name.encode()

        run = Mistake(100)

    leadership = EtcdLeadership(
        Connection(),  # type: ignore[arg-type]
        lease_id=1,
        revision=1,
        ttl_s=0.03,
        granted_s=0.0,
        now_s=lambda: 0.0,
    )
    await asyncio.wait_for(leadership.lost(), 30)
    assert not leadership.held
    await until(lambda: deaths.counts() == {"etcd leadership": 1})
