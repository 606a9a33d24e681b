"""What every control stream promises at either end: ports/control.py."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from headgate.adapters.grpc.control import GrpcControlServer, GrpcControlSession
from headgate.adapters.memory.control import QUEUE_BOUND, MemoryControlSession
from headgate.adapters.memory.control_network import (
    MemoryControlNetwork,
    MemoryControlServer,
    NetworkControlSession,
)
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.model.control.from_coordinator import (
    AdoptionFloor,
    CheckedIn,
    FromCoordinator,
    NotLeader,
    Refused,
    Welcome,
)
from headgate.model.control.to_coordinator import CheckIn, Goodbye, Hello, ToCoordinator, Unregister
from headgate.ports.control import ControlListener, ControlSession, ControlStream, HelloSource
from headgate.tasks import deaths
from tests.servers.process import free_port
from tests.waiting import until

WAIT_S = 30.0
AGAIN_S = 0.02
AWAY_S = 0.15
"""Long enough to be asked for in vain."""
WELCOME = Welcome("coordinator-1", 30_000, 1_000)

OpenSession = Callable[[str, HelloSource], ControlSession]


@dataclass
class Conversation:
    """One connection as the coordinator sees it."""

    hello: Hello
    say: Callable[[FromCoordinator], None]
    cut: Callable[[], None]
    got: asyncio.Queue[ToCoordinator] = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing more comes, or the stream is over."""

    async def heard(self) -> ToCoordinator:
        """What the node says; that it is still there is no news."""
        while isinstance(message := await asyncio.wait_for(self.got.get(), WAIT_S), CheckIn):
            pass
        return message


class Coordinator(ABC):
    """The other end of every session that is opened here."""

    def __init__(self) -> None:
        self.conversations: asyncio.Queue[Conversation] = asyncio.Queue()
        self.opened: list[ControlSession] = []

    @abstractmethod
    def session(self, hello: HelloSource) -> ControlSession:
        """A node's, that finds its way here."""

    @abstractmethod
    def lost_session(self, hello: HelloSource) -> ControlSession:
        """A node's, that finds nobody."""

    async def accepted(self) -> Conversation:
        return await asyncio.wait_for(self.conversations.get(), WAIT_S)

    async def stop(self) -> None:
        for session in self.opened:
            await session.close()


class Listening(Coordinator):
    """Serves streams where it listens, as the coordinator does."""

    def __init__(
        self, make_listener: Callable[[], ControlListener], open_session: OpenSession
    ) -> None:
        super().__init__()
        self._make_listener = make_listener
        self._open_session = open_session

    async def start(self, port: int = 0) -> None:
        self._listener = self._make_listener()
        [self._port] = await self._listener.start(self._serve, "127.0.0.1", [port])

    async def restart(self) -> None:
        """Away without a word, and back where it was."""
        await self._listener.stop(0.0)
        await until(lambda: not any(session.connected for session in self.opened))
        await asyncio.sleep(AWAY_S)
        await self.start(self._port)

    def session(self, hello: HelloSource) -> ControlSession:
        return self._open(self._port, hello)

    def lost_session(self, hello: HelloSource) -> ControlSession:
        return self._open(free_port(), hello)

    async def stop(self) -> None:
        await super().stop()
        await self._listener.stop(0.0)

    def _open(self, port: int, hello: HelloSource) -> ControlSession:
        self.opened.append(self._open_session(f"127.0.0.1:{port}", hello))
        return self.opened[-1]

    async def _serve(self, stream: ControlStream, hello: Hello) -> None:
        made = Conversation(hello, stream.send, stream.hang)
        self.conversations.put_nowait(made)

        async def listen() -> None:
            while (message := await stream.receive()) is not None:
                made.got.put_nowait(message)
            made.ended.set()

        listening = asyncio.create_task(listen())
        writing = asyncio.create_task(stream.write_until_hung())
        try:
            await asyncio.wait({listening, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            made.ended.set()
            for task in (listening, writing):
                task.cancel()


class Scripted(Coordinator):
    """Nobody listens: the test has the sessions in its hands. Connects each again, a little after
    its end."""

    def session(self, hello: HelloSource) -> ControlSession:
        made: list[Conversation] = []

        def received(message: ToCoordinator) -> None:
            made[-1].got.put_nowait(message)

        def connect() -> None:
            if not session.closed:
                number = len(made)
                made.append(
                    Conversation(session.connect(), lambda message: say(number, message), cut)
                )
                self.conversations.put_nowait(made[-1])

        def say(number: int, message: FromCoordinator) -> None:
            if number == len(made) - 1:
                session.push(message)
                if isinstance(message, Refused | NotLeader):
                    loop.call_later(AGAIN_S, connect)

        def cut() -> None:
            session.cut()
            loop.call_later(AGAIN_S, connect)

        loop = asyncio.get_running_loop()
        session = MemoryControlSession(hello, received)
        loop.call_soon(connect)
        self.opened.append(session)
        return session

    def lost_session(self, hello: HelloSource) -> ControlSession:
        self.opened.append(MemoryControlSession(hello, lambda _: None))
        return self.opened[-1]


def over_grpc() -> Listening:
    return Listening(GrpcControlServer, GrpcControlSession)


def in_memory() -> Listening:
    network = MemoryControlNetwork()
    jitter = ScriptedMachine().jitter
    return Listening(
        lambda: MemoryControlServer(network),
        lambda address, hello: NetworkControlSession(network, address, hello, jitter=jitter),
    )


@pytest.fixture(params=[over_grpc, in_memory])
async def listening(request: pytest.FixtureRequest) -> AsyncIterator[Listening]:
    made: Listening = request.param()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture(params=[over_grpc, in_memory, Scripted])
async def coordinator(request: pytest.FixtureRequest) -> AsyncIterator[Coordinator]:
    made: Coordinator = request.param()
    if isinstance(made, Listening):
        await made.start()
    yield made
    await made.stop()


def hello(generation: int = 0) -> Hello:
    return Hello(role="gateway", node_id="gateway-1", incarnation="a", generation=generation)


async def soon(messages: AsyncIterator[FromCoordinator]) -> FromCoordinator | None:
    """The next message, None when there are no more."""
    return await asyncio.wait_for(anext(messages, None), WAIT_S)


async def welcomed(
    coordinator: Coordinator,
) -> tuple[ControlSession, AsyncIterator[FromCoordinator], Conversation]:
    session = coordinator.session(hello)
    conversation, messages = await coordinator.accepted(), session.messages()
    conversation.say(WELCOME)
    assert await soon(messages) == WELCOME
    return session, messages, conversation


async def test_a_session_says_hello_and_is_connected_once_it_is_welcome(
    coordinator: Coordinator,
) -> None:
    session = coordinator.session(lambda: hello(7))
    conversation = await coordinator.accepted()
    assert conversation.hello == hello(7)
    assert not await session.send(Unregister(0, ("early",)))
    conversation.say(WELCOME)
    assert await soon(session.messages()) == WELCOME
    assert session.connected
    assert await session.send(Unregister(1, ("s1",)))
    assert await conversation.heard() == Unregister(1, ("s1",)), "the first one was never sent"


async def test_messages_keep_their_order_both_ways(coordinator: Coordinator) -> None:
    session, messages, conversation = await welcomed(coordinator)
    for number in range(200):
        assert await session.send(Unregister(number, ()))
        conversation.say(AdoptionFloor(number))
    assert [await conversation.heard() for _ in range(200)] == [
        Unregister(number, ()) for number in range(200)
    ]
    assert [await soon(messages) for _ in range(200)] == [AdoptionFloor(n) for n in range(200)]


async def test_the_next_connection_begins_with_what_the_node_says_then(
    coordinator: Coordinator,
) -> None:
    now = [hello(1)]
    session = coordinator.session(lambda: now[0])
    first, messages = await coordinator.accepted(), session.messages()
    first.say(WELCOME)
    await soon(messages)
    now[0] = hello(2)
    first.cut()
    second = await coordinator.accepted()
    assert second.hello == hello(2)
    assert not session.connected
    assert not await session.send(Unregister(1, ("s1",)))
    second.say(Welcome("coordinator-2", 1, 1_000))
    assert await soon(messages) == Welcome("coordinator-2", 1, 1_000)
    assert await session.send(Unregister(2, ("s2",)))
    assert await second.heard() == Unregister(2, ("s2",))


async def test_what_was_not_read_of_a_connection_ends_with_it(coordinator: Coordinator) -> None:
    _, messages, first = await welcomed(coordinator)
    first.say(AdoptionFloor(1))
    first.cut()
    second = await coordinator.accepted()
    first.say(AdoptionFloor(2))
    second.say(Welcome("coordinator-2", 1, 1_000))
    second.say(AdoptionFloor(3))
    assert await soon(messages) == Welcome("coordinator-2", 1, 1_000)
    assert await soon(messages) == AdoptionFloor(3)


async def test_a_refusal_is_told_and_ends_the_connection(coordinator: Coordinator) -> None:
    session, messages, conversation = await welcomed(coordinator)
    conversation.say(Refused("another one is called the same"))
    assert await soon(messages) == Refused("another one is called the same")
    assert (await coordinator.accepted()).hello == hello()
    assert not session.connected


async def test_what_concerns_the_stream_alone_is_not_told(coordinator: Coordinator) -> None:
    session = coordinator.session(hello)
    first, messages = await coordinator.accepted(), session.messages()
    first.say(NotLeader(""))
    second = await coordinator.accepted()
    second.say(WELCOME)
    second.say(CheckedIn())
    second.say(AdoptionFloor(1))
    assert [await soon(messages), await soon(messages)] == [WELCOME, AdoptionFloor(1)]


async def test_an_answer_to_a_check_in_is_heard_too(coordinator: Coordinator) -> None:
    session, _, conversation = await welcomed(coordinator)
    before_s = asyncio.get_running_loop().time()
    async with asyncio.timeout(WAIT_S):
        while session.heard_s < before_s:
            await session.send(CheckIn())
            conversation.say(CheckedIn())
            await asyncio.sleep(AGAIN_S)
    assert session.heard_s <= asyncio.get_running_loop().time()


async def test_who_closes_says_goodbye_and_hears_nothing_more(coordinator: Coordinator) -> None:
    session, messages, conversation = await welcomed(coordinator)
    listening = asyncio.ensure_future(soon(messages))
    await asyncio.sleep(0)
    await session.close()
    assert await conversation.heard() == Goodbye()
    assert await listening is None
    assert not session.connected
    assert not await session.send(Unregister(3, ("late",)))
    await session.close()


async def test_who_is_about_to_begin_anew_says_so(coordinator: Coordinator) -> None:
    session, _, conversation = await welcomed(coordinator)
    await session.close(returns=True)
    assert await conversation.heard() == Goodbye(returns=True)


async def test_a_session_without_a_connection_can_be_closed(coordinator: Coordinator) -> None:
    session = coordinator.lost_session(hello)
    assert not await session.send(Unregister(1, ("s1",)))
    listening = asyncio.ensure_future(soon(session.messages()))
    await asyncio.sleep(0)
    await session.close()
    assert await listening is None


# --- the coordinator's end -----------------------------------------------------------------------


async def test_what_is_sent_before_the_end_arrives_before_the_end(listening: Listening) -> None:
    session, messages, conversation = await welcomed(listening)
    for number in range(100):
        conversation.say(AdoptionFloor(number))
    conversation.cut()
    assert [await soon(messages) for _ in range(100)] == [AdoptionFloor(n) for n in range(100)]
    assert (await listening.accepted()).hello == hello(), "it comes again"
    assert not session.connected


async def test_a_node_that_leaves_is_read_to_its_end(listening: Listening) -> None:
    session, _, conversation = await welcomed(listening)
    for number in range(100):
        assert await session.send(Unregister(number, ()))
    await session.close()
    said = [await conversation.heard() for _ in range(101)]
    assert said == [*(Unregister(number, ()) for number in range(100)), Goodbye()]
    await asyncio.wait_for(conversation.ended.wait(), WAIT_S)


async def test_a_node_that_is_too_slow_loses_its_stream_and_no_message_in_between(
    listening: Listening,
) -> None:
    _, messages, first = await welcomed(listening)
    for number in range(QUEUE_BOUND + 1):
        first.say(AdoptionFloor(number))
    second = await listening.accepted()
    second.say(Welcome("coordinator-2", 1, 1_000))
    said = [await soon(messages)]
    while said[-1] != Welcome("coordinator-2", 1, 1_000):
        said.append(await soon(messages))
    assert said[:-1] == [AdoptionFloor(number) for number in range(len(said) - 1)]


async def test_a_coordinator_that_is_away_is_no_fault_of_its_nodes(listening: Listening) -> None:
    session, messages, _ = await welcomed(listening)
    await listening.restart()
    (await listening.accepted()).say(WELCOME)
    assert await soon(messages) == WELCOME
    assert session.connected
    assert deaths.counts() == {}


async def test_a_port_in_use_is_refused_and_a_free_one_is_said(listening: Listening) -> None:
    async def nobody(_stream: ControlStream, _hello: Hello) -> None: ...

    with pytest.raises(OSError, match="can't listen"):
        await listening._listener.start(nobody, "127.0.0.1", [listening._port])


# --- in memory -----------------------------------------------------------------------------------


async def test_a_node_that_does_not_read_loses_the_connection_and_not_messages() -> None:
    session = MemoryControlSession(hello, lambda _: None)
    session.connect()
    session.push(WELCOME)
    for number in range(QUEUE_BOUND):
        session.push(AdoptionFloor(number))
    assert not session.connected
    session.connect()
    session.push(WELCOME)
    messages = session.messages()
    assert await soon(messages) == WELCOME, "it begins anew"
    await session.close()
    assert await soon(messages) is None
