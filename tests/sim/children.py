"""Where runs are lived: children that are asked for one after the other (child.py), one for each
thread that asks. All of them have the same hash seed, so that a run depends on its seed alone."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[2]


class Ended(msgspec.Struct, frozen=True):
    """What became of one run."""

    seed: int
    violations: list[str]
    digest: str = ""
    virtual_s: float = 0.0
    faults: list[str] = []
    story: list[str] = []
    seen: dict[str, int] = {}
    met: dict[str, int] = {}


class Child:
    """A process that lives runs; it ends when this one does. `source` is where it has Headgate
    from, this one's without it."""

    def __init__(self, source: Path | None = None) -> None:
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        if source is not None:
            environment["PYTHONPATH"] = str(source)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.sim.child"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(self.end)

    def end(self) -> None:
        atexit.unregister(self.end)
        self._process.communicate()

    def live(self, seed: int, without: Collection[int] = ()) -> Ended:
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        orders.write(b"%s\n" % " ".join(map(str, (seed, *sorted(without)))).encode())
        orders.flush()
        answer = answers.readline()
        if not answer:
            raise RuntimeError(f"the child ended with {self._process.wait()}, at seed {seed}")
        return msgspec.structs.replace(msgspec.json.decode(answer, type=Ended), seed=seed)


_own = threading.local()


def ran(seed: int, without: Collection[int] = ()) -> Ended:
    """By the child of this thread."""
    if not hasattr(_own, "child"):
        _own.child = Child()
    child: Child = _own.child
    return child.live(seed, without)
