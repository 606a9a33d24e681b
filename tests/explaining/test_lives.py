"""What /v1/explain says in random lives of a cluster: nothing that isn't so, to nobody who may not
know it. `python -m tests.explaining SEED` lives one and shows what happens in it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

ROOT: Final = Path(__file__).parents[2]
SEEDS: Final = (6, 8, 13, 18, 74, 96, 103, 128, 143, 201, 206, 214, 220, 225, 257, 298)
LIFE_S: Final = 60.0
"""For one of them, on a machine that has much else to do."""
SAID_AT_LEAST: Final = 12
"""Different statuses: nothing is left of lives in which less is said."""


def test_what_is_said_of_records_is_so() -> None:
    asked = [sys.executable, "-m", "tests.explaining", *map(str, SEEDS)]
    ran = subprocess.run(
        asked, cwd=ROOT, capture_output=True, timeout=LIFE_S * len(SEEDS), check=True
    )
    lives: list[dict[str, Any]] = [msgspec.json.decode(line) for line in ran.stdout.splitlines()]
    assert [one["seed"] for one in lives] == [*SEEDS]
    said: Counter[str] = Counter()
    for life in lives:
        assert not life["failures"], f"seed {life['seed']}: {life['failures']}"
        said.update(life["answers"])
    assert len(said) >= SAID_AT_LEAST, said
