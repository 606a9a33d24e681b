"""What waits for a phase of a repartition waits for the one that is meant."""

from __future__ import annotations

from typing import cast

from headgate.model.topology import Repartition, RepartitionPhase, Topic
from tests.sim.phases import PHASES, Phase, Phases

TOPIC = "planes"


def kept(phases: Phases, phase: Phase, version: int) -> None:
    """That version has the topic by then."""
    is_over = phase == "over"
    under_way = None if is_over else Repartition(4, cast("RepartitionPhase", phase), 7)
    phases.kept([Topic(TOPIC, 2, "keyed", version, repartition=under_way)])


def test_the_next_one_is_meant_where_none_is_under_way() -> None:
    phases = Phases()
    kept(phases, "over", 1)
    marks = {phase: phases.next(TOPIC, phase) for phase in PHASES}
    for number, phase in enumerate(PHASES):
        kept(phases, phase, 1 if phase in ("announced", "sealing") else 2)
        reached = [one for one in PHASES if phases.has_reached(TOPIC, marks[one])]
        assert reached == [*PHASES[: number + 1]]


def test_the_one_that_is_under_way_is_meant_until_it_has_come_so_far() -> None:
    phases = Phases()
    kept(phases, "draining", 2)
    drained, draining = phases.next(TOPIC, "drained"), phases.next(TOPIC, "draining")
    kept(phases, "over", 2)
    assert phases.has_reached(TOPIC, drained)
    assert not phases.has_reached(TOPIC, draining)
    kept(phases, "draining", 3)
    assert phases.has_reached(TOPIC, draining)


def test_one_that_is_given_up_has_come_nowhere() -> None:
    phases = Phases()
    kept(phases, "sealing", 1)
    fenced = phases.next(TOPIC, "fenced")
    kept(phases, "over", 1)
    assert not phases.has_reached(TOPIC, fenced)
