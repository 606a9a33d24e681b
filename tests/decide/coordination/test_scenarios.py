"""The scenario files are the specification of who owns what; scenario.py explains their words."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.model.event import PartitionRef
from tests.decide.coordination import scenario
from tests.decide.coordination.scenario import play
from tests.decide.coordination.stage import Stage

FILES = sorted(Path(__file__).with_name("scenarios").glob("*.scenario"))
HANDOFF = Path(__file__).with_name("scenarios") / "join_and_hand_off.scenario"
LINES = scenario.read(HANDOFF)
RESET = scenario.read(HANDOFF.with_name("reset_of_a_position.scenario"))
DEATHS = [
    pytest.param("coordinator restarts", id="between two steps"),
    pytest.param("coordinator dies at the next persist", id="within a step"),
    pytest.param("coordinator fails after 40 lines", id="early in a decision"),
    pytest.param("coordinator fails after 400 lines", id="later in a decision"),
]


def steps_from(word: str, lines: list[scenario.Line]) -> list[int]:
    """After which lines a coordinator may die; earlier ones have nothing to lose."""
    begin = next(number for number, line in enumerate(lines, 1) if line.text.startswith(word))
    return [number for number, line in enumerate(lines, 1) if line.is_event and number >= begin]


STEPS = steps_from("topic", LINES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    play(Stage(), scenario.read(path))


def _told(*lines: str) -> list[scenario.Line]:
    return [scenario.understood("restarted", line) for line in lines]


def _owners(stage: Stage) -> dict[PartitionRef, str]:
    return {owner.ref: owner.node_id for owner in stage.sim.cluster.sources.owned()}


@pytest.fixture(scope="module")
def undisturbed() -> dict[PartitionRef, str]:
    stage = Stage()
    play(stage, LINES)
    return _owners(stage)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("death", DEATHS)
def test_a_coordinator_that_dies_anywhere_in_a_handoff_ends_where_it_would_have(
    undisturbed: dict[PartitionRef, str], step: int, death: str
) -> None:
    stage = Stage()
    play(stage, LINES[:step], expecting=False)
    play(stage, _told(death))
    for line in LINES[step:]:
        play(stage, [line, *_told("back all")], expecting=False)
    play(stage, _told("everything settles", "calm"))
    assert _owners(stage) == undisturbed


@pytest.mark.parametrize("step", steps_from("reset", RESET))
@pytest.mark.parametrize("death", DEATHS)
def test_a_coordinator_that_dies_anywhere_in_a_reset_has_it_done_once(
    step: int, death: str
) -> None:
    stage = Stage()
    play(stage, RESET[:step], expecting=False)
    play(stage, _told(death))
    for line in RESET[step:]:
        play(stage, [line, *_told("back all")], expecting=False)
    play(stage, _told("everything settles", "calm", "put flights:0 to 7"))


@pytest.mark.parametrize("step", STEPS)
def test_a_coordinator_that_forgets_everything_in_a_handoff_learns_it_again(step: int) -> None:
    stage = Stage()
    play(stage, LINES[:step], expecting=False)
    read_by = {
        ref: stage.sim.readers(ref)[0].node_id
        for ref in stage.sim.cluster.refs()
        if stage.sim.readers(ref)
    }
    play(stage, _told("coordinator restarts with nothing", "back all", "time 5s"))
    assert read_by.items() <= _owners(stage).items(), "what is in use stays where it is"
    play(stage, _told("everything settles", "calm"))


def test_a_line_that_nobody_understands_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.scenario"
    path.write_text("# a comment\n\nmake it work\n")
    with pytest.raises(AssertionError, match=r"odd.scenario:3: nobody knows what 'make it work'"):
        scenario.read(path)


def test_an_expectation_that_fails_says_where_and_what_was_found(tmp_path: Path) -> None:
    path = tmp_path / "wrong.scenario"
    path.write_text("join router-1\ntopic flights 1\n    owner flights:0 router-2\n")
    with pytest.raises(
        AssertionError, match=r"wrong.scenario:3: owner flights:0 router-2: it is router-1"
    ):
        play(Stage(), scenario.read(path))
