"""Names, keys and ids as programs give them: members of enumerations and other classes of text mean
their value; what is no text, or none that can be written, is refused before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest

from headgate.client import Consumer, Event, Producer, Subscriber
from headgate.client.gateway_choice import Doors
from headgate.errors import InvalidRequest
from tests.client.producing.produce_server import produce_server
from tests.client.virtual_gateway import VirtualGateway, options
from tests.virtual_time import run_virtual


class Named(str, Enum):  # noqa: UP042 - formatted as its name since Python 3.11, unlike a StrEnum
    TOPIC = "flights"
    KEY = "4b1613"
    ID = "an-id"
    GROUP = "radar"
    WHERE = "n > 0"
    START = "earliest"


class Text(str):
    """As those in arrays."""

    __slots__ = ()


def texts(kind: type[str]) -> dict[str, Any]:
    """By what they are: `Named`, or of the class `kind`."""
    return {one.name.lower(): one if kind is Named else kind(one.value) for one in Named}


@pytest.mark.parametrize("kind", [Named, Text])
async def test_events_go_to_the_topic_and_have_the_key_that_a_text_of_any_class_names(
    kind: type[str],
) -> None:
    given = texts(kind)
    async with produce_server() as server:
        server.add_topic("flights")
        async with Producer(server.url) as producer:
            sent = await producer.send(
                given["topic"],
                {"n": 1},
                key=given["key"],
                event_id=given["id"],
                collection=given["group"],
                headers={given["id"]: given["key"]},
            )
            # What was sent before under the same name, of another class, is the same topic.
            plain = await producer.send("flights", {"n": 2}, key="4b1613", collection="radar")
        assert sent.event_id == "an-id"
        assert plain.partition == sent.partition
        [first, second] = server.written("flights")
        assert (first.key, first.event_id, first.collection) == ("4b1613", "an-id", "radar")
        assert first.headers == {"an-id": "4b1613"}
        assert second.key == "4b1613"


@pytest.mark.parametrize("kind", [Named, Text])
def test_a_subscriber_and_a_consumer_ask_for_what_a_text_of_any_class_names(
    kind: type[str],
) -> None:
    given = texts(kind)

    async def follow() -> None:
        gateway = VirtualGateway()
        gateway.append("flights", 2)
        subscriber = Subscriber(
            topic=given["topic"], where=given["where"], start=given["start"], **options()
        )
        second = subscriber.add(
            given["topic"], id=given["id"], start=given["start"], tenant=given["group"]
        )
        async with gateway.served(subscriber):
            item = await anext(subscriber)
            assert isinstance(item, Event)
            assert item.topic == "flights"
            assert second == "an-id"
            assert subscriber.positions_of(given["id"]) == subscriber.positions_of("an-id")
        consumer = Consumer(
            topic=given["topic"],
            group=given["group"],
            consumer=given["id"],
            where=given["where"],
            start=given["start"],
            **options(),
        )
        assert type(consumer.id) is str
        async with gateway.served(consumer):
            assert isinstance(await anext(consumer), Event)
        first, again, join = (
            one for one in gateway.requests if one["type"] in ("subscribe", "join")
        )
        assert (first["topic"], first["where"], first["from"]) == ("flights", "n > 0", "earliest")
        assert (again["id"], again["topic"], again["tenant"]) == ("an-id", "flights", "radar")
        names = [join[name] for name in ("topic", "group", "consumer", "where", "from")]
        assert names == ["flights", "radar", "an-id", "n > 0", "earliest"]

    run_virtual(follow())


def test_a_subscriber_is_placed_by_the_value_of_its_id() -> None:
    doors = Subscriber("http://127.0.0.1:1", "flights", id=Named.ID)._line.doors
    assert isinstance(doors, Doors)
    assert f"{doors.subscriber_id}" == "an-id"


NO_TEXTS: list[Any] = [5, b"flights", ["flights"], "bad\ud800"]
MAKERS: dict[str, Callable[[Any], object]] = {
    "subscriber": lambda text: Subscriber(topic=text),
    "its id": lambda text: Subscriber(topic="flights", id=text),
    "a subscription": lambda text: Subscriber().add("flights", id=text),
    "where": lambda text: Subscriber(topic="flights", where=text),
    "start": lambda text: Subscriber(topic="flights", start=text),
    "tenant": lambda text: Subscriber(topic="flights", tenant=text),
    "consumer": lambda text: Consumer(topic=text, group="g"),
    "group": lambda text: Consumer(topic="t", group=text),
    "consumer's id": lambda text: Consumer(topic="t", group="g", consumer=text),
}


@pytest.mark.parametrize("text", NO_TEXTS, ids=repr)
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_what_is_no_text_makes_no_client(maker: Callable[[Any], object], text: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"give it as str|half a character"):
        maker(text)


@pytest.mark.parametrize("topic", [*NO_TEXTS, None], ids=repr)
async def test_what_is_no_text_names_no_topic_and_holds_nobody(topic: Any) -> None:
    async with produce_server() as server:
        server.add_topic("flights")
        async with Producer(server.url) as producer, asyncio.timeout(30.0):
            with pytest.raises(InvalidRequest, match="topic"):
                await producer.send(topic, {})
            await producer.send("flights", {})
