"""Whose turn it is, and the moment of a given phase of a repartition, as far as one can tell it.

The coordinator is asked every few milliseconds where it is. A phase may be shorter than that; then
the next one that is seen is met instead.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final, get_args
from urllib.parse import urlsplit

from headgate.model.topology import RepartitionPhase

PHASES: Final[tuple[str, ...]] = get_args(RepartitionPhase)
LOOK_EVERY_S: Final = 0.002
PATIENCE_S: Final = 30.0


class Turns:
    """Which of these is next: one of those that were met least, so that all are in a long run."""

    def __init__(self, names: Sequence[str], chance: random.Random) -> None:
        self._names = names
        self._chance = chance
        self._met: Counter[str] = Counter()

    def next(self) -> str:
        least = min(self._met[name] for name in self._names)
        return self._chance.choice([name for name in self._names if self._met[name] == least])

    def has_met(self, name: str) -> None:
        self._met[name] += 1

    def __str__(self) -> str:
        return ", ".join(f"{name} {self._met[name]}" for name in self._names)


def await_phase(url: str, topic: str, aimed: str) -> str:
    """The phase that was seen: that one, a later one, or "over"."""
    reached = PHASES[PHASES.index(aimed) :]
    deadline_s, pause = time.monotonic() + PATIENCE_S, threading.Event()
    link = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    try:
        while time.monotonic() < deadline_s:
            link.request("GET", "/v1/topology")
            topology = json.load(link.getresponse())["topology"]
            [found] = [one for one in topology["topics"] if one["name"] == topic]
            under_way = found.get("repartition")
            phase = str(under_way["phase"]) if under_way else "over"
            if phase in reached or not under_way:
                return phase
            pause.wait(LOOK_EVERY_S)
        return "none"
    finally:
        link.close()
