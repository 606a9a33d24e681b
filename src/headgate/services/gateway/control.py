"""The stream to the coordinator, and the topology that comes with it.

Other parts of the gateway speak with `send`, and look at `topology` whenever they need it; nothing
is called from here. Invariants: never an older topology than before; a caller that waits for a
topic sees each topology that comes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable

from headgate import errors
from headgate.decide.produce.unknown_topic import unknown_topic
from headgate.model.control.from_coordinator import FromCoordinator, Welcome
from headgate.model.control.to_coordinator import ToCoordinator
from headgate.model.topology import Topic, Topology
from headgate.ports.control import ControlSession

WITHOUT_ANY = 3
"""So many times as long: with what ships that is longer than a node waits before it connects to the
coordinator again."""


class Control:
    """Says nothing, and knows an empty topology, until there is a session."""

    def __init__(self) -> None:
        self._session: ControlSession | None = None
        self._welcomed_before = False
        self._changed = asyncio.Event()
        self.coordinator_url = ""
        """Where the coordinator that welcomed us serves HTTP; empty before that."""
        self.topology = Topology(generation=0)

    @property
    def connected(self) -> bool:
        return self._session is not None and self._session.connected

    @property
    def is_unheard(self) -> bool:
        """Whether it remembers what there is, and no coordinator has heard that yet."""
        return self.topology.generation > 0 and not self.connected

    @property
    def heard_s(self) -> float:
        """When the last check-in was said that the coordinator has answered."""
        return -math.inf if self._session is None else self._session.heard_s

    def is_there(self, *, within_s: float) -> bool:
        """Whether the coordinator is connected and was heard lately."""
        return self.connected and asyncio.get_running_loop().time() - self.heard_s < within_s

    async def send(self, message: ToCoordinator) -> bool:
        """False when there is no connection at the moment."""
        return self._session is not None and await self._session.send(message)

    def messages(self, session: ControlSession) -> AsyncIterator[FromCoordinator]:
        """What the coordinator says on `session`, which is the one from now on."""
        self._session = session
        return session.messages()

    def welcomed(self, welcome: Welcome) -> bool:
        """Whether this coordinator has forgotten what coordinators knew of this gateway."""
        self.coordinator_url = welcome.url or self.coordinator_url
        forgotten = self._welcomed_before and not welcome.resumed
        self._welcomed_before = True
        return forgotten

    # --- topology --------------------------------------------------------------------------------

    def learn(self, topology: Topology) -> bool:
        """Whether `topology` is as new as the known one, which it then replaces."""
        if topology.generation < self.topology.generation:
            return False
        self.topology = topology
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    async def topic(
        self, name: str, *, grace_s: float, is_shown: Callable[[str], bool] = lambda _: True
    ) -> Topic:
        """Raises UnknownTopic after that wait, which may name a topic that `is_shown` and was
        meant; NotNow while there is no coordinator that would have told of a new one. Where there
        is no topic at all the wait is longer: the coordinator may have lost all that it had stored,
        and be about to hear of them from nodes that come back to it."""
        grace_s *= 1 if self.topology.topics else WITHOUT_ANY
        try:
            async with asyncio.timeout(grace_s):
                while (topic := self.topology.topic(name)) is None:
                    await self._changed.wait()
                return topic
        except TimeoutError:
            if self.topology.generation == 0:
                raise errors.NotNow(
                    "this gateway has not heard from the coordinator yet; try again"
                ) from None
            if not self.connected:
                raise errors.NotNow(
                    f"this gateway knows no topic {name}, and has lost the coordinator, which "
                    "would tell it of a new one; try again"
                ) from None
            known = [topic.name for topic in self.topology.topics if is_shown(topic.name)]
            raise unknown_topic(name, known) from None
