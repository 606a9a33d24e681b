"""What ports.transport promises, on every transport, plain and with TLS and a token."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from functools import partial

import msgspec
import nats as nats_client
import pytest
from structlog.testing import capture_logs

from headgate import errors
from headgate.decide.delivery.gaps import Gap, notice
from headgate.model.delivery import Batch, Delivery, DeliveryAnswer, DeliveryBatch, Verdict
from headgate.model.event import PartitionRef
from headgate.ports.transport import DeliveryTransport
from headgate.telemetry import LogLine
from tests.adapters.transports.conftest import WIRED, Listen
from tests.adapters.transports.stage import (
    TIMEOUT_S,
    TOKEN,
    Book,
    Way,
    batch,
    delivery,
    plain,
)
from tests.waiting import WAIT_S, until

VERDICTS: tuple[Verdict, ...] = (
    "accepted",
    "duplicate",
    "no_subscriber",
    "stale_fence",
    "retry",
    "rejected",
)

EVERY_FIELD = Delivery(
    topic="flüge",
    partition=7,
    seq=2**40,
    event_id='e"1',
    key="DLH/1",
    collection="positions",
    op="update",
    document=msgspec.Raw(
        b'{ "alt": 12.50,\n "big": 12345678901234567890, "name": "\\u00e9\xc3\xa9"}'
    ),
    subscriptions=("s1", "s2"),
    epoch=2**33,
    time_ms=1_700_000_000_000,
    since=(0, 99),
    left=("s2",),
    redelivery=True,
    lost_from=2**39,
    broadcast=True,
    headers=msgspec.Raw(b'{"trace":"\\u00e9\xc3\xa9"}'),
)


async def test_every_field_arrives_as_it_was_sent(listen: Listen, lanes: DeliveryTransport) -> None:
    book = Book()
    _, url = await listen(book)
    sent = batch(EVERY_FIELD, delivery(2))
    keyed = msgspec.structs.replace(delivery(3), key="DLH/1", collection="positions")
    with_headers = msgspec.structs.replace(delivery(4), headers=msgspec.Raw(b'{"trace":"7"}'))
    lines = batch(keyed, with_headers, delivery(5))
    await lanes.deliver(url, sent, timeout_s=TIMEOUT_S)
    await lanes.deliver(url, lines, timeout_s=TIMEOUT_S)
    assert [plain(one) for one in book.batches] == [plain(sent), plain(lines)]


async def test_what_only_connectors_say_arrives_as_it_was_said(
    listen: Listen, lanes: DeliveryTransport
) -> None:
    book = Book()
    _, url = await listen(book)
    nothing = msgspec.Raw(b"null")
    said = [
        msgspec.structs.replace(
            delivery(seq), op=op, key=None, collection="shop.orders", document=nothing
        )
        for seq, op in enumerate(("truncate", "drop", "rename"), 1)
    ]
    lines = batch(*said, msgspec.structs.replace(delivery(4), op="read"))
    marker = notice(Gap(5, 5, at_origin=True), PartitionRef("flights", 0), epoch=1, time_ms=1)
    one_object = batch(marker)
    await lanes.deliver(url, lines, timeout_s=TIMEOUT_S)
    await lanes.deliver(url, one_object, timeout_s=TIMEOUT_S)
    assert [plain(one) for one in book.batches] == [plain(lines), plain(one_object)]
    assert [one.op for one in book.deliveries] == ["truncate", "drop", "rename", "read", "lost"]


async def test_the_address_names_the_transport(way: Way, listen: Listen) -> None:
    _, url = await listen(Book())
    assert url.startswith(f"{way.scheme}://")


async def test_verdicts_come_back_in_order_with_the_depth(
    listen: Listen, lanes: DeliveryTransport
) -> None:
    _, url = await listen(lambda _batch: DeliveryAnswer(VERDICTS, fill=0.75))
    sent = batch(*(delivery(seq) for seq in range(1, len(VERDICTS) + 1)))
    answer = await lanes.deliver(url, sent, timeout_s=TIMEOUT_S)
    assert answer == DeliveryAnswer(VERDICTS, fill=0.75)


async def test_an_empty_batch_has_no_verdicts(listen: Listen, lanes: DeliveryTransport) -> None:
    _, url = await listen(Book())
    assert (await lanes.deliver(url, batch(), timeout_s=TIMEOUT_S)).verdicts == ()


@pytest.mark.parametrize(
    ("count", "size_bytes"),
    [pytest.param(5_000, 200, id="many events"), pytest.param(12, 300_000, id="large documents")],
)
async def test_a_big_batch_arrives_whole_and_in_order(
    listen: Listen, lanes: DeliveryTransport, count: int, size_bytes: int
) -> None:
    book = Book()
    _, url = await listen(book)
    sent = batch(*(delivery(seq, size_bytes=size_bytes) for seq in range(1, count + 1)))
    answer = await lanes.deliver(url, sent, timeout_s=WAIT_S)
    assert answer.verdicts == ("accepted",) * count
    assert [one.seq for one in book.deliveries] == list(range(1, count + 1))
    assert bytes(book.deliveries[-1].document) == bytes(sent.deliveries[-1].document)


async def test_two_gateways_at_once_get_their_own(listen: Listen, lanes: DeliveryTransport) -> None:
    books = {name: Book() for name in ("gateway-1", "gateway-2")}
    urls = {name: (await listen(book, node_id=name))[1] for name, book in books.items()}

    async def send(name: str, seq: int) -> DeliveryAnswer:
        return await lanes.deliver(
            urls[name], batch(delivery(seq), gateway_id=name), timeout_s=TIMEOUT_S
        )

    await asyncio.gather(*(send(name, seq) for name in books for seq in range(1, 21)))
    for name, book in books.items():
        assert {one.gateway_id for one in book.batches} == {name}
        assert sorted(one.seq for one in book.deliveries) == list(range(1, 21))


async def test_answers_of_concurrent_batches_are_not_mixed_up(
    listen: Listen, lanes: DeliveryTransport
) -> None:
    def by_size(found: Batch) -> DeliveryAnswer:
        size = len(found.deliveries)
        return DeliveryAnswer((VERDICTS[0],) * size, fill=size / 8)

    _, url = await listen(by_size)
    sizes = [1 + number % 7 for number in range(30)]
    answers = await asyncio.gather(
        *(
            lanes.deliver(url, batch(*map(delivery, range(1, size + 1))), timeout_s=TIMEOUT_S)
            for size in sizes
        )
    )
    assert [answer.fill * 8 for answer in answers] == sizes


async def test_a_batch_that_takes_long_holds_no_other(
    listen: Listen, lanes: DeliveryTransport
) -> None:
    """As where a gateway has to look whom it is for."""
    book, begun, goes_on = Book(), asyncio.Event(), asyncio.Event()

    async def slowly(found: Batch) -> DeliveryAnswer:
        begun.set()
        await goes_on.wait()
        return book(found)

    def accept(found: Batch) -> DeliveryAnswer | Awaitable[DeliveryAnswer]:
        return slowly(found) if len(found.deliveries) == 2 else book(found)

    _, url = await listen(accept)
    long = asyncio.create_task(
        lanes.deliver(url, batch(delivery(1), delivery(2)), timeout_s=2 * WAIT_S)
    )
    await begun.wait()
    other = asyncio.create_task(lanes.deliver(url, batch(delivery(3)), timeout_s=2 * WAIT_S))
    await asyncio.wait([other], timeout=TIMEOUT_S / 2)
    goes_on.set()
    assert (await long).verdicts == ("accepted", "accepted")
    await other
    assert [one.seq for one in book.deliveries] == [3, 1, 2]


async def test_what_is_prepared_is_what_arrives_unless_something_else_is_sent(
    listen: Listen, lanes: DeliveryTransport
) -> None:
    book = Book()
    _, url = await listen(book)
    first, second, other = (batch(delivery(seq)) for seq in (1, 2, 3))
    calls: list[DeliveryBatch] = []

    def prepare(following: DeliveryBatch) -> None:
        calls.append(following)
        lanes.prepare(url, following)

    for sent, following in ((first, second), (second, other), (first, other), (second, first)):
        before = len(calls)
        answer = await lanes.deliver(
            url, sent, timeout_s=TIMEOUT_S, meanwhile=partial(prepare, following)
        )
        assert answer.verdicts == ("accepted",)
        assert len(calls) <= before + 1
    assert calls
    assert [one.seq for one in book.deliveries] == [1, 2, 1, 2]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        pytest.param(errors.InvalidRequest("no such thing"), errors.InvalidRequest, id="400"),
        pytest.param(errors.TooLarge("too much"), errors.TooLarge, id="413"),
        pytest.param(errors.NotFound("somebody else"), errors.NotNow, id="404"),
        pytest.param(errors.Overloaded("not now"), errors.NotNow, id="503"),
        pytest.param(errors.HeadgateError("broken"), errors.NotNow, id="500"),
        pytest.param(ValueError("a mistake"), errors.NotNow, id="a mistake at the gateway"),
    ],
)
async def test_only_a_wrong_batch_is_refused_for_good(
    listen: Listen,
    lanes: DeliveryTransport,
    raised: Exception,
    expected: type[errors.HeadgateError],
) -> None:
    book = Book()

    def refuse_once(found: Batch) -> DeliveryAnswer:
        if not book.batches:
            book(found)
            raise raised
        return book(found)

    _, url = await listen(refuse_once)
    with pytest.raises(expected) as refused:
        await lanes.deliver(url, batch(delivery(1)), timeout_s=TIMEOUT_S)
    assert isinstance(refused.value, errors.CallerError) == issubclass(expected, errors.CallerError)
    # A refusal doesn't spoil the connection.
    answer = await lanes.deliver(url, batch(delivery(1)), timeout_s=TIMEOUT_S)
    assert answer.verdicts == ("accepted",)


@pytest.mark.parametrize("verdicts", [("accepted",), ("accepted",) * 3], ids=["few", "many"])
async def test_another_number_of_verdicts_is_no_answer(
    listen: Listen, lanes: DeliveryTransport, verdicts: tuple[Verdict, ...]
) -> None:
    _, url = await listen(lambda _batch: DeliveryAnswer(verdicts))
    with pytest.raises(errors.NotNow, match=f"for {len(verdicts)} events instead of 2"):
        await lanes.deliver(url, batch(delivery(1), delivery(2)), timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("way", WIRED, indirect=True)
@pytest.mark.parametrize("garbage", [b"\xff\xfe garbage", b'{"verdicts":["maybe"]}', b"{}"])
async def test_garbage_is_no_answer(
    way: Way,
    listen: Listen,
    lanes: DeliveryTransport,
    monkeypatch: pytest.MonkeyPatch,
    garbage: bytes,
) -> None:
    made_by = {
        "http": "headgate.adapters.http.delivery.encode_answer",
        "grpc": "headgate.adapters.grpc.delivery.ack_of",
        "nats": "headgate.adapters.nats.delivery.reply_to",
    }
    monkeypatch.setattr(made_by[way.protocol], lambda *_: garbage)
    _, url = await listen(Book())
    with pytest.raises(errors.NotNow):
        await lanes.deliver(url, batch(delivery(1)), timeout_s=TIMEOUT_S)


# --- gateways that come and go -------------------------------------------------------------------


async def test_nobody_there_is_said_at_once(
    way: Way, listen: Listen, lanes: DeliveryTransport
) -> None:
    listener, url = await listen(Book())
    await listener.stop(1.0)
    began_s = time.monotonic()
    with pytest.raises(errors.PeerUnreachable):
        await lanes.deliver(url, batch(delivery(1)), timeout_s=60.0)
    assert time.monotonic() - began_s < 30.0


async def test_a_gateway_that_never_answers_costs_the_timeout(
    way: Way, lanes: DeliveryTransport
) -> None:
    async with AsyncExitStack() as stack:
        url = await _silent(way, stack)
        with pytest.raises(errors.PeerUnreachable):
            await lanes.deliver(url, batch(delivery(1)), timeout_s=0.2)


async def test_a_cancelled_delivery_leaves_nothing_behind(
    way: Way, lanes: DeliveryTransport
) -> None:
    async with AsyncExitStack() as stack:
        url = await _silent(way, stack)
        # What is opened once and stays open isn't left behind by the call that was first.
        with pytest.raises(errors.PeerUnreachable):
            await lanes.deliver(url, batch(delivery(1)), timeout_s=0.2)
        before = asyncio.all_tasks()
        calls = [
            asyncio.create_task(lanes.deliver(url, batch(delivery(seq)), timeout_s=WAIT_S))
            for seq in range(3)
        ]
        await asyncio.wait(calls, timeout=0.1)
        for call in calls:
            call.cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        await until(lambda: asyncio.all_tasks() <= before)


async def test_who_closes_its_connections_waits_for_nobody(
    way: Way, lanes: DeliveryTransport
) -> None:
    async with AsyncExitStack() as stack:
        url = await _silent(way, stack)
        call = asyncio.create_task(lanes.deliver(url, batch(delivery(1)), timeout_s=WAIT_S * 10))
        await asyncio.wait({call}, timeout=0.1)
        await lanes.close()
        with pytest.raises(errors.NotNow):
            await asyncio.wait_for(call, TIMEOUT_S / 2)


async def test_a_gateway_that_is_back_at_its_address_gets_deliveries_again(
    listen: Listen, lanes: DeliveryTransport
) -> None:
    first, second = Book(), Book()
    listener, url = await listen(first)
    await lanes.deliver(url, batch(delivery(1)), timeout_s=TIMEOUT_S)
    await listener.stop(1.0)
    with pytest.raises(errors.PeerUnreachable):
        await lanes.deliver(url, batch(delivery(2)), timeout_s=TIMEOUT_S)
    _, again = await listen(second, url=url)
    assert again == url
    await delivered(lanes, url, batch(delivery(3)))
    assert [one.seq for one in first.deliveries] == [1]
    assert [one.seq for one in second.deliveries] == [3]


# --- tokens and certificates ---------------------------------------------------------------------


@pytest.mark.parametrize("way", ["http-tls", "grpc-tls", "nats-tls"], indirect=True)
@pytest.mark.parametrize("token", ["wrong", ""], ids=["wrong", "missing"])
async def test_a_wrong_token_may_be_mended_and_is_logged_once(
    way: Way, listen: Listen, token: str
) -> None:
    book = Book()
    _, url = await listen(book)
    transport = way.transport(token=token)
    with capture_logs() as lines:
        for _ in range(3):
            with pytest.raises(errors.NotNow, match=r"transport\.token"):
                await transport.deliver(url, batch(delivery(1)), timeout_s=TIMEOUT_S)
    await transport.close()
    assert not book.batches
    told = [line for line in lines if line["event"] == LogLine.TOKEN_REFUSED]
    # NATS lets nobody in who could be logged here.
    assert [line["peer"] for line in told] == ([] if way.protocol == "nats" else ["lanes-1"])


@pytest.mark.parametrize("way", ["http-tls", "grpc-tls", "nats-tls"], indirect=True)
async def test_a_certificate_of_somebody_else_is_not_trusted(way: Way, listen: Listen) -> None:
    book = Book()
    _, url = await listen(book)
    transport = way.transport(authority=way.files.other_authority)
    with pytest.raises(errors.NotNow):
        await transport.deliver(url, batch(delivery(1)), timeout_s=TIMEOUT_S)
    await transport.close()
    assert not book.batches


@pytest.mark.parametrize("way", ["http-tls", "grpc-tls"], indirect=True)
async def test_without_tls_a_secured_gateway_takes_nothing(way: Way, listen: Listen) -> None:
    book = Book()
    _, url = await listen(book)
    transport = way.transport()
    with pytest.raises(errors.NotNow):
        await transport.deliver(url.replace("s://", "://"), batch(delivery(1)), timeout_s=TIMEOUT_S)
    await transport.close()
    assert not book.batches


# --- parts ---------------------------------------------------------------------------------------


async def delivered(lanes: DeliveryTransport, url: str, sent: DeliveryBatch) -> None:
    """Sends until it is taken, as a lane does."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await lanes.deliver(url, sent, timeout_s=TIMEOUT_S)
                return
            except errors.NotNow:
                await asyncio.sleep(0.05)


async def _never(_batch: DeliveryBatch) -> DeliveryAnswer:
    await asyncio.Event().wait()
    raise AssertionError


async def _silent(way: Way, stack: AsyncExitStack) -> str:
    """The address of something that takes what is sent and never answers."""
    if way.protocol == "memory":
        way.gateways.listening["memory://silent"] = _never
        return "memory://silent"
    if way.protocol != "nats":
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        return f"{way.scheme}://127.0.0.1:{listener.getsockname()[1]}"
    client = await nats_client.connect(
        way.nats,
        token=TOKEN if way.secure else None,
        tls=ssl.create_default_context(cafile=way.files.authority) if way.secure else None,
    )
    stack.push_async_callback(client.close)
    await client.subscribe(f"{way.nats_prefix}.silent")
    await client.flush()
    return f"nats://{way.nats_prefix}.silent"
