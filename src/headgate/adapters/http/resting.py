"""Ends connections of a server on which nothing is said, where the server itself doesn't.

granian gives a head that was begun 30 s. A connection on which it never begins, or on which nothing
comes behind the last answer of HTTP/2, would stay for ever, and each takes one of the files that
the process may have: who opens enough of them keeps everybody else out. The sockets are granian's,
so they are found among the files of the process by their port, and the kernel knows since when
nothing was said on them.

Invariants: a connection is never ended while a request of it is being answered; what is looked at
is what is ended, whatever the server does meanwhile; all of it works when the process may have no
file more; and no file of another kind is closed, not even a second name for it, because the process
would lose every lock that it has on that file (POSIX), and SQLite's go by those. Where the kernel
can't be asked like that (not Linux), nothing is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import stat
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FILES = Path("/proc/self/fd")
TCP_INFO = getattr(socket, "TCP_INFO", 0)
KNOWS = bool(TCP_INFO) and FILES.is_dir()
"""Whether the kernel can be asked."""
INFO_BYTES = 136
ESTABLISHED = 1
_QUIET_MS, _SENT_AT, _RECEIVED_AT = struct.Struct("I"), 44, 52
"""Where `struct tcp_info` of Linux has how long ago something was sent, and received."""
_BYTES, _BYTES_AT = struct.Struct("Q"), 128
"""Where it has how many bytes have been received."""
PREFACE_BYTES = 24
"""No request has fewer, nor has the word with which HTTP/2 begins."""
AT_ONCE = 200
"""Files that are looked at before others have a turn."""

Peer = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Patience:
    """`silent_s` is how long a client that connects may take to say something that could be a
    request; `stall_s` is for each further piece of a body, which must have come with so many bytes
    per second behind that; `resting_s` is how long nothing may be said, in neither direction,
    between requests: more than our own clients keep a connection that they don't use."""

    silent_s: float = 15.0
    stall_s: float = 30.0
    bytes_per_s: float = 4_096.0
    resting_s: float = 150.0
    look_every_s: float = 5.0


class Resting:
    """`answered` are the other ends of the connections of which a request is being answered."""

    def __init__(
        self, port: int, answered: Callable[[], Collection[Peer]], patience: Patience
    ) -> None:
        self._port = port
        self._answered = answered
        self._lately: Collection[Peer] = ()
        """Whose request was being answered at the last look: its answer may still be the server's
        to write, so that the kernel knows of nothing newer than the request."""
        self._patience = patience

    async def keep_looking(self) -> None:
        if not KNOWS:
            await asyncio.Event().wait()
        spare = _SpareNumber()
        try:
            while True:
                await asyncio.sleep(self._patience.look_every_s)
                await self._look(spare)
        finally:
            spare.close()

    async def _look(self, spare: _SpareNumber) -> None:
        numbers = _open_files()
        lately, self._lately = self._lately, frozenset(self._answered())
        for first in range(0, len(numbers), AT_ONCE):
            answered = {*self._answered(), *lately}
            for number in numbers[first : first + AT_ONCE]:
                with contextlib.suppress(OSError):  # it is closed by now, or no socket
                    if self._is_to_end(number, answered):
                        with spare.holding(number) as held:
                            self._end(held, answered)
            await asyncio.sleep(0)

    def _end(self, held: int, answered: Collection[Peer]) -> None:
        """Behind the number there may be something else by now."""
        if self._is_to_end(held, answered):
            with _asked(held) as found:
                found.shutdown(socket.SHUT_RDWR)

    def _is_to_end(self, number: int, answered: Collection[Peer]) -> bool:
        """Opens and closes nothing."""
        with _asked(number) as found:
            address = found.getsockname()
            if not isinstance(address, tuple) or address[1] != self._port:
                return False
            info = found.getsockopt(socket.IPPROTO_TCP, TCP_INFO, INFO_BYTES)
            if len(info) < INFO_BYTES or info[0] != ESTABLISHED or not self._has_rested(info):
                return False
            return found.getpeername()[:2] not in answered

    def _has_rested(self, info: bytes) -> bool:
        quiet_s = min(_QUIET_MS.unpack_from(info, at)[0] for at in (_SENT_AT, _RECEIVED_AT)) / 1_000
        has_begun = _BYTES.unpack_from(info, _BYTES_AT)[0] >= PREFACE_BYTES
        most_s = self._patience.resting_s if has_begun else self._patience.silent_s
        return bool(quiet_s >= most_s)


class _SpareNumber:
    """A number of our own among the open files, taken while there are some to be had."""

    def __init__(self) -> None:
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._number: int | None = os.dup(self._nothing)

    @contextlib.contextmanager
    def holding(self, number: int) -> Iterator[int]:
        """The connection that has `number` now, by a number that nobody else closes."""
        if self._number is None:
            self._number = os.dup(self._nothing)
        held = self._number
        os.dup2(number, held, inheritable=False)
        if not stat.S_ISSOCK(os.fstat(held).st_mode):
            # The server has closed it in this moment, and a file has its number. That stays open
            # under ours, too, or its locks were gone.
            self._number = None
            raise OSError("no connection any more")
        try:
            yield held
        finally:
            os.dup2(self._nothing, held, inheritable=False)

    def close(self) -> None:
        os.close(self._nothing)
        if self._number is not None:
            os.close(self._number)


@contextlib.contextmanager
def _asked(number: int) -> Iterator[socket.socket]:
    """What the process has under that number, as a socket: what is none answers OSError."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=number)
    try:
        yield found
    finally:
        found.detach()


def _open_files() -> Sequence[int]:
    """The numbers of the open files; all possible ones where no further file may be opened to list
    them."""
    try:
        return [int(file.name) for file in FILES.iterdir()]
    except OSError:
        return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
