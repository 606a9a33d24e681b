"""The function that a program gives its client for tokens, and what it may do wrong: it fails now
and then, it takes long. A client goes on as with a gateway that is away, and says what is true."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import pytest

from headgate import errors
from headgate.adapters.machine import THIS_MACHINE
from headgate.adapters.memory.machine import ScriptedMachine
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
from tests.client.cancelling import Cancelled, Cancelling, cancel_everywhere
from tests.client.producing.produce_server import ProduceServer, produce_server
from tests.client.sync.test_producer import in_thread
from tests.services.gateway.world import until
from tests.virtual_time import run_virtual

T = TypeVar("T")
WAIT_S = 10.0
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
    async def ask() -> str:
        return await asyncio.sleep(WAIT_S, "late")

    said = Credentials(ask)
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

    async def late() -> str:
        return await asyncio.sleep(WAIT_S, "late")

    for ask, said in (
        (late, "took over"),
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


@pytest.mark.parametrize("first", [None, "old"], ids=["none yet", "refused"])
def test_what_waits_for_a_token_is_told_that_it_is_not_written(first: str | None) -> None:
    answers = [first] if first else []

    async def ask() -> str:
        if answers:
            return answers.pop()
        await asyncio.sleep(1_000.0)
        return "late"

    async def scenario() -> None:
        here = Here()
        options = ProducerOptions(deadline_s=8.0)
        for closes in (False, True):
            producer = Producer("http://here", options, token=ask, open_calls=here.open_calls)
            sending = asyncio.create_task(producer.send("t", {"n": 1}))
            await asyncio.sleep(7.0)  # the route isn't waited for any more
            if closes:
                producer._abandon(errors.NotNow("the producer was closed"))
            with pytest.raises(errors.NotNow) as failure:
                await sending
            assert not isinstance(failure.value, errors.OutcomeUnknown)
            await producer.close()
        assert not here.produced

    run_virtual(scenario())
    assert deaths.counts() == {}


def test_what_was_told_that_it_is_not_written_is_not_when_the_token_comes() -> None:
    """But what came along with it, whose deadline is later, is."""
    asked = itertools.count()

    async def ask() -> str:
        if not next(asked):
            return "old"
        await asyncio.sleep(3.0)
        return "token"

    async def scenario() -> None:
        here = Here()
        options = ProducerOptions(deadline_s=3.5, linger_s=3.0)
        producer = Producer("http://here", options, token=ask, open_calls=here.open_calls)
        first = asyncio.create_task(producer.send("t", {"n": 1}))
        await asyncio.sleep(2.9)
        second = asyncio.create_task(producer.send("t", {"n": 2}))
        with pytest.raises(errors.Timeout) as failure:
            await first
        assert not isinstance(failure.value, errors.OutcomeUnknown)
        await second
        await producer.close()
        assert here.produced == [b'{"n":2}']

    run_virtual(scenario())


class Blocking:
    """A function that isn't asynchronous, and blocks until it `may_return`."""

    def __init__(self, answer: str = "token") -> None:
        self.began, self.may_return = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        self._answer = answer

    def __call__(self) -> str:
        self.threads.append(threading.current_thread())
        self.began.set()
        assert self.may_return.wait(WAIT_S)
        return self._answer


async def test_one_that_blocks_does_not_hold_the_loop() -> None:
    ask = Blocking()
    said = Credentials(ask)
    asking = asyncio.create_task(said.current())
    async with asyncio.timeout(WAIT_S):
        await until(ask.began.is_set)
        ask.may_return.set()
        assert await asking == "token"


async def test_one_that_blocks_is_at_work_once_whoever_gave_up_waiting_for_it() -> None:
    ask = Blocking()
    said = Credentials(ask)
    for _ in range(3):
        asking = asyncio.create_task(said.current())
        async with asyncio.timeout(WAIT_S):
            await until(ask.began.is_set)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    ask.may_return.set()
    assert await asyncio.wait_for(said.current(), WAIT_S) == "token"
    assert len(ask.threads) == 1
    await said.close()


def test_on_a_scripted_machine_there_is_no_thread() -> None:
    async def scenario() -> None:
        here = threading.current_thread()
        said = Credentials(lambda: threading.current_thread().name, ScriptedMachine())
        assert await said.current() == here.name

    run_virtual(scenario())


async def test_one_that_is_not_asynchronous_may_return_what_is() -> None:
    said = Credentials(lambda: asyncio.sleep(0, "token"))
    assert await said.current() == "token"


@pytest.mark.parametrize("failure", [StopIteration(), Panic("in another language")])
async def test_one_that_is_not_asynchronous_may_raise_whatever_it_likes(
    failure: BaseException,
) -> None:
    def ask() -> str:
        raise failure

    with pytest.raises(errors.NotNow, match="function for the token failed"):
        await asyncio.wait_for(Credentials(ask).current(), WAIT_S)
    assert deaths.counts() == {}


async def test_a_blocking_producer_whose_function_blocks_ends_its_calls_and_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("headgate.client.producing.calls", "headgate.client.producer"):
        monkeypatch.setattr(f"{name}.ANSWER_MARGIN_S", 0.1)
    ask = Blocking()
    producer = SyncProducer("http://127.0.0.1:1", ProducerOptions(deadline_s=0.01), token=ask)

    def run() -> errors.HeadgateError | None:
        with producer:
            try:
                producer.send("t", {})
            except errors.HeadgateError as error:
                return error
        return None

    failure = await asyncio.wait_for(asyncio.wrap_future(in_thread(run)), WAIT_S)
    assert ask.began.is_set()
    ask.may_return.set()
    assert isinstance(failure, errors.NotNow)
    assert not isinstance(failure, errors.OutcomeUnknown)


async def test_a_blocking_subscriber_whose_renewal_blocks_goes_on_and_closes() -> None:
    """The loop is free: what comes is handed out, and closing waits for nobody."""
    here, ask, asked = Here(), Blocking("second"), itertools.count()

    def first_at_once() -> str:
        return ask() if next(asked) else "first"

    subscriber = SyncSubscriber(
        "http://here", token=first_at_once, open_calls=here.open_calls, open_link=here.open_link
    )
    subscriber.add("t", id="s")

    def run() -> object:
        with subscriber:
            link: Any = here.links[0].listener  # the client's end of the connection
            subscriber._loop.call_soon_threadsafe(link._begin_renewal)
            assert ask.began.wait(WAIT_S)
            subscriber._loop.call_soon_threadsafe(link.heard, EVENT)
            return next(subscriber)

    taken = await asyncio.wait_for(asyncio.wrap_future(in_thread(run)), WAIT_S)
    ask.may_return.set()
    assert isinstance(taken, Event)


def test_what_is_cancelled_or_closed_in_the_middle_leaves_nothing_behind() -> None:
    """On a machine where a function takes its time without a thread."""

    class Slow(ScriptedMachine):
        async def offload(self, work: Callable[[], T]) -> T:
            await asyncio.sleep(0.01)
            return work()

    async def scenario(cancelling: Cancelling) -> None:
        here, asked = Here(), itertools.count()

        def ask() -> str:
            return f"token-{next(asked)}"

        producer = Producer(
            "http://here",
            ProducerOptions(deadline_s=2.0),
            token=ask,
            open_calls=here.open_calls,
            machine=Slow(),
        )
        with suppress(Cancelled):
            await cancelling.call("send", producer.send("t", {"n": 1}))
        await producer.send("t", {"n": 2})
        assert here.produced[-1] == b'{"n":2}'
        said = Credentials(ask, Slow())
        for name in ("first", "second"):
            with suppress(Cancelled):
                said.forget(await cancelling.call(name, said.current()))
        late = asyncio.create_task(said.current())
        await asyncio.sleep(0)
        with suppress(Cancelled):
            await cancelling.call("close", said.close())
        await said.close()
        with suppress(errors.NotNow):
            await late
        with suppress(Cancelled):
            await cancelling.call("close", producer.close())
        await producer.close()

    assert cancel_everywhere(scenario) > 4


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
