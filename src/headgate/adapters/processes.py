"""Processes of this machine: free ports, orphans, and ending what was started, by process id."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import random
import socket
import sys
from collections.abc import Callable, Iterable

import psutil

from headgate.errors import PortInUse
from headgate.tasks import start_thread

PR_SET_CHILD_SUBREAPER = 36
COLLECT_AFTER = 20_000
"""New objects."""
PORTS = range(20_000, 32_768)
"""Below those that systems give to outgoing connections, which would take one that is free now."""

_marks: list[int] = []
"""Of every port that was given out: file descriptors that stay open."""


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that none is lost sight of.

    Linux only; elsewhere an orphan ends by itself when it notices that its parent is gone.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def collect_rarely() -> None:
    """For a process that has started: what is there stays, and what comes is hardly ever a cycle.

    Python looks for cycles after every 700 new objects, which a batch of deliveries has; each look
    costs as much as ten deliveries, in the middle of one.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


def free_port(host: str) -> int:
    """A port that nobody listens on, and that nobody else gets from here while this process lives.

    The same port of UDP, which nothing here speaks, is the mark that it is given out: marks exclude
    each other between processes, and end with them.
    """
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        mark = socket.socket(_family(host), socket.SOCK_DGRAM)
        try:
            mark.bind((host, port))
            if is_port_free(host, port):
                _marks.append(mark.detach())
                return port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        mark.close()
    raise PortInUse(f"all ports from {PORTS[0]} to {PORTS[-1]} of {host} are in use; name one")


def is_port_free(host: str, port: int) -> bool:
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def children() -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process().children()
    return []


def families_except(known_pids: Iterable[int]) -> list[psutil.Process]:
    """This process's other children, with their descendants: among them processes that came here
    because their parent died."""
    known = set(known_pids)
    found = []
    for child in children():
        if child.pid not in known:
            with contextlib.suppress(psutil.Error):
                found += [child, *child.children(recursive=True)]
    return found


def end_processes(processes: Iterable[psutil.Process], *, grace_s: float) -> None:
    """SIGTERM, a bounded wait, then SIGKILL. Blocks: call it in a thread."""
    alive = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
            alive.append(process)
    _, alive = psutil.wait_procs(alive, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=grace_s)


def on_parent_gone(callback: Callable[[], object]) -> None:
    """Call `callback` once standard input ends: the process that started this one holds the other
    end.

    A thread, because a pipe that nobody writes to must not occupy the loop.
    """

    def watch() -> None:
        with contextlib.suppress(Exception):
            sys.stdin.buffer.read()
        callback()

    start_thread("parent watch", watch)
