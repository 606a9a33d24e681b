"""Blocking clients and what comes from outside: Ctrl-C, a signal whose handler closes the client in
the middle of a call, a process that is forked off.

A handler runs between any two steps of its thread; here the step is chosen, and what the handler
would do is done there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest

from headgate import errors
from headgate.client import ProducerOptions, SyncProducer, SyncSubscriber
from headgate.client.sync.blocking import Blocking, Call
from tests.client.served_gateway import ServedGateway, served_gateway
from tests.client.sync.test_clients import (
    MAKERS,
    Client,
    consumer,
    in_a_thread,
    seqs,
    subscriber,
)
from tests.client.sync.test_producer import in_thread

WAIT_S = 30.0
CHILD_S = 10
When = Literal["before", "after"]


def interrupt(
    client: Blocking,
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[], None],
    when: When = "after",
) -> None:
    """`happens` once, in the middle of the next call, around the step that has it begin."""
    schedule = client._loop.call_soon_threadsafe

    def scheduled(callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        if threading.current_thread() is client._thread:
            return schedule(callback, *args)
        monkeypatch.undo()
        if when == "before":
            happens()
        begun = schedule(callback, *args)
        if when == "after":
            happens()
        return begun

    monkeypatch.setattr(client._loop, "call_soon_threadsafe", scheduled)


def ctrl_c() -> None:
    raise KeyboardInterrupt


# --- Ctrl-C --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKERS)
async def test_an_interrupted_wait_takes_nothing(
    make: Callable[[ServedGateway], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(gateway: ServedGateway, append: Callable[[], object]) -> None:
        with make(gateway) as client:
            interrupt(client, monkeypatch, ctrl_c)
            with pytest.raises(KeyboardInterrupt):
                client.next()
            waiting = in_thread(lambda: [client.next(WAIT_S) for _ in range(3)])
            append()
            assert seqs(waiting.result(WAIT_S)) == [1, 2, 3]

    async with served_gateway() as gateway:
        loop = asyncio.get_running_loop()
        append = partial(loop.call_soon_threadsafe, gateway.append, "a", 3)
        await in_a_thread(lambda: use(gateway, append))


# --- a handler that closes -----------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_handler_may_close_the_client_whose_call_it_interrupts(
    make: Callable[[ServedGateway], Client], when: When, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(gateway: ServedGateway) -> None:
        with make(gateway) as client:
            interrupt(client, monkeypatch, client.close, when)
            with pytest.raises(errors.InvalidRequest, match="closed"):
                client.next()
        assert not client._thread.is_alive()

    async with served_gateway() as gateway:
        await in_a_thread(lambda: use(gateway))


def test_a_handler_may_close_it_while_its_thread_waits_for_the_outcome(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ProducerOptions(deadline_s=0.5, backoff_first_s=0.01)

    def use() -> None:
        with SyncProducer(f"http://127.0.0.1:{unused_tcp_port}", options) as producer:
            outcome = Call.outcome

            def interrupted(self: Call[Any], without_one: Callable[[], Exception]) -> Any:
                monkeypatch.undo()
                producer.close()
                return outcome(self, without_one)

            monkeypatch.setattr(Call, "outcome", interrupted)
            with pytest.raises(errors.HeadgateError):
                producer.send("flights", {})
        assert not producer._thread.is_alive()

    in_thread(use).result(WAIT_S)


def test_a_handler_may_close_it_while_its_thread_does(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use() -> None:
        client = SyncSubscriber(f"http://127.0.0.1:{unused_tcp_port}", "a")
        interrupt(client, monkeypatch, client.close)
        client.close()
        assert not client._thread.is_alive()

    in_thread(use).result(WAIT_S)


async def test_a_close_that_is_interrupted_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def use(gateway: ServedGateway) -> threading.Thread:
        client = subscriber(gateway)
        client.__enter__()
        monkeypatch.setattr(client._is_gone, "wait", ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            client.close()
        return client._thread

    async with served_gateway() as gateway:
        thread = await in_a_thread(lambda: use(gateway))
        monkeypatch.undo()
        await asyncio.to_thread(thread.join, WAIT_S)
        assert not thread.is_alive()


async def test_an_exception_that_leaves_the_block_is_itself_whoever_closes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def use(gateway: ServedGateway) -> None:
        with consumer(gateway) as client:
            interrupt(client, monkeypatch, client.close, "before")
            raise ZeroDivisionError

    async with served_gateway() as gateway:
        with pytest.raises(ZeroDivisionError):
            await in_a_thread(lambda: use(gateway))


async def test_the_collector_may_call_it_on_its_own_thread_and_nobody_hangs() -> None:
    """It runs the `__del__` of any object that the program has let go of."""

    class Dropped:
        def __init__(self, client: Client) -> None:
            self._client = client

        def __del__(self) -> None:
            try:
                self._client.next()
            except errors.InvalidRequest as error:
                said.append(str(error))
            finally:
                self._client.close()

    def use(gateway: ServedGateway) -> None:
        with subscriber(gateway) as client:
            client._loop.call_soon_threadsafe(Dropped, client)
            with pytest.raises(errors.InvalidRequest, match="closed"):
                client.next()

    said: list[str] = []
    async with served_gateway() as gateway:
        await in_a_thread(lambda: use(gateway))
    assert "__del__" in said[0]


# --- a fork --------------------------------------------------------------------------------------


def test_in_a_forked_process_calls_are_refused_and_closing_returns(unused_tcp_port: int) -> None:
    options = ProducerOptions(deadline_s=0.2, backoff_first_s=0.01)
    with SyncProducer(f"http://127.0.0.1:{unused_tcp_port}", options) as producer:
        with producer._lock:  # as it may be, of any other thread
            child = os.fork()
            if not child:
                _in_the_child(producer)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        with pytest.raises(errors.NotNow):
            producer.send("flights", {})


def _in_the_child(producer: SyncProducer) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(CHILD_S)
    refused = 0
    try:
        worker = threading.Thread(target=producer.close)
        worker.start()
        producer.send("flights", {})
    except errors.InvalidRequest as error:
        refused = "another process" in str(error)
    finally:
        worker.join()
        os._exit(0 if refused else 1)
