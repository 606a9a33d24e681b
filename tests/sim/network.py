"""What is between simulated processes: every message takes a while, and may be held up.

As TCP does it: between two processes messages arrive in order and none is lost on the way; while a
link is cut they wait, as what is sent again and again does, and arrive when it is mended. Whoever
waited for too long has given up by then. Links are cut both ways or one way, and slow.

What a killed process had open ends for the others at once, as its kernel would end it, unless its
whole machine is gone: then nobody is told, and only silence tells.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Final

from tests.sim.scheduler import Process, Scheduler, SimulatedHandle

USUAL_S: Final = 0.0002
TAIL_S: Final = 0.02
TAIL: Final = 0.02
"""One message in fifty takes longer, up to that."""


class Network:
    def __init__(self, scheduler: Scheduler, chance: random.Random) -> None:
        self.carried = 0
        self.held = 0
        self._scheduler = scheduler
        self._chance = chance
        self._slow_s: dict[tuple[str, str], float] = {}
        self._cut: set[tuple[str, str]] = set()
        self._last_s: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._waiting: defaultdict[tuple[str, str], list[tuple[Process, SimulatedHandle]]]
        self._waiting = defaultdict(list)
        self._stuck: dict[Process, list[tuple[Process, SimulatedHandle]]] = {}
        scheduler.carry = self._carry

    # --- what happens to links -------------------------------------------------------------------

    def cut(self, sender: str, receiver: str) -> None:
        """One way; the other way is another call."""
        self._cut.add((sender, receiver))

    def mend(self, sender: str, receiver: str) -> None:
        way = sender, receiver
        self._cut.discard(way)
        for process, message in self._waiting.pop(way, ()):
            self._bring(way, process, message)

    def hold(self, sender: Process) -> None:
        """What this one says is on its way for long, whatever becomes of it meanwhile."""
        self._stuck.setdefault(sender, [])

    def release(self, sender: Process) -> None:
        for receiver, message in self._stuck.pop(sender, ()):
            self._carry(sender, receiver, message)

    def slow_down(self, sender: str, receiver: str, by_s: float) -> None:
        """No longer, with 0."""
        self._slow_s[sender, receiver] = by_s

    def mend_all(self) -> None:
        self._slow_s.clear()
        for sender in [*self._stuck]:
            self.release(sender)
        for way in sorted(self._cut):
            self.mend(*way)

    # --- messages --------------------------------------------------------------------------------

    def _carry(self, sender: Process, receiver: Process, message: SimulatedHandle) -> None:
        way = sender.name, receiver.name
        if sender in self._stuck:
            self.held += 1
            self._stuck[sender].append((receiver, message))
        elif way in self._cut:
            self.held += 1
            self._waiting[way].append((receiver, message))
        else:
            self._bring(way, receiver, message)

    def _bring(self, way: tuple[str, str], receiver: Process, message: SimulatedHandle) -> None:
        chance = self._chance.random()
        takes_s = USUAL_S * (0.5 + chance) + self._slow_s.get(way, 0.0)
        if chance < TAIL:
            takes_s += TAIL_S * self._chance.random()
        # In order: never before what was sent earlier.
        at_s = max(self._scheduler.now_s + takes_s, self._last_s[way])
        self._last_s[way] = at_s
        self.carried += 1
        self._scheduler.remind(at_s, receiver, message)
