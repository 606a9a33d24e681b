"""Many processes in one, on virtual time: one event loop each, under one scheduler with a seed.

A `Process` is an event loop of its own, with a clock of its own that may run a little fast or slow
and began at another number than the others'. The scheduler lets one of those that have something to
do take a turn, by chance, and lets time jump to the next timer when nobody has.

    frozen  its handles don't run, while its clock goes on and its timers fall due
    killed  they never run again. Nothing is cancelled and no `finally` runs: whatever its
            coroutines held stays as it was, to the end of the run

Invariant: the same seed gives the same run, turn by turn, in any process (`digest` tells), provided
that PYTHONHASHSEED is the same and nothing asks the real machine for anything: what does is an
`Escape`, and ends the run by name (escapes.py).

Everything is in one thread. Whatever one process asks of another's event loop, or completes that
another waits for, is a message: `carry` brings it there, at once unless somebody puts a network in
between (network.py).
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import random
import sys
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any, Final, Literal, NoReturn, TypeVar
from weakref import ref

T = TypeVar("T")
State = Literal["running", "frozen", "killed"]

TURN_S: Final = 1e-6
"""What a turn takes, so that time moves on however much is to be done."""
ASK_EVERY: Final = 100
"""Turns, while nobody waits."""
DRIFT_MAX: Final = 2e-4
"""Of a clock, in seconds per second: worse than any quartz."""
NOT_SIMULATED: Final = [
    "add_reader",
    "add_signal_handler",
    "add_writer",
    "call_soon_threadsafe",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "getaddrinfo",
    "getnameinfo",
    "remove_reader",
    "remove_signal_handler",
    "remove_writer",
    "run_forever",
    "run_in_executor",
    "run_until_complete",
    "sendfile",
    "set_default_executor",
    "shutdown_default_executor",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_sendall",
    "sock_sendfile",
    "sock_sendto",
    "start_tls",
    "stop",
    "subprocess_exec",
    "subprocess_shell",
]


class Escape(Exception):
    """Something asked the real machine: a thread, a clock, chance or I/O."""


class Stuck(Exception):
    """Everybody waits and no timer is set."""


class SimulatedHandle:
    """What asyncio.Handle is to its loops, and no more: there are thousands in a run."""

    __slots__ = ("_args", "_callback", "_context", "_is_cancelled", "_loop")

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: Process,
        context: contextvars.Context | None,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = contextvars.copy_context() if context is None else context
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True

    def cancelled(self) -> bool:
        return self._is_cancelled


class SimulatedTimer(SimulatedHandle):
    __slots__ = ("_when",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: Process,
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(callback, args, loop, context)
        self._when = when

    def when(self) -> float:
        return self._when


class NumberedTask(asyncio.Task[Any]):
    """Sets of tasks are gone through in an order that is the same in every run: that in which they
    were first asked for their hash."""

    numbers = itertools.count()
    _number: int

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:
            self._number = next(NumberedTask.numbers)
            return self._number


class NumberedFuture(asyncio.Future[Any]):
    """The same for futures, most of which nobody ever asks."""

    __hash__ = NumberedTask.__hash__


_AbstractLoop: Any = asyncio.AbstractEventLoop
"""Most of what it asks for is not simulated, and set below; a checker of types doesn't see that."""


class Process(_AbstractLoop):  # type: ignore[misc]  # Any as a base
    """One simulated process: what asyncio asks of an event loop, and its life."""

    def __init__(self, name: str, scheduler: Scheduler, *, begins_s: float, rate: float) -> None:
        self.name = name
        self.number = len(scheduler.processes)
        self.state: State = "running"
        self.errors: list[dict[str, Any]] = []
        """What its event loop was told and nobody handled, as with `call_exception_handler`."""
        self._scheduler = scheduler
        self._begins_s = begins_s - scheduler.now_s * rate
        self._rate = rate
        self._latest_s = begins_s
        """Of the timers that were due: a clock never shows less than the timer that rang."""
        self._ready: deque[SimulatedHandle] = deque()
        self._waits = False
        """Whether the scheduler has it among those with something to do."""
        self._tasks: list[ref[asyncio.Task[Any]]] = []
        """Every one it ever had, as far as they are left."""
        self._buried: list[object] = []

    def __repr__(self) -> str:
        return f"<{self.name} {self.state}>"

    # --- its life --------------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin `work` there, from wherever this is called."""
        return self.create_task(work)

    def freeze(self) -> None:
        if self.state == "running":
            self.state = "frozen"

    def thaw(self) -> None:
        if self.state == "frozen":
            self.state = "running"
            self._wake()

    def kill(self) -> None:
        if self.state != "killed":
            self.state = "killed"
            self._buried.extend(task for one in self._tasks if (task := one()) is not None)

    def take_turn(self) -> int:
        """Run what is ready now, as a turn of any event loop does; returns how much that was. The
        scheduler has made it the loop that runs."""
        self._waits = False
        if self.state != "running":
            return 0
        ready, count = self._ready, len(self._ready)
        for _ in range(count):
            handle = ready.popleft()
            if handle._is_cancelled:
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio's own do
                what = f"Exception in callback {handle._callback}"
                self.call_exception_handler({"message": what, "exception": error})
            if not self.is_running():  # by its own hand
                return count
        if ready and not self._waits:
            self._wake()
        return count

    def comes_due(self, handle: SimulatedHandle) -> None:
        """A timer of its own, or what arrives; whether or not anybody is there to hear it."""
        if type(handle) is SimulatedTimer and handle._when > self._latest_s:
            self._latest_s = handle._when
        self._ready.append(handle)
        if not self._waits:
            self._wake()

    def _wake(self) -> None:
        if not self._waits and self.state == "running":
            self._waits = True
            self._scheduler.to_do.append(self)

    def finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.call_soon(self.create_task, generator.aclose())

    # --- an event loop ---------------------------------------------------------------------------

    def time(self) -> float:
        now_s = self._begins_s + self._scheduler.now_s * self._rate
        latest_s = self._latest_s
        return now_s if now_s > latest_s else latest_s  # noqa: FURB136 - asked all the time

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> SimulatedHandle:
        handle = SimulatedHandle(callback, args, self, context)
        sender = self._scheduler.running
        if sender is self or sender is None:
            self._ready.append(handle)
            if not self._waits:
                self._wake()
        else:
            self._scheduler.carry(sender, self, handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimulatedTimer:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimulatedTimer:
        timer = SimulatedTimer(when, callback, args, self, context)
        self._scheduler.remind((when - self._begins_s) / self._rate, self, timer)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return NumberedFuture(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task = NumberedTask(coro, loop=self, name=name, context=context)
        self._tasks.append(ref(task))
        return task

    get_debug = staticmethod(bool)
    """Never; every future asks, which nothing in Python need answer."""

    def is_running(self) -> bool:
        return self.state == "running"

    def is_closed(self) -> bool:
        return False

    def close(self) -> None:
        raise Escape(f"{self.name} closed its event loop, which is the scheduler's")

    def get_exception_handler(self) -> None:
        return None

    def set_exception_handler(self, handler: object) -> None:
        """Whatever is wrong is kept in `errors`, for the scheduler's owner to judge."""

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)


def _not_simulated(what: str) -> Callable[..., NoReturn]:
    def escapes(self: Process, *_args: object, **_options: object) -> NoReturn:
        raise self._scheduler.escaped(f"{self.name} called its event loop's {what}")

    return escapes


for _what in NOT_SIMULATED:
    setattr(Process, _what, _not_simulated(_what))


Carry = Callable[[Process, Process, SimulatedHandle], None]
"""Brings what the first one asks of the second one's event loop there."""


class Scheduler:
    """All processes of one run; `chance` decides whose turn it is, and is for nothing else."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.turns = 0
        self.processes: list[Process] = []
        self.running: Process | None = None
        """Whose turn it is."""
        self._chance = random.Random(f"scheduler {seed}")
        self.to_do: list[Process] = []
        """Those that have something to do."""
        self._timers: list[tuple[float, int, Process, SimulatedHandle]] = []
        self._numbers = itertools.count()
        self._taken = array("d")
        """Every turn so far: whose, when, and how much was done in it."""
        self._escape: Escape | None = None
        self.carry: Carry = lambda _sender, receiver, message: receiver.comes_due(message)
        NumberedTask.numbers = itertools.count()

    def process(self, name: str) -> Process:
        """A new one, whose clock is like no other's."""
        begins_s = self._chance.uniform(10.0, 1e5)
        rate = 1.0 + self._chance.uniform(-DRIFT_MAX, DRIFT_MAX)
        process = Process(name, self, begins_s=begins_s, rate=rate)
        self.processes.append(process)
        return process

    @property
    def digest(self) -> str:
        """Of every turn so far."""
        return blake2b(self._taken.tobytes(), digest_size=16).hexdigest()

    def run(self, *, until_s: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let everybody live until then, or until it is `done`, which is asked when everybody
        waits, and now and then.

        Raises Escape; Stuck where nothing can happen any more before that.
        """
        timers, to_do, taken = self._timers, self.to_do, self._taken
        chance, due = self._chance.random, heappop
        with _without_collector(), _unlisted(), _finalizing(), self._running():
            while self.now_s < until_s:
                while timers and timers[0][0] <= self.now_s:
                    _, _, process, handle = due(timers)
                    if not handle._is_cancelled:
                        process.comes_due(handle)
                if to_do:
                    process = to_do.pop()
                    if to_do and (place := int(chance() * (len(to_do) + 1))) < len(to_do):
                        process, to_do[place] = to_do[place], process
                    if process is not self.running:
                        self.running = process
                        asyncio._set_running_loop(process)
                    count = process.take_turn()
                    self.turns += 1
                    self.now_s += TURN_S
                    taken.extend((process.number, count, self.now_s))
                    if self._escape is not None:
                        raise self._escape
                    if self.turns % ASK_EVERY == 0 and done():
                        return
                elif done():
                    return
                elif timers:
                    self.now_s = min(timers[0][0], until_s)
                else:
                    raise Stuck(f"everybody waits and no timer is set, at {self.now_s:.3f} s")

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Between two runs nobody is."""
        try:
            yield
        finally:
            self.running = None
            asyncio._set_running_loop(None)

    # --- from processes --------------------------------------------------------------------------

    def remind(self, at_s: float, process: Process, handle: SimulatedHandle) -> None:
        """Let `handle` come due then."""
        heappush(self._timers, (at_s, next(self._numbers), process, handle))

    def escaped(self, what: str) -> Escape:
        """The run ends by it, also where whoever is told goes on as if nothing had happened."""
        self._escape = self._escape or Escape(what)
        return self._escape


@contextmanager
def _without_collector() -> Iterator[None]:
    """Nothing ends at a moment that only the collector chose, and nothing that was killed."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _unlisted() -> Iterator[None]:
    """asyncio's own list of all tasks, of which nobody asks here, costs as much as many tasks do:
    each process has its own."""
    of_asyncio: Any = asyncio.tasks
    is_new = hasattr(of_asyncio, "_scheduled_tasks")  # from Python 3.12 on
    everybody = of_asyncio._scheduled_tasks if is_new else of_asyncio._all_tasks
    everybody.add = lambda _task: None
    try:
        yield
    finally:
        del everybody.add


@contextmanager
def _finalizing() -> Iterator[None]:
    """What a process leaves of an asynchronous generator is closed by it."""

    def finalize(generator: AsyncGenerator[Any, Any]) -> None:
        process = asyncio._get_running_loop()
        if isinstance(process, Process):
            process.finalize(generator)

    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(finalizer=finalize)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*before)
