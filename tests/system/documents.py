"""Follows a page of the documentation as a reader does: types its commands, saves and runs its
programs, and looks for the output that it shows.

What differs from reader to reader is put in place: addresses, the folder with the data, numbers and
ids. Everything else is as it stands there.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headgate.client import SyncProducer
from tests.system.harness import System, environment, until

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))
COMMAND_TIMEOUT_S = 150.0
OUTPUT_TIMEOUT_S = 60.0
ENDLESS_S = 3
"""How long a command is looked at that never ends."""
GOES_ON_LOOKS = 5
"""Tenths of a second after which a program that has printed something goes on."""
_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_SAVED = re.compile(r"[Ss]ave this as\s+`(?P<name>[\w.]+)`:\s*\Z")
_NUMBER = re.compile(r"\d[\d,.]*")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    saved_as: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Each with the output that the page shows after it."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            yield command, [line for line in shown if line.strip()]


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    found: list[Block] = []
    for match in _FENCE.finditer(text):
        saved = _SAVED.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 1
        name = saved["name"] if saved else ""
        found.append(Block(page, line, match["language"], match["text"], name))
    return found


def plain(line: str) -> str:
    """Without what is different each time."""
    return _NUMBER.sub("0", " ".join(line.split()))


def is_shown(expected: str, output: str) -> bool:
    """Whether a line of `output` is the expected one; `…` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in plain(expected).split("…"))
    return any(re.fullmatch(pattern, plain(line)) for line in output.splitlines())


class Reader:
    """A terminal in an empty folder, beside a Headgate that runs."""

    def __init__(self, folder: Path, system: System, places: dict[str, str]) -> None:
        self._system = system
        self._places = places
        self._folder = folder
        (folder / ".venv").symlink_to(sys.prefix)
        self._typed = 0
        self._output = folder / "terminal"
        inherited = environment()
        with self._output.open("wb") as output:
            self._shell = subprocess.Popen(
                ["/bin/sh"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=folder,
                env={
                    **inherited,
                    "PATH": f"{sys.prefix}/bin:{inherited['PATH']}",
                    "HEADGATE_URL": system.url,
                },
                start_new_session=True,
            )

    def here(self, text: str) -> str:
        """With the addresses of this Headgate."""
        for theirs, ours in self._places.items():
            text = text.replace(theirs, ours)
        return text

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def type(self, command: str) -> int:
        """Returns its exit code; what goes on in the background has none."""
        assert self._shell.stdin is not None
        self._typed += 1
        mark = f"typed-{self._typed}"
        # What it printed last may not have been a whole line.
        self._shell.stdin.write(f'{command}\ncode=$?; echo; echo "{mark}: $code"\n')
        self._shell.stdin.flush()
        found: list[str] = []

        def ended() -> bool:
            found[:] = re.findall(rf"^{mark}: (\d+)$", self.output, re.MULTILINE)
            return bool(found)

        until(ended, f"the end of `{command}`", COMMAND_TIMEOUT_S)
        return int(found[0])

    def save(self, name: str, text: str) -> None:
        self.type(f"pwd > {self._folder}/where")
        (Path((self._folder / "where").read_text().strip()) / name).write_text(self.here(text))

    def follow(self, command: str, shown: Sequence[str], where: str) -> None:
        """Type a command, unless it is the start of what runs already, and look for its output."""
        if re.search(r"\bheadgate up$", command):
            self.type(f"ln -s {self._system.data} headgate-data")
            return
        typed = self.here(command)
        if re.match(r"curl -N|tail -f", typed):
            typed = f"timeout {ENDLESS_S} {typed}"
        code = self.type(typed)
        assert code in (0, 124), f"{where}: `{command}` ended with {code}: {self.output}"
        for line in shown:
            self.sees(self.here(line), f"{where}, after `{command}`")

    def sees(self, line: str, where: str) -> None:
        try:
            until(lambda: is_shown(line, self.output), "", OUTPUT_TIMEOUT_S)
        except AssertionError:
            output = textwrap.indent(self.output[-3_000:], "    ")
            raise AssertionError(
                f"{where} there is no line like\n    {line}\nin\n{output}"
            ) from None

    def runs(self, block: Block) -> None:
        """A program that isn't saved: it ends well, by itself or, after it has printed something,
        with Ctrl-C; without a traceback in either case."""
        name = f"block_{block.line}"
        self.save(f"{name}.py", block.text)
        waits = "looks=$((looks + 1)); sleep 0.1; done"
        code = self.type(
            # As on a terminal: a shell lets what it starts in the background ignore Ctrl-C.
            "env --default-signal=INT PYTHONUNBUFFERED=1 "
            f"python {name}.py > {name}.out 2> {name}.err & program=$!\n"
            "looks=0\n"
            f"while kill -0 $program && [ ! -s {name}.out ] && [ $looks -lt 300 ]; do {waits}\n"
            f"looks=0; while kill -0 $program && [ $looks -lt {GOES_ON_LOOKS} ]; do {waits}\n"
            "kill -INT $program; wait $program"
        )
        printed, errors = ((self._folder / f"{name}.{kind}").read_text() for kind in ("out", "err"))
        assert printed, f"{block} printed nothing"
        assert code == 0, f"{block} ended with {code}: {errors}"
        assert "Traceback" not in errors, f"{block}: {errors}"

    def leave(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGTERM)
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait(30)


@contextmanager
def traffic(system: System, topic: str) -> Iterator[None]:
    """Somebody produces while a program of the page waits for something."""
    over = threading.Event()

    def is_there() -> bool:
        return any(one["name"] == topic for one in system.status()["topics"])

    def produce() -> None:
        number = 0
        with SyncProducer(system.url) as producer:
            while not over.wait(0.3):
                if not is_there():
                    continue
                number += 1
                key = f"4ca{number % 5}"
                producer.send(topic, {"icao": key, "altitude": number % 5 * 5_000}, key=key)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        yield
    finally:
        over.set()
        producing.join(30)
