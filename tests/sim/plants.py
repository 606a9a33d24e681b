"""`make sim PLANTS="NAME …"`: how many seeds it takes until each known mistake is found.

A plant (tests/plants/) is put into a copy of the sources, and seeds are lived there, one after the
other, until one fails. The same seed is lived without the plant, too: a seed that fails anyway
shows nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.plants.planting import Plant, PlantRefused, plant_files, read_plant
from tests.sim.children import ROOT, Child

MOST: Final = 2_000
"""Seeds; what isn't found by then is a gap in the world or in the oracle."""


class NotByThePlant(Exception):
    """A seed fails without the plant."""


@dataclass(frozen=True)
class Found:
    seeds: int
    """It took so many; none where it wasn't found."""
    seed: int = 0
    by: str = ""
    """What was wrong then."""


def chosen(names: Sequence[str]) -> list[Plant]:
    files = {file.stem: file for file in plant_files()}
    if unknown := [name for name in names if name not in files]:
        raise PlantRefused(f"there is no plant {', '.join(unknown)}; see tests/plants")
    return [read_plant(files[name]) for name in names]


def seeds_until_found(plant: Plant, base: int, most: int = MOST) -> Found:
    """From `base` on. Raises NotByThePlant, PlantRefused."""
    with tempfile.TemporaryDirectory(prefix="headgate-sim-") as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for path, text in plant.applied(lambda path: (copy / path).read_text()).items():
            (copy / path).write_text(text)
        planted = Child(source=copy / "src")
        try:
            for seed in range(base, base + most):
                if violations := planted.live(seed).violations:
                    _check_it_is_the_plant(plant, seed)
                    return Found(seed - base + 1, seed, violations[0])
        finally:
            planted.end()
    return Found(0)


def _check_it_is_the_plant(plant: Plant, seed: int) -> None:
    healthy = Child()
    try:
        if violations := healthy.live(seed).violations:
            raise NotByThePlant(f"seed {seed} fails without {plant.name}, too: {violations[0]}")
    finally:
        healthy.end()
