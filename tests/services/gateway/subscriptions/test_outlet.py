"""When an event may be written past its queue: the connection is asked, and it answers for one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headgate import errors
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.decide.feed.feed import Feed
from headgate.decide.filter.plan import compile_filter
from headgate.model.delivery import Run
from headgate.model.subscription import Subscription
from headgate.services.gateway.evidence import GatewayEvidence
from headgate.services.gateway.subscriptions.connection_output import Outlet
from headgate.services.gateway.subscriptions.live import LiveSubscription, Totals


class Sent:
    """Implements ports.connection.Wire: takes what it is sent; the test says when it is full."""

    peer_address = ""
    unsent_bytes = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.send = self.sent.append

    def is_closing(self) -> bool:
        return False

    def stop_reading(self) -> None: ...

    def read_on(self) -> None: ...

    def close(self, code: int, reason: bytes) -> None: ...

    def abort(self) -> None: ...


class Wire:
    """A connection and two subscribers that are live; the first one is alone on it."""

    def __init__(self) -> None:
        self.transport = Sent()
        self.outlet = Outlet(self.transport)
        self.first, self.second = self._live("first"), self._live("second")
        self.outlet.let_through(self.first)

    def passes(self, seq: int, partition: int = 0) -> bool:
        run = self._run(partition, seq)
        return not LiveSubscription.pass_through(run, [b"one"], self._find)

    def would_pass(self, seq: int, partition: int = 0) -> bool:
        return LiveSubscription.would_pass(self._run(partition, seq), self._find)

    def _find(self, subscription_id: str) -> LiveSubscription | None:
        return self.first if subscription_id == self.first.id else None

    def _run(self, partition: int, seq: int) -> Run:
        return Run(partition, 1, (seq,), ((self.first.id,),))

    def _live(self, name: str) -> LiveSubscription:
        feed: Feed[bytes] = Feed({0: 0}, capacity=8, capacity_bytes=1_000, read_limit=4)
        feed.release({0: 0})
        made = LiveSubscription(
            Subscription(name, "gateway-1", "flights"),
            name=name,
            matches=compile_filter(None),
            feed=feed,
            starts={0: 0},
            totals=Totals(
                GatewayEvidence("gateway-1", size=0, age_s=1.0, machine=ScriptedMachine())
            ),
        )
        made.connect(lambda: None, self.outlet)
        return made


@pytest.fixture
def wire() -> Wire:
    return Wire()


async def test_what_passes_is_written_and_counts_as_sent(wire: Wire) -> None:
    assert wire.passes(1)
    assert wire.would_pass(2)
    assert wire.transport.sent == [b"one" + wire.first.tail]
    assert wire.first.feed.sent() == {0: 1}


async def test_nothing_passes_twice_nor_to_a_partition_that_is_unknown(wire: Wire) -> None:
    assert wire.passes(2)
    for partition, seq in ((0, 1), (0, 2), (1, 1)):
        assert not wire.would_pass(seq, partition)
        assert not wire.passes(seq, partition=partition)
    assert len(wire.transport.sent) == 1


def full(wire: Wire) -> None:
    wire.outlet.pause()


def answers_wait(wire: Wire) -> None:
    wire.outlet.pause()
    wire.outlet.answer(b"pong")


def shut(wire: Wire) -> None:
    wire.outlet.shut()


def another_came(wire: Wire) -> None:
    wire.outlet.let_through(None)


def another_stayed(wire: Wire) -> None:
    wire.outlet.let_through(wire.second)


def closed(wire: Wire) -> None:
    wire.first.close(errors.NotNow("the subscription has ended"))


def closed_and_connected(wire: Wire) -> None:
    closed(wire)
    wire.first.connect(lambda: None, wire.outlet)


@pytest.mark.parametrize(
    "change",
    [full, answers_wait, shut, another_came, another_stayed, closed, closed_and_connected],
)
async def test_what_cant_pass_leaves_everything_as_it_was(
    wire: Wire, change: Callable[[Wire], None]
) -> None:
    assert wire.passes(1)
    change(wire)
    assert not wire.would_pass(2)
    assert not wire.passes(2)
    assert len(wire.transport.sent) == 1
    assert wire.first.feed.sent() == {0: 1}


async def test_it_passes_again_once_there_is_room_and_the_answers_are_out(wire: Wire) -> None:
    answers_wait(wire)
    wire.outlet.resume([wire.first])
    assert wire.passes(1)
    assert wire.transport.sent == [b"pong", b"one" + wire.first.tail]
