"""What a user reads while a client has no server: one line when it is lost, one when it is back."""

from __future__ import annotations

import logging

import pytest

from headgate.client.consumer import Consumer
from headgate.client.outages import NAME, Outages
from headgate.client.producer import Producer, ProducerOptions
from headgate.client.producing import topic_stream
from headgate.client.subscriber import Subscriber
from headgate.errors import StorageFailed
from tests.client.producing.produce_server import produce_server
from tests.client.producing.test_producer import failing_script
from tests.client.test_subscriber_client import system, take


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [one for one in caplog.records if one.name == NAME]
    assert {one.levelno for one in told} <= {logging.WARNING}
    return [one.getMessage() for one in told]


def test_an_outage_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages("subscriber")
    for at_s in (1.0, 2.0, 3.0):
        outages.lost("connection lost: ", "nobody is there; try again", "trying", at_s)
    outages.back("back", 4.5)
    outages.back("back", 5.0)
    outages.lost("", "gone", "trying", 6.0)
    assert said(caplog) == [
        "subscriber: connection lost: nobody is there; trying",
        "subscriber: back (after 3.5 s)",
        "subscriber: gone; trying",
    ]


def test_a_short_one_isnt_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages("producer", after_s=1.0)
    outages.lost("", "no", "trying", 1.0)
    outages.lost("", "no", "trying", 1.9)
    outages.back("back", 2.1)
    outages.lost("", "no", "trying", 2.2)
    assert said(caplog) == []


async def test_a_subscriber_says_from_where_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        system() as (world, _),
        Subscriber(world.gateway.url, "flights", retry_first_s=0.01) as subscriber,
    ):
        await world.produce({"n": 1}, {"n": 2})
        await take(subscriber, 2)
        caplog.clear()
        for connection in tuple(world.gateway._websocket.connections):
            connection.abort()
        world.log.append({"n": 3})
        await take(subscriber, 1)
        lost, back = [line for line in said(caplog) if line.startswith("subscriber")]
    assert (
        lost == "subscriber: connection lost: the gateway closed the connection; connecting again"
    )
    assert back.startswith("subscriber: connected again; flights goes on from 0:3,1:1 (after ")


async def test_a_producer_says_why_it_takes_so_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_stream, "TOLD_AFTER_S", 0.0)
    quick = ProducerOptions(backoff_first_s=0.001, backoff_max_s=0.01)
    async with produce_server() as server, Producer(server.url, quick) as producer:
        server.add_topic("flights")
        failing_script(server, [StorageFailed("the disk is full; make room") for _ in range(3)])
        await producer.send("flights", {"n": 1})
    lost, back = said(caplog)
    assert lost == "producer of flights: the disk is full; sending again"
    assert back.startswith("producer of flights: events are taken again (after ")


def test_every_client_can_say_where_it_goes_on() -> None:
    assert Consumer("http://127.0.0.1:1", "flights", "radar")._membership.goes_on() == (
        "group radar is joined again"
    )
