"""`headgate subscribe`: what it says, what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator

import pytest
from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server

from tests.cli.command import ended, headgate, started
from tests.client.producing.produce_server import ProduceServer
from tests.forks import AsyncFork

EVENT = (
    b'{"type":"event","topic":"flights","partition":1,"seq":%d,"event_id":"e%d","key":"k",'
    b'"collection":"c","op":"insert","document":{"a": 1.0,\n "b":"\\u00e9"},'
    b'"subscriptions":["NAME"]}'
)
SUBSCRIBED = b'{"type":"subscribed","subscription":"NAME","topic":"flights","positions":{"1":0}}'


class Gateway:
    """Answers every subscriber with `messages` and keeps what it asked for."""

    def __init__(self) -> None:
        self.messages: list[bytes] = [SUBSCRIBED]
        self.asked: list[dict[str, object]] = []
        self.left = asyncio.Event()

    def accept(self, _request: WSUpgradeRequest) -> WSListener:
        gateway = self

        class Connection(WSListener):
            def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
                if frame.msg_type == WSMsgType.CLOSE:
                    transport.disconnect()
                elif frame.msg_type == WSMsgType.TEXT:
                    self.answer(transport, json.loads(frame.get_payload_as_bytes()))

            def answer(self, transport: WSTransport, asked: dict[str, object]) -> None:
                if asked["type"] == "subscribe":
                    name = str(asked.pop("id"))
                    gateway.asked.append(asked)
                    for message in gateway.messages:
                        transport.send(WSMsgType.TEXT, message.replace(b"NAME", name.encode()))

            def on_ws_disconnected(self, transport: WSTransport) -> None:
                gateway.left.set()

        return Connection()


@pytest.fixture
async def gateway(server: ProduceServer) -> AsyncIterator[Gateway]:
    running = Gateway()
    listener = await ws_create_server(running.accept, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    server.ws_url = f"ws://127.0.0.1:{port}/v1/subscribe"
    yield running
    listener.close()
    await listener.wait_closed()


async def subscribed(process: AsyncFork) -> None:
    assert process.stderr is not None
    assert await asyncio.wait_for(process.stderr.readline(), 30) == b"subscribed\n"


async def test_an_event_is_one_line_with_its_document_as_it_was_produced(
    server: ProduceServer, gateway: Gateway
) -> None:
    gateway.messages += [EVENT % (n, n) for n in (1, 2, 3)]
    result = await headgate(
        "subscribe", "flights", "--where", "a > 0", "--from", "1:1", "--count", "2", url=server.url
    )
    assert (result.code, result.err) == (0, "subscribed\n")
    first, second = result.out.splitlines()
    (name,) = json.loads(first)["subscriptions"]
    assert first == (
        '{"topic":"flights","partition":1,"seq":1,"event_id":"e1","key":"k","collection":"c",'
        f'"op":"insert","document":{{"a": 1.0,  "b":"\\u00e9"}},"subscriptions":["{name}"]}}'
    )
    assert json.loads(second)["seq"] == 2
    asked = {"type": "subscribe", "topic": "flights", "where": "a > 0", "from": "1:1"}
    assert gateway.asked == [asked]
    await asyncio.wait_for(gateway.left.wait(), 30)


async def test_what_is_about_a_whole_collection_says_which(
    server: ProduceServer, gateway: Gateway
) -> None:
    about = {"type": "event", "topic": "flights", "partition": 1, "seq": 1, "event_id": "e"}
    said = {"key": None, "collection": "shop.orders", "op": "drop", "document": None}
    gateway.messages.append(json.dumps({**about, **said, "subscriptions": ["NAME"]}).encode())
    result = await headgate("subscribe", "flights", "--count", "1", url=server.url)
    line = json.loads(result.out)
    assert {name: line[name] for name in said} == said


async def test_without_options_it_starts_now(server: ProduceServer, gateway: Gateway) -> None:
    gateway.messages.append(EVENT % (1, 1))
    await headgate("subscribe", "flights", "--count", "1", url=server.url)
    assert gateway.asked == [{"type": "subscribe", "topic": "flights", "from": "now"}]


async def test_a_filter_that_seems_to_lack_quotation_marks_gets_a_hint_and_is_sent_as_it_is(
    server: ProduceServer, gateway: Gateway
) -> None:
    gateway.messages.append(EVENT % (1, 1))
    where = "customer == ada"
    result = await headgate(
        "subscribe", "flights", "--where", where, "--count", "1", url=server.url
    )
    hint, *rest = result.err.splitlines()
    assert hint.startswith("headgate: hint: in customer == ada the word ada is a field")
    assert (result.code, rest) == (0, ["subscribed"])
    assert [asked["where"] for asked in gateway.asked] == [where]


async def test_a_tenant_is_passed_on(server: ProduceServer, gateway: Gateway) -> None:
    gateway.messages.append(EVENT % (1, 1))
    await headgate("subscribe", "flights", "--tenant", "acme", "--count", "1", url=server.url)
    assert [asked["tenant"] for asked in gateway.asked] == ["acme"]


async def test_records_that_will_not_come_are_one_sentence_on_standard_error(
    server: ProduceServer, gateway: Gateway
) -> None:
    resync = {"type": "resync", "subscription": "NAME", "topic": "flights", "partition": 1}
    place = {"after": 0, "from": 7, "reason": "retention"}
    gateway.messages += [json.dumps(resync | place).encode(), EVENT % (7, 7)]
    result = await headgate("subscribe", "flights", "--from", "1:1", "--count", "1", url=server.url)
    assert json.loads(result.out)["seq"] == 7
    assert result.err == (
        "subscribed\n"
        "resync: records 1 to 6 of partition 1 of flights are no longer kept; going on from 7\n"
    )


@pytest.mark.parametrize(
    ("options", "number", "code"),
    [
        ([], signal.SIGTERM, 0),
        ([], signal.SIGINT, 0),
        (["--count", "5"], signal.SIGTERM, 143),
        (["--count", "5"], signal.SIGINT, 130),
    ],
    ids=["sigterm", "ctrl-c", "sigterm-before-the-count", "ctrl-c-before-the-count"],
)
async def test_a_signal_ends_it_quietly(
    server: ProduceServer, gateway: Gateway, options: list[str], number: signal.Signals, code: int
) -> None:
    gateway.messages.append(EVENT % (1, 1))
    process = await started("subscribe", "flights", *options, url=server.url)
    await subscribed(process)
    assert process.stdout is not None
    assert json.loads(await asyncio.wait_for(process.stdout.readline(), 30))["seq"] == 1
    process.send_signal(number)
    result = await ended(process, b"")
    assert (result.code, result.out, result.err) == (code, "", "")


async def test_a_refusal_is_one_sentence_and_code_2(
    server: ProduceServer, gateway: Gateway
) -> None:
    refusal = {"code": "invalid_filter", "message": "the filter ends too early", "details": {}}
    gateway.messages = [json.dumps({"type": "error", "error": refusal}).encode()]
    result = await headgate("subscribe", "flights", "--where", "a >", url=server.url)
    assert (result.code, result.out) == (2, "")
    assert result.err == "headgate: the filter ends too early\n"
