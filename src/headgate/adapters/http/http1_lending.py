"""A lone client's connection, lent to a thread that receives, answers and sends by itself.

Where one client sends one request after the other and each waits for the disk, most of its time
goes by while sleeping threads are woken up: the loop's, the disk's, the loop's again. A thread that
does it all needs one wake-up (see docs/adr/0017). As soon as anything is out of the ordinary, the
event loop gets the connection back, with every byte that isn't answered: another client with
something to write, an incomplete or unusual request, one that the thread can't answer, silence, a
stop. And where an answer takes long, the loop asks the usual handler for it as well, so that
deadlines hold; whichever answers first is sent.

Invariants: one side at a time reads and writes the connection; every request is answered once; one
thread per server, and nobody on the loop ever waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from headgate.adapters.http.app import HttpApp
from headgate.adapters.http.http1_exchange import head_of
from headgate.adapters.http.http1_heads import Heads, Plain
from headgate.adapters.http.http1_limits import Http1Limits
from headgate.adapters.http.messages import Done, Response
from headgate.tasks import deaths, start_thread

log = logging.getLogger(__name__)

LONE_AFTER = 8
"""Requests in a row, with nobody else's between them, that make a client a lone one."""
LONE_AFTER_MAX = 1_024
"""As many, for a client whose requests turn out not to suit a thread again and again."""
RECEIVE_BYTES = 64 * 1_024
AWAKE_S = 0.000_15
"""How long a thread looks for the next request without going to sleep, if the last one came that
soon: to wake up a processor that sleeps takes longer than all that is done here."""
SILENCE_S = 1.0
"""A thread waits for the next request no longer than this: the loop waits at less expense."""
SLOW_S = 0.25
"""An answer that takes longer is asked of the usual handler, too."""


class Left(NamedTuple):
    """Of a connection: what it sent and wasn't answered, and what it has to be sent first."""

    received: bytes = b""
    unsent: bytes = b""


class Borrowed(Protocol):
    """The loop's end of a connection."""

    def take_back(self, left: Left) -> None:
        """The connection is the loop's again."""


class Loan:
    """A connection while the thread has it. A lock decides who goes on with it.

    What the thread has in its hands while a handler runs can be taken from it when that takes long;
    it may then neither send nor receive any more.
    """

    def __init__(self, connection: Borrowed, borrowed: socket.socket) -> None:
        self.connection = connection
        self.socket = borrowed
        self.recalled = False
        self.answered = 0
        self.is_brisk = False
        """The client sent its latest request as soon as it had its answer."""
        self._lock = threading.Lock()
        self._in_hand: bytes | None = None
        self._unsent = b""
        self._since_s = 0.0

    def begin(self, received: bytes) -> None:
        """A handler is asked for the request that `received` begins with."""
        with self._lock:
            self._since_s = time.monotonic()
            self._in_hand = received

    def answer(self, answer: bytes, rest: bytes) -> None:
        """Send `answer`, unless the loop has the request now; `rest` came behind the request."""
        with self._lock:
            if self._in_hand is not None:
                self._in_hand = rest
                self._unsent = _send(self.socket, answer)
                self._since_s = time.monotonic()
                self.answered += 1

    def end(self) -> Left | None:
        """The handler has ended: what is left to do; None when the loop has it."""
        return self._let_go(0.0)

    def take_over(self) -> Left | None:
        """What is left to do, if the handler takes too long."""
        left = self._let_go(SLOW_S)
        if left is not None:
            # A connection ends when nobody has it open any more.
            self.socket.close()
        return left

    def _let_go(self, after_s: float) -> Left | None:
        with self._lock:
            received = self._in_hand
            if received is None or time.monotonic() - self._since_s < after_s:
                return None
            self._in_hand = None
            return Left(received, self._unsent)


class Lending:
    """The loop's side: who is alone, and what is lent. Belongs to the loop that it's used on."""

    def __init__(self, app: HttpApp, *, date: Callable[[], bytes], limits: Http1Limits) -> None:
        self._loop = asyncio.get_running_loop()
        self._heads = Heads(app.find_route, max_bytes=limits.buffer_bytes)
        self._date = date
        self._thread: _Thread | None = None
        self._loan: Loan | None = None
        self._home = asyncio.Event()
        self._home.set()
        self.is_free = True
        self._last: Borrowed | None = None
        self._in_a_row = 0
        self._needed = LONE_AFTER
        blocking = any(route.blocking is not None for route in app.routes)
        self._closed = not blocking or not hasattr(select, "poll")

    def came(self, connection: Borrowed) -> None:
        """A request that changes something has come to the loop."""
        self._in_a_row = self._in_a_row + 1 if connection is self._last else 1
        self._last = connection
        self.recall()

    def is_wanted(self, connection: Borrowed) -> bool:
        alone = connection is self._last and self._in_a_row >= self._needed
        return alone and self.is_free and not self._closed

    def lend(self, connection: Borrowed, fileno: int) -> None:
        """From now on, until `take_back`, the loop neither reads nor writes this connection."""
        self._thread = self._thread or _Thread(self._heads, self._date, self._returned)
        self._loan = Loan(connection, socket.socket(fileno=os.dup(fileno)))
        self.is_free = False
        self._in_a_row = 0
        self._home.clear()
        self._thread.loans.put(self._loan)
        self._loop.call_later(SLOW_S, self._watch, self._loan)

    def recall(self) -> None:
        """The loop wants back what is lent, after the request under way."""
        if self._loan is not None and self._thread is not None and not self._loan.recalled:
            self._loan.recalled = True
            self._thread.wake()

    async def home(self) -> None:
        """Recall what is lent, and wait for it: `SLOW_S` twice, at most."""
        self.recall()
        await self._home.wait()

    def close(self) -> None:
        """End the thread, once it has nothing under way. Nothing is lent from now on."""
        self._closed = True
        if self._thread is not None:
            self._thread.loans.put(None)

    def _watch(self, loan: Loan) -> None:
        if self._loan is not loan:
            return
        left = loan.take_over()
        if left is not None:
            self._came_home(loan, left)
        else:
            self._loop.call_later(SLOW_S, self._watch, loan)

    def _returned(self, loan: Loan, left: Left | None) -> None:
        """The thread has ended with `loan`; called from there."""
        with contextlib.suppress(RuntimeError):  # A closed loop has nobody left who waits.
            self._loop.call_soon_threadsafe(self._on_returned, loan, left)

    def _on_returned(self, loan: Loan, left: Left | None) -> None:
        self.is_free = True
        if left is not None and self._loan is loan:
            doubled = min(2 * self._needed, LONE_AFTER_MAX)
            self._needed = LONE_AFTER if loan.answered else doubled
            self._came_home(loan, left)

    def _came_home(self, loan: Loan, left: Left) -> None:
        self._loan = None
        loan.connection.take_back(left)
        # Whoever waits for that finds the request under way in its handler.
        self._home.set()


class _Thread:
    """Serves one loan after the other; None ends it."""

    def __init__(
        self,
        heads: Heads,
        date: Callable[[], bytes],
        returned: Callable[[Loan, Left | None], None],
    ) -> None:
        self._heads = heads
        self._date = date
        self._returned = returned
        self.loans: queue.SimpleQueue[Loan | None] = queue.SimpleQueue()
        self._wakes, self._woken = socket.socketpair()
        self._wakes.setblocking(False)
        self._woken.setblocking(False)
        start_thread("lone client", self._run)

    def wake(self) -> None:
        """Whatever it waits for, it looks whether its loan is recalled."""
        with contextlib.suppress(BlockingIOError):
            self._wakes.send(b"\0")

    def _run(self) -> None:
        while (loan := self.loans.get()) is not None:
            try:
                left = self._serve(loan)
            except Exception as error:  # noqa: BLE001 - nobody else would give the loan back
                deaths.note("lone client", error)
                left = loan.end() or Left()
            loan.socket.close()
            self._returned(loan, left)
        self._wakes.close()
        self._woken.close()

    def _serve(self, loan: Loan) -> Left | None:
        """Answer request after request; what is left to do, or None when the loop has it."""
        poll = select.poll()
        poll.register(loan.socket, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        left = Left()
        while not loan.recalled and not left.unsent:
            received = left.received or self._receive(loan, poll)
            plain = self._heads.of(received)
            if plain is None:
                return Left(received)
            answered = loan.answered
            loan.begin(received)
            self._ask(plain, received, loan)
            ended = loan.end()
            if ended is None or loan.answered == answered:
                return ended
            left = ended
        return left

    def _receive(self, loan: Loan, poll: select.poll) -> bytes:
        """What comes next; nothing after a silence, at the end, and when the loop calls."""
        began_s = time.monotonic()
        awake_until_s = began_s + (AWAKE_S if loan.is_brisk else 0.0)
        while not loan.recalled:
            try:
                received = loan.socket.recv(RECEIVE_BYTES)
                loan.is_brisk = time.monotonic() - began_s < AWAKE_S
                return received
            except BlockingIOError:
                pass
            except OSError:
                break  # The loop finds out what is wrong.
            if time.monotonic() < awake_until_s:
                continue
            if not poll.poll(SILENCE_S * 1_000):
                break
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(RECEIVE_BYTES)
        return b""

    def _ask(self, plain: Plain, received: bytes, loan: Loan) -> None:
        def ready(response: Response) -> Done:
            answer = head_of(response, date=self._date(), close=False) + response.body
            return partial(loan.answer, answer, received[plain.length :])

        try:
            plain.answer(plain.request, received[plain.head_bytes : plain.length], ready)
        except Exception:
            log.exception("%s %s failed", plain.request.method, plain.request.path)


def _send(connection: socket.socket, answer: bytes) -> bytes:
    """Send what there is room for; the rest."""
    try:
        return answer[connection.send(answer) :]
    except BlockingIOError:
        return answer
    except OSError:
        return b""  # The client has gone, and the loop finds out.
