"""What the commands share: how one of them is interrupted."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from headgate.cli.output import await_

SOON_S = 0.1
LONG_S = 60.0


def interrupt_this_thread() -> None:
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


async def waits_long(ended: list[str]) -> None:
    """Until a Ctrl-C, which another thread gets while the event loop waits."""
    threading.Timer(SOON_S, interrupt_this_thread).start()
    try:
        await asyncio.sleep(LONG_S)
    finally:
        ended.append("in order")


def test_a_ctrl_c_is_heard_at_once_whichever_thread_gets_it() -> None:
    begun_s, ended = time.monotonic(), list[str]()
    with pytest.raises(KeyboardInterrupt):
        await_(waits_long(ended))
    assert ended == ["in order"]
    assert time.monotonic() - begun_s < LONG_S / 2


def test_what_is_cancelled_without_a_ctrl_c_is_no_interrupt() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await_(cancelled())


def test_a_command_that_ignores_ctrl_c_goes_on_doing_so() -> None:
    async def ends() -> object:
        return signal.getsignal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert await_(ends()) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_afterwards_a_ctrl_c_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        await_(waits_long([]))
    assert signal.getsignal(signal.SIGINT) is before
