"""How long a gateway waits for a topic that it doesn't know, on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from headgate.adapters.control_stream import BACKOFF_MAX_S
from headgate.adapters.memory.control import MemoryControlSession
from headgate.errors import UnknownTopic
from headgate.model.control.from_coordinator import Welcome
from headgate.model.control.to_coordinator import Hello
from headgate.model.topology import Topic, Topology
from headgate.services.gateway.control import Control
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from tests.virtual_time import run_virtual

GRACE_S = Bounds().topic_grace_s
SHIPS, FLIGHTS = Topic("ships", 1), Topic("flights", 1)


async def asked(known: Topic | None, *, told_after_s: float) -> Topic:
    """By a gateway that hears of more then."""
    hello = Hello(role="gateway", node_id="gateway-1", incarnation="1")
    session = MemoryControlSession(lambda: hello, lambda _: None)
    control = Control()
    control.messages(session)
    session.connect()
    session.push(Welcome("coordinator-1", 30_000, 1_000))
    there = () if known is None else (known,)
    control.learn(Topology(1, topics=there))
    loop = asyncio.get_running_loop()
    loop.call_later(told_after_s, control.learn, Topology(2, topics=(*there, FLIGHTS)))
    return await control.topic("flights", grace_s=GRACE_S)


def test_where_there_is_no_topic_at_all_it_waits_for_nodes_that_remember_some() -> None:
    """The coordinator may have lost what it had stored, and this gateway be the first to come."""
    assert run_virtual(asked(None, told_after_s=BACKOFF_MAX_S)) == FLIGHTS


@pytest.mark.parametrize(
    ("known", "after_s"), [(SHIPS, BACKOFF_MAX_S), (None, 2 * BACKOFF_MAX_S)], ids=["one", "none"]
)
def test_it_waits_for_a_moment(known: Topic | None, after_s: float) -> None:
    with pytest.raises(UnknownTopic):
        run_virtual(asked(known, told_after_s=after_s))
