"""The function that a program gives its client for tokens, and what it may do wrong: it fails now
and then, it takes long. A client goes on as with a gateway that is away, and says what is true."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
import pytest

from headgate import errors
from headgate.adapters.machine import THIS_MACHINE
from headgate.client import credentials as credentials_module
from headgate.client import identified_link
from headgate.client.credentials import Credentials
from headgate.client.http import HttpClient
from headgate.client.identified_link import identified
from headgate.client.producer import Producer, ProducerOptions
from headgate.client.subscriber import Subscriber
from headgate.client.sync.producer import SyncProducer
from headgate.client.sync.subscriber import SyncSubscriber
from headgate.model.api import ProduceAnswer, ProduceRequest, ProduceResult, Status
from headgate.model.client_messages import Event
from headgate.model.http import Response
from headgate.ports.connection import Link, LinkListener
from headgate.ports.http import HttpCalls
from headgate.tasks import deaths
from tests.client.produce_server import ProduceServer, produce_server
from tests.client.test_sync_producer import in_thread
from tests.services.gateway.world import until
from tests.virtual_time import run_virtual

WAIT_S = 5.0
QUICK = ProducerOptions(backoff_first_s=0.001, backoff_max_s=0.01)
STATUS = Status("0.1.0", 1, 1, [], [], [], [], [], 0, ws_url="ws://gateway/v1/subscribe")
EVENT = (
    b'{"type":"event","topic":"t","partition":0,"seq":1,"event_id":"e","key":null,"collection":"",'
    b'"op":"insert","document":{},"subscriptions":["s"]}'
)


class Asked:
    """A function for tokens: an error is raised, each time it has one to raise."""

    def __init__(self, *answers: str | BaseException) -> None:
        self._answers = list(answers)
        self.times = 0

    async def __call__(self) -> str:
        self.times += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Panic(BaseException):
    """What libraries written in another language raise, which no `except Exception` sees."""


class Here:
    """An address that answers whatever it is asked, and gateways behind it that take everybody."""

    def __init__(self) -> None:
        self.sent = 0
        self.closed = 0
        self.produced: list[bytes] = []
        self.produced_ids: list[str] = []
        self.links: list[Gateway] = []

    async def send(
        self,
        _method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> Response:
        self.sent += 1
        if "produce" in url and ("authorization", "Bearer old") in headers:
            return Response(401, b'{"error":{"code":"unauthorized","message":"over"}}')
        if "produce" not in url:
            return Response(200, msgspec.json.encode(STATUS))
        events = msgspec.json.decode(body, type=ProduceRequest).events
        self.produced += [bytes(event.document) for event in events]
        self.produced_ids += [str(event.event_id) for event in events]
        results = [ProduceResult(str(one.event_id), 0, seq) for seq, one in enumerate(events, 1)]
        return Response(200, msgspec.json.encode(ProduceAnswer(results)))

    async def close(self) -> None:
        self.closed += 1

    def open_calls(self, *, connect_timeout_s: float) -> HttpCalls:
        return self  # type: ignore[return-value]  # no more than is called here

    def open_link(self, listener: LinkListener, silence_s: float) -> Link:
        self.links.append(Gateway(listener))
        return self.links[-1]


class Gateway:
    def __init__(self, listener: LinkListener) -> None:
        self.listener = listener
        self.said: list[dict[str, object]] = []

    @property
    def has_subscribed(self) -> bool:
        return any(one["type"] == "subscribe" for one in self.said)

    async def connect(self, url: str) -> None: ...

    def send(self, message: bytes) -> None:
        self.said.append(msgspec.json.decode(message))
        kind = self.said[-1]["type"]
        if kind == "auth":
            self.says(b'{"type":"authenticated","principal":"ann","expires_at_ms":null}')
        elif kind == "subscribe":
            self.says(b'{"type":"subscribed","subscription":"s","topic":"t","positions":{"0":0}}')

    def says(self, message: bytes) -> None:
        asyncio.get_running_loop().call_soon(self.listener.heard, message)

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    async def wait_closed(self) -> None: ...


@pytest.fixture
async def server() -> AsyncIterator[ProduceServer]:
    async with produce_server() as made:
        made.add_topic("t")
        yield made


async def test_a_subscriber_rides_out_a_function_that_fails() -> None:
    """Also in that what it waited for, which others may share, was cancelled."""
    here = Here()
    ask = Asked(
        "first",
        OSError("away"),
        KeyError("token"),
        asyncio.CancelledError(),
        Panic("in another language"),
        "second",
    )
    subscriber = Subscriber(
        "http://here",
        token=ask,
        retry_first_s=0.001,
        open_calls=here.open_calls,
        open_link=here.open_link,
    )
    subscriber.add("t", id="s")
    async with asyncio.timeout(WAIT_S), subscriber:
        here.links[-1].says(b'{"type":"error","error":{"code":"unauthorized","message":"over"}}')
        waiting = asyncio.ensure_future(anext(subscriber))
        await until(lambda: len(here.links) > 1 and here.links[-1].has_subscribed)
        here.links[-1].says(EVENT)
        assert isinstance(await waiting, Event)
    assert ask.times == 6
    assert deaths.counts() == {}


async def test_who_is_cancelled_while_a_token_is_asked_for_is() -> None:
    said = Credentials(lambda: asyncio.sleep(WAIT_S, "late"))
    asking = asyncio.create_task(said.current())
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not said._asking.locked()


def subscribing(here: Here, ask: Callable[[], str]) -> None:
    with SyncSubscriber(
        "http://here", "t", token=ask, open_calls=here.open_calls, open_link=here.open_link
    ) as subscriber:
        next(subscriber)


def producing(_here: Here, ask: Callable[[], str]) -> None:
    with SyncProducer("http://127.0.0.1:1", token=ask) as producer:
        producer.send("t", {})


@pytest.mark.parametrize("program", [subscribing, producing])
async def test_one_that_exits_the_program_does_so_in_a_thread_of_its_own_too(
    program: Callable[[Here, Callable[[], str]], None],
) -> None:
    def exits() -> str:
        sys.exit("log in first")

    def run() -> object:
        try:
            program(Here(), exits)
        except SystemExit as exited:
            return exited.code
        return "nothing"

    exited = asyncio.wrap_future(in_thread(run))
    assert await asyncio.wait_for(exited, WAIT_S) == "log in first"


async def test_one_that_fails_at_first_is_said_and_what_it_says_is_not() -> None:
    here = Here()
    subscriber = Subscriber(
        "http://here",
        "t",
        token=Asked(OSError("the secret is 1234")),
        open_calls=here.open_calls,
        open_link=here.open_link,
    )
    with pytest.raises(errors.NotNow, match="function for the token failed: OSError") as failure:
        await subscriber.__aenter__()
    assert "1234" not in str(failure.value)
    assert isinstance(failure.value.__cause__, OSError)


async def test_a_timeout_of_its_own_is_not_that_of_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(credentials_module, "ASK_TIMEOUT_S", 0.01)
    here = Here()
    for ask, said in (
        (lambda: asyncio.sleep(WAIT_S, "late"), "took over"),
        (Asked(TimeoutError("of the socket")), "failed: TimeoutError"),
    ):
        client = HttpClient("http://here", open_calls=here.open_calls, credentials=Credentials(ask))
        with pytest.raises(errors.NotNow, match=f"function for the token {said}") as failure:
            await client.call("GET", "/v1/status")
        assert failure.value.details == {}
    assert not here.sent


async def test_a_producer_tries_again_until_it_has_one(server: ProduceServer) -> None:
    ask = Asked(OSError("away"), OSError("away"), "token")
    async with Producer(server.url, QUICK, token=ask) as producer:
        await producer.send("t", {"n": 1})
    assert server.documents("t") == [{"n": 1}]
    assert deaths.counts() == {}


def test_where_no_token_is_to_be_had_nothing_is_in_doubt() -> None:
    async def scenario() -> None:
        here, ask = Here(), Asked(OSError("away"))
        async with Producer("http://here", token=ask, open_calls=here.open_calls) as producer:
            with pytest.raises(errors.NotNow, match="function for the token failed") as failure:
                await producer.send("t", {"n": 2})
        assert not isinstance(failure.value, errors.OutcomeUnknown)
        assert not here.sent

    run_virtual(scenario())
    assert deaths.counts() == {}


def test_nothing_is_sent_after_the_deadline_though_a_token_comes_then() -> None:
    """The first one is refused, and another one takes longer than the call may."""
    asked = itertools.count()

    async def ask() -> str:
        if not next(asked):
            return "old"
        await asyncio.sleep(3.0)
        return "token"

    async def scenario() -> None:
        here = Here()
        options = ProducerOptions(deadline_s=2.0)
        async with Producer(
            "http://here", options, token=ask, open_calls=here.open_calls
        ) as producer:
            with pytest.raises(errors.Timeout, match="function for the token took over"):
                await producer.send("t", {"n": 1})
            assert not here.produced
            await producer.send("t", {"n": 2})
        assert here.produced == [b'{"n":2}']

    run_virtual(scenario())


@pytest.mark.parametrize("again", [OSError("away"), "first"], ids=["fails", "the same"])
async def test_a_renewal_that_brings_nothing_new_is_tried_again_before_the_token_ends(
    again: str | BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many a function keeps its token until that has little time left."""
    monkeypatch.setattr(identified_link, "RENEW_PAUSE_S", 0.001)
    monkeypatch.setattr(identified_link, "RENEW_AT", 0.0)
    here, listening = Here(), Listening()
    said = Credentials(Asked("first", again, again, "second"))
    link = identified(here.open_link, said, THIS_MACHINE)(listening, 75.0)
    await link.connect("ws://here")
    gateway = here.links[0]
    gateway.says(b'{"type":"authenticated","principal":"ann","expires_at_ms":9999999999999}')
    async with asyncio.timeout(WAIT_S):
        await until(lambda: gateway.said[-1] == {"type": "auth", "token": "second"})
    link.abort()
    await link.wait_closed()
    assert deaths.counts() == {}


def test_a_clock_that_is_ahead_has_no_token_renewed_each_second() -> None:
    async def scenario() -> None:
        here, ask = Here(), Asked("first", "second")
        link = identified(here.open_link, Credentials(ask), THIS_MACHINE)(Listening(), 75.0)
        await link.connect("ws://here")
        here.links[0].says(b'{"type":"authenticated","principal":"ann","expires_at_ms":1}')
        await asyncio.sleep(0.9 * identified_link.RENEW_LATE_S)
        assert ask.times == 1
        await asyncio.sleep(0.2 * identified_link.RENEW_LATE_S)
        assert here.links[0].said[-1] == {"type": "auth", "token": "second"}
        link.abort()
        await link.wait_closed()

    run_virtual(scenario())


class Listening:
    def opened(self, link: Link) -> None: ...

    def heard(self, message: bytes) -> None: ...

    def lost(self) -> None: ...
