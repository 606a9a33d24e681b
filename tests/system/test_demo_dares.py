"""The demo on a terminal: what its screen dares you to kill is killed, and nothing gets lost.

The pids are those that the screen shows; each role is killed in turn, the router last, while events
are on their way, in a system in which everybody has to say who they are: subscribers ask for
everything, and get what their grants show. What became of it is what the last line on the screen
says.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest

from tests.system.harness import HEADGATE, environment, until

ROWS, COLUMNS = 50, 120
SCREENS_BYTES = 20 * ROWS * COLUMNS
PRODUCING_S = 600
"""Longer than anything here takes: Ctrl-C ends it."""
ENDS_WITHIN_S = 300.0
SETTINGS = {"HEADGATE_DEMO__COUNT": "30", "HEADGATE_DEMO__PARTITIONS": "2"}
"""Fewer events than usual: none may be lost of these either."""
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A `headgate` command on a terminal of its own; `text` is all that was written there."""

    def __init__(self, *arguments: str) -> None:
        self._fd, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environ = {**environment(SETTINGS), "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        self.process = subprocess.Popen(
            [*HEADGATE, *arguments],
            env=environ,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._written = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._fd, 65_536)
            except OSError:  # the other side is closed
                return
            if not piece:
                return
            self._written += piece

    @property
    def text(self) -> str:
        return self._last(len(self._written))

    def _last(self, count: int) -> str:
        return ESCAPE.sub("", self._written[-count:].decode(errors="replace"))

    def shown(self, pattern: str) -> str:
        """What the last match of `pattern` has in its group, on the screen or a little before;
        empty without one."""
        found = re.findall(pattern, self._last(SCREENS_BYTES))
        return found[-1] if found else ""

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
        self._reader.join(10)
        os.close(self._fd)


@pytest.fixture
def demo() -> Iterator[Terminal]:
    terminal = Terminal("demo", "--secured", "--seconds", str(PRODUCING_S))
    yield terminal
    terminal.close()


def pid_of(demo: Terminal, role: str) -> int:
    """As the screen shows it."""
    return int(demo.shown(rf"● {role} pid (\d+)") or 0)


def delivered(demo: Terminal) -> int:
    return int(demo.shown(r"everything .* ([\d,]+) +[\d,.]+ +│").replace(",", "") or 0)


def press(demo: Terminal, dare: str) -> None:
    """A button of the page that the screen names."""
    page = demo.shown(r"in a browser: +(http://\S+/ui/demo)")
    with urlopen(page, timeout=30) as answer:
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
    with urlopen(f"{page}.json", timeout=30) as answer:
        control = json.load(answer)["control"]
    headers = {"content-type": "application/json", "origin": page.removesuffix("/ui/demo")}
    with urlopen(Request(f"{control}/dares/{dare}", b"{}", headers), timeout=30) as answer:
        assert answer.status == 202


def test_whatever_is_killed_nothing_gets_lost(demo: Terminal) -> None:
    until(lambda: delivered(demo) > 0, "the first delivery", 120)
    for role in ("coordinator", "ingest", "gateway"):
        pid, before = pid_of(demo, role), delivered(demo)
        if role == "gateway":
            press(demo, "kill-gateway")
        else:
            os.kill(pid, signal.SIGKILL)
        until(lambda: pid_of(demo, role) != pid, f"a new {role}")  # noqa: B023  # ends before
        until(lambda: delivered(demo) > before + 100, f"deliveries after {role}")  # noqa: B023
    until(
        lambda: demo.shown(r"kill -9 (\d+)") == demo.shown(r"● gateway pid (\d+)"),
        "the gateway to be dared again",
    )
    os.kill(pid_of(demo, "router"), signal.SIGKILL)
    until(lambda: bool(demo.shown("(router restarting)")), "a router's death")
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(ENDS_WITHIN_S) == 0, demo.text[-2_000:]
    assert "waiting for what is on its way: " in demo.text
    summary = " ".join(demo.text[demo.text.rindex("produced ") :].split())
    assert "lost 0," in summary, summary
    assert "not delivered yet" not in summary, summary
    assert float(demo.shown(r"longest gap ([\d.]+) s") or 0) > 1, summary
