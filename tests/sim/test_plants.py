"""Counting the seeds until a mistake is found; the runs themselves are told here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plants.planting import PlantRefused
from tests.sim import plants
from tests.sim.children import Ended

NAME = "position-before-delivery"


class ToldChild:
    """Fails with the seeds of `failing` where the plant is, with those of `anyway` everywhere."""

    failing = frozenset({103})
    anyway: frozenset[int] = frozenset()

    def __init__(self, source: Path | None = None) -> None:
        self._is_planted = source is not None
        if source is not None:
            [plant] = plants.chosen([NAME])
            for hunk in plant.hunks:
                text = (source.parent / hunk.path).read_text()
                assert "\n".join(hunk.new) in text

    def live(self, seed: int) -> Ended:
        fails = seed in self.anyway or (self._is_planted and seed in self.failing)
        return Ended(seed, ["it is lost"] if fails else [])

    def end(self) -> None: ...


@pytest.fixture(autouse=True)
def _told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plants, "Child", ToldChild)


def test_seeds_are_lived_with_the_mistake_until_one_fails() -> None:
    [plant] = plants.chosen([NAME])
    assert plants.seeds_until_found(plant, 100, 50) == plants.Found(4, 103, "it is lost")
    assert plants.seeds_until_found(plant, 104, 5) == plants.Found(0)


def test_a_seed_that_fails_anyway_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToldChild, "anyway", frozenset({101}))
    [plant] = plants.chosen([NAME])
    with pytest.raises(plants.NotByThePlant, match="seed 101"):
        plants.seeds_until_found(plant, 100, 50)


def test_what_is_no_plant_is_refused() -> None:
    with pytest.raises(PlantRefused, match="nobody-planted-this"):
        plants.chosen(["nobody-planted-this"])
