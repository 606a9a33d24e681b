"""Wake-ups between the processes of one machine: a writer rings, followers look at the log again.

A follower binds one Unix datagram socket in a private directory and links it under every partition
it follows; after each commit the writer sends an empty hint to the sockets linked under its
partition. Invariants: a follower is linked before its first read, so no append falls between the
two; a bell never blocks and never fails an append; a lost hint costs a second and never a record.
Carries no data, starts no threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from headgate.adapters.log.wake_ups import WakeUps
from headgate.errors import DataFolderError
from headgate.model.event import PartitionRef

SAFETY_S = 1.0
"""How often followers look by themselves: a lost hint costs no more than this."""
MAX_PATH_BYTES = 100
"""The kernel's limit is 104 or 108, with its closing zero."""
FRESH_NS = 50_000_000
"""A directory changed this recently may change again without a new modification time."""
FULL_AFTER = 8
"""The kernel queues at least ten hints per socket. When as many were there, others may have been
turned away, for any partition."""
DRAIN_LIMIT = 256
BIND_ATTEMPTS = 10


def bell_directory(root: Path) -> Path:
    """The private directory for the data folder at `root`: the same one in every process."""
    user = os.getuid()
    name = f"headgate-{user}-{_digest(f'{user}:{root.resolve()}')}"
    temporary = tempfile.gettempdir()
    longest = len(os.fsencode(temporary)) + len(f"/{name}/{'partition-12'}/{'process-number-1'}")
    short = "/tmp"  # noqa: S108 - what is made there is private, and checked to be
    return Path(temporary if longest < MAX_PATH_BYTES else short) / name


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _hint(ref: PartitionRef) -> bytes:
    return _digest(str(ref)).encode()


def _is_private(directory: Path) -> bool:
    """True when nobody else can have put anything there."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


class Bell:
    """The writer's end for one partition. Used by one thread."""

    def __init__(self, root: Path, ref: PartitionRef) -> None:
        self._base = bell_directory(root)
        self._hint = _hint(ref)
        self._links = self._base / self._hint.decode()
        self._listed_at_ns = 0
        self._changed_at_ns = -1
        self._followers: list[str] = []
        self._socket: socket.socket | None = None

    def ring(self) -> None:
        for follower in self._present():
            try:
                self._sender().sendto(self._hint, follower)
            except BlockingIOError:
                pass  # Its queue is full of hints it hasn't seen yet.
            except (ConnectionRefusedError, FileNotFoundError):
                self._forget(follower)
            except OSError:
                pass  # The safety wake-up serves this follower.

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _present(self) -> list[str]:
        """The linked followers; the directory is read again only when it may have changed."""
        try:
            changed_at_ns = self._links.stat().st_mtime_ns
            settled = self._listed_at_ns - changed_at_ns > FRESH_NS
            if changed_at_ns != self._changed_at_ns or not settled:
                self._listed_at_ns = time.time_ns()
                self._changed_at_ns = changed_at_ns
                links = self._links.iterdir() if _is_private(self._base) else ()
                self._followers = [str(link) for link in links]
        except OSError:
            self._changed_at_ns = -1
            self._followers = []
        return self._followers

    def _sender(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        return self._socket

    def _forget(self, follower: str) -> None:
        """Its process is gone without a goodbye."""
        link = Path(follower)
        for path in (link, self._base / link.name):
            with contextlib.suppress(OSError):
                path.unlink()


class Follower:
    """The reader's end: an async context manager that gives an async iterator of wake-ups."""

    def __init__(
        self, root: Path, refs: Sequence[PartitionRef], *, safety_s: float = SAFETY_S
    ) -> None:
        self._base = bell_directory(root)
        self._name = f"{os.getpid():x}-{secrets.token_hex(4)}"
        self._by_hint = {_hint(ref): ref for ref in refs}
        self._wake_ups = WakeUps(refs, safety_s=safety_s)

    async def __aenter__(self) -> WakeUps:
        self._loop = asyncio.get_running_loop()
        self._socket = self._bind()
        self._wake_ups.start()
        self._loop.add_reader(self._socket.fileno(), self._hear)
        return self._wake_ups

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._wake_ups.stop()
        self._loop.remove_reader(self._socket.fileno())
        self._unlink()
        self._socket.close()

    def _hear(self) -> None:
        heard = 0
        rung: list[PartitionRef] = []
        while heard < DRAIN_LIMIT:
            try:
                hint = self._socket.recv(64)
            except OSError:
                break
            heard += 1
            ref = self._by_hint.get(hint)
            if ref is not None:
                rung.append(ref)
        if heard >= FULL_AFTER:
            self._wake_ups.ring_all()
        else:
            self._wake_ups.ring(rung)

    def _bind(self) -> socket.socket:
        """A follower that leaves takes empty directories with it; then they are made again."""
        for _ in range(BIND_ATTEMPTS):
            self._make_base()
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                bound.setblocking(False)
                self._link(bound)
                return bound
            except FileNotFoundError:
                bound.close()
                self._unlink()
            except BaseException:
                bound.close()
                self._unlink()
                raise
        raise DataFolderError(f"{self._base} vanishes again and again; leave it alone")

    def _make_base(self) -> None:
        self._base.mkdir(mode=0o700, exist_ok=True)
        if not _is_private(self._base):
            raise DataFolderError(
                f"{self._base} belongs to another user or is open to others; remove it",
                path=str(self._base),
            )

    def _link(self, bound: socket.socket) -> None:
        bound.bind(str(self._socket_path))
        for link in self._link_paths():
            link.parent.mkdir(mode=0o700, exist_ok=True)
            link.symlink_to(Path("..") / self._name)

    def _unlink(self) -> None:
        for path in (*self._link_paths(), self._socket_path):
            with contextlib.suppress(OSError):
                path.unlink()
            with contextlib.suppress(OSError):
                path.parent.rmdir()

    @property
    def _socket_path(self) -> Path:
        return self._base / self._name

    def _link_paths(self) -> list[Path]:
        return [self._base / hint.decode() / self._name for hint in self._by_hint]
