"""A thread that is interrupted at each of its steps in turn, by Ctrl-C or a signal's handler, for
each call of the blocking clients: nothing is lost, nothing hangs, and closing after that waits for
the end.

Python looks for signals when it enters a function and after it called one of C; so what happens
then happens there, in whatever module the call has led to.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

from headgate import errors
from headgate.client import ProducerOptions, SyncProducer, SyncSubscriber
from headgate.client.producing.outgoing import Receipt
from headgate.client.sync.blocking import Blocking
from tests.client.producing.produce_server import produce_server
from tests.client.served_gateway import ServedGateway, served_gateway
from tests.client.sync.test_clients import MAKERS, Client, in_a_thread
from tests.client.sync.test_interrupted_threads import ctrl_c
from tests.client.sync.test_producer import in_thread

WAIT_S, LONG_S = 10.0, 60.0
"""The second for what makes a client for each step."""
MOST_STEPS, MANY_STEPS = 400, 20
UNHEARD = {"_weakrefset.py"}
"""What is called there is called by the collector, which swallows every exception."""


class Step:
    """In the block, something `happens` at the step number `at` of this thread."""

    def __init__(self, at: int, happens: Callable[[], object]) -> None:
        self._at = at
        self._happens = happens
        self.steps = 0
        self.is_reached = False

    def __enter__(self) -> Self:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        is_here = code in (Step.__exit__.__code__, Step.__enter__.__code__)
        if event in ("call", "c_return") and not is_here:
            if Path(code.co_filename).name in UNHEARD:
                return
            self.steps += 1
            if self.steps == self._at:
                self.is_reached = True
                sys.setprofile(None)
                self._happens()


def each_step(call: Callable[[], object], happens: Callable[[], object] = ctrl_c) -> Iterator[bool]:
    """Interrupts one `call` after the other, each a step later; yields whether it was, and ends
    after the first one that wasn't."""
    for at in range(1, MOST_STEPS):
        with Step(at, happens) as step:
            try:  # to enter a block of its own would be a step
                call()
            except KeyboardInterrupt:
                pass
        yield step.is_reached
        if not step.is_reached:
            return
    raise AssertionError(f"a call has more than {MOST_STEPS} steps")


def is_running(client: Blocking) -> bool:
    return client._thread in threading.enumerate()


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("after_s", [0.0, 0.01], ids=["it is there", "it comes later"])
async def test_an_item_is_lost_at_no_step(
    make: Callable[[ServedGateway], Client], after_s: float
) -> None:
    def use(gateway: ServedGateway, append: Callable[[], object]) -> None:
        taken: dict[str, Any] = {}

        def take() -> None:
            taken["item"] = client.next(WAIT_S)

        with make(gateway) as client:
            append()
            for number, was_interrupted in enumerate(each_step(take), 1):
                if was_interrupted and "item" not in taken:
                    take()
                assert taken.pop("item").seq == number
                append()
            assert number > MANY_STEPS
        assert not is_running(client)
        assert not client._calls

    async with served_gateway() as gateway:
        loop = asyncio.get_running_loop()
        later = partial(loop.call_later, after_s, gateway.append, "a", 1)
        await in_a_thread(lambda: use(gateway, lambda: loop.call_soon_threadsafe(later)))


@pytest.mark.parametrize("make", MAKERS)
async def test_entering_leaves_nothing_open_at_any_step(
    make: Callable[[ServedGateway], Client],
) -> None:
    def use(gateway: ServedGateway) -> None:
        clients: list[Client] = []

        def enter() -> None:
            with clients[-1]:
                return

        clients.append(make(gateway))
        for was_interrupted in each_step(enter):
            if was_interrupted:
                clients[-1].close()
            assert not is_running(clients[-1])
            clients.append(make(gateway))
        clients[-1].close()

    async with served_gateway() as gateway:
        await asyncio.wait_for(asyncio.wrap_future(in_thread(lambda: use(gateway))), LONG_S)
        assert not gateway.mistakes


def test_after_an_interruption_at_any_step_closing_again_waits_for_the_end(
    unused_tcp_port: int,
) -> None:
    def use() -> None:
        clients: list[SyncSubscriber] = []

        def make() -> None:
            clients.append(SyncSubscriber(f"http://127.0.0.1:{unused_tcp_port}", "a"))

        make()

        def close() -> None:
            clients[-1].close()

        for _ in each_step(close):
            close()
            assert not is_running(clients[-1])
            make()
        close()

    in_thread(use).result(LONG_S)


async def test_an_interrupted_send_holds_nobody_at_any_step() -> None:
    def use(url: str) -> None:
        with SyncProducer(url) as producer:
            for _ in each_step(lambda: producer.send("flights", {"n": 1})):
                assert isinstance(producer.send("flights", {"n": 2}), Receipt)
        assert not is_running(producer)

    async with produce_server() as server:
        server.add_topic("flights", 1)
        await in_a_thread(lambda: use(server.url))


async def test_a_handler_may_call_the_client_at_any_step_of_its_thread() -> None:
    def use(url: str) -> None:
        def send() -> None:
            assert isinstance(producer.send("flights", {}), Receipt)

        with SyncProducer(url) as producer:
            assert sum(each_step(send, send)) > MANY_STEPS

    async with produce_server() as server:
        server.add_topic("flights", 1)
        await in_a_thread(lambda: use(server.url))


async def test_a_handler_may_close_the_client_at_any_step_of_its_thread() -> None:
    def use(url: str) -> None:
        producers = [SyncProducer(url)]

        def close() -> None:
            producers[-1].close()
            assert not is_running(producers[-1])

        def send() -> None:
            with producers[-1] as producer:
                try:
                    producer.send("flights", {})
                except (errors.InvalidRequest, errors.OutcomeUnknown):
                    pass

        for _ in each_step(send, close):
            assert not is_running(producers[-1])
            producers.append(SyncProducer(url))
        producers[-1].close()
        assert len(producers) > MANY_STEPS

    async with produce_server() as server:
        server.add_topic("flights", 1)
        await asyncio.wait_for(asyncio.wrap_future(in_thread(lambda: use(server.url))), LONG_S)


# --- Ctrl-C itself -------------------------------------------------------------------------------


def test_a_close_that_ctrl_c_ends_can_be_waited_for_again(unused_tcp_port: int) -> None:
    """The thread that waits is the main one, and the signal is one."""
    options = ProducerOptions(deadline_s=1.0, backoff_first_s=0.01)
    producer = SyncProducer(f"http://127.0.0.1:{unused_tcp_port}", options)
    sending = in_thread(lambda: producer.send("flights", {}))
    time.sleep(0.05)
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    assert is_running(producer)
    producer.close()
    assert not is_running(producer)
    with pytest.raises(errors.NotNow):
        sending.result(WAIT_S)


async def test_a_thread_whose_join_was_interrupted_is_not_done_with_its_message() -> None:
    """Python says from then on that it isn't alive."""
    works, may_end = threading.Event(), threading.Event()

    def use(gateway: ServedGateway, settled: Callable[[], Any]) -> None:
        def slow() -> None:
            assert client.next(WAIT_S) is not None
            works.set()
            may_end.wait(WAIT_S)

        with make(gateway) as client:
            worker = threading.Thread(target=slow)
            worker.start()
            assert works.wait(WAIT_S)
            worker._is_stopped = True  # type: ignore[attr-defined]
            assert not worker.is_alive()
            assert client.next(WAIT_S) is not None
            assert client.next(0.2) is None
            assert not settled()
            may_end.set()

    make: Any = MAKERS[1].values[0]
    async with served_gateway() as gateway:
        gateway.append("a", 2)
        await in_a_thread(lambda: use(gateway, lambda: gateway.groups["g"].settled))
