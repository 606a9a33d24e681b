"""What a gateway says of a record, and what it costs those whom it serves meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.adapters.memory.checkpoints import MemoryCheckpointStore
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.decide.explaining.ring import Ring
from headgate.decide.feed.queue import Resync
from headgate.model.control.from_coordinator import AskEvidence
from headgate.model.event import PartitionRef
from headgate.services.gateway.control import Control
from headgate.services.gateway.evidence import GatewayEvidence
from headgate.services.gateway.groups.bounds import ConsumerBounds
from headgate.services.gateway.groups.consumers import Consumers
from headgate.services.gateway.telling import Telling
from tests.services.gateway.test_deliveries import stage
from tests.written_log import TOPIC

REF = PartitionRef(TOPIC, 0)
SAID = 10


def evidence_of_two() -> GatewayEvidence:
    kept = GatewayEvidence("gateway-1", size=100, age_s=60.0, machine=ScriptedMachine())
    for name in ("a", "b", "a"):
        for partition, after in ((0, 0), (0, 5), (1, 5)):
            resync = Resync(partition, after, after + 3, "slow" if name == "a" else "gap")
            kept.left_out(name, TOPIC, resync)
    kept.left_out("a", "other", Resync(0, 0, 99, "retention"))
    kept.left_out("a", TOPIC, Resync(0, 4, 8, "retention"))
    return kept


def test_each_hears_the_last_that_it_was_told_of_the_record() -> None:
    said = evidence_of_two().said_of({"a", "b", "c"}, REF, 6)
    assert {name: (one.after_seq, one.from_seq, one.reason) for name, one in said.items()} == {
        "a": (4, 8, "retention"),
        "b": (5, 8, "gap"),
    }
    assert evidence_of_two().said_of({"b"}, REF, 3) == {}


async def test_however_many_are_asked_about_what_is_kept_is_looked_through_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0
    iterated = Ring.__iter__

    def counted(ring: Ring[Any]) -> Iterator[Any]:
        nonlocal looked
        looked += len(ring)
        return iterated(ring)

    async with stage() as made:
        subscriptions = made.subscriptions
        names = tuple(one.id for one in subscriptions)
        assert len(names) > 1
        kept = GatewayEvidence("gateway-1", size=10_000, age_s=60.0, machine=ScriptedMachine())
        for _ in range(SAID):
            for name in names:
                kept.left_out(name, TOPIC, Resync(0, 0, 2, "slow"))
        consumers = Consumers(
            subscriptions,
            Control(),
            MemoryCheckpointStore(),
            ConsumerBounds(),
            machine=ScriptedMachine(),
        )
        telling = Telling(kept, subscriptions, consumers)
        monkeypatch.setattr(Ring, "__iter__", counted)
        answer = telling.answer(AskEvidence(1, REF, 1, subscriptions=names)).gateway
    assert answer is not None
    assert len(answer.standings) == len(names)
    assert all(one.left_out is not None for one in answer.standings)
    assert looked == SAID * len(names)
