"""Where a scenario plays, and how its words are bound to what they do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from headgate.model.event import PartitionRef
from tests.decide.coordination.peers import Gateway, Ingest, Lane, Peer, Router
from tests.decide.coordination.simulation import Simulation

Handler = Callable[..., None]
H = TypeVar("H", bound=Handler)


class Vocabulary:
    """Functions by the pattern of the lines that they understand; groups are their arguments."""

    def __init__(self) -> None:
        self._handlers: dict[re.Pattern[str], Handler] = {}

    def __call__(self, pattern: str) -> Callable[[H], H]:
        def bind(handler: H) -> H:
            self._handlers[re.compile(pattern)] = handler
            return handler

        return bind

    def understood(self, text: str) -> tuple[Handler, tuple[str | None, ...]] | None:
        for pattern, handler in self._handlers.items():
            if match := pattern.fullmatch(text):
                return handler, match.groups()
        return None


class Stage:
    """`refusal` is why the last event was refused, `pushes` what each had got before it."""

    def __init__(self) -> None:
        self.sim = Simulation()
        self.processes = 0
        self.refusal = ""
        self.pushes: dict[str, int] = {}

    def everybody(self) -> Iterator[tuple[str, Peer]]:
        yield from self.sim.nodes.items()
        for lane in self.sim.lanes:
            yield f"lane of {lane.node_id}", lane

    def node(self, node_id: str) -> Peer:
        assert node_id in self.sim.nodes, f"there is no {node_id}"
        return self.sim.nodes[node_id]

    def some(self, name: str) -> list[Peer]:
        """A node, or the lanes of a router."""
        which, _, router_id = name.rpartition("lanes of ")
        if router_id != name:
            newest = self.router(router_id).window
            return [x for x in self.lanes(router_id) if not which or x.window < newest]
        return [self.node(name)]

    def lanes(self, router_id: str) -> list[Lane]:
        return [lane for lane in self.sim.lanes if lane.node_id == router_id]

    def router(self, node_id: str) -> Router:
        router = self.node(node_id)
        assert isinstance(router, Router)
        return router

    def ingest(self, node_id: str) -> Ingest:
        node = self.node(node_id)
        assert isinstance(node, Ingest)
        return node

    def gateway(self, node_id: str) -> Gateway:
        gateway = self.node(node_id)
        assert isinstance(gateway, Gateway)
        return gateway


def partitions(names: str) -> set[PartitionRef]:
    return set() if names in ("nothing", "none") else {partition(n) for n in names.split(", ")}


def partition(name: str) -> PartitionRef:
    topic, _, number = name.partition(":")
    return PartitionRef(topic, int(number))


def listed(names: str) -> set[str]:
    return set() if names == "none" else set(names.split(", "))
