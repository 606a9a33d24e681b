"""What a lane is told of the cluster around it, for all its parts to go by.

Invariant: a topology is taken up as a whole, between two awaits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate.decide.delivery.routing import Routes
from headgate.lane.delivery.pipelines import Dispatcher
from headgate.lane.holding import Around
from headgate.lane.positions.crossing import Crossing
from headgate.lane.subscriptions.matching import Matching
from headgate.model.control import from_coordinator
from headgate.model.lanes import LaneSettings
from headgate.model.notes import Entry
from headgate.model.topology import Topology


class Surroundings:
    """`around` is where the lane looks up what it was told. `note` writes an entry into the lane's
    notes; `found_gateways` is set from the first topology on."""

    def __init__(
        self,
        settings: LaneSettings,
        *,
        around: Around,
        matching: Matching,
        dispatcher: Dispatcher,
        crossing: Crossing,
        note: Callable[[Entry], None],
    ) -> None:
        self._settings = settings
        self._around = around
        self._matching = matching
        self._dispatcher = dispatcher
        self._crossing = crossing
        self._note = note
        self.topology = Topology(0)
        self.found_gateways = asyncio.Event()

    def apply(self, topology: Topology) -> None:
        self.topology = topology
        self._note(from_coordinator.PushTopology(topology))
        gateways = [node for node in topology.of_role("gateway") if node.url]
        urls = self._around.urls = {node.id: node.url for node in gateways}
        self._around.incarnations = {node.id: node.incarnation for node in gateways}
        self._around.topics = {topic.name: topic for topic in topology.topics}
        self._crossing.heard()
        settings = self._settings
        self._matching.routes = Routes(
            urls, settings.mode, max_fanout=settings.max_fanout, ring=topology.ring
        )
        self._dispatcher.heard(gateways)
        self.found_gateways.set()
