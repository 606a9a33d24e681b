"""`make plants [PLANT=name]`: put each known mistake back and show which tests find it.

Ends with 0 when every test of every plant finds it, with 1 otherwise, with 130 on Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.plants.planting import FOLDER, Plant, PlantRefused, plant_files, read_plant
from tests.plants.trial import Trial, TrialFailed, Verdict

ROOT = FOLDER.parents[1]
INTERRUPTED = 130
CONSOLE = Console(soft_wrap=True)


def say(line: str) -> None:
    """One line as it is, above the progress bar."""
    CONSOLE.print(line, highlight=False, markup=False)


def main(names: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        plants = chosen(names)
        with tempfile.TemporaryDirectory(prefix="headgate-plants-") as folder:
            return 0 if all_found(Trial(ROOT, Path(folder)), plants) else 1
    except (PlantRefused, TrialFailed) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("Broken off.")
        return INTERRUPTED


def chosen(names: Sequence[str]) -> list[Plant]:
    """The plants of these names; all of them without a name."""
    files = {file.stem: file for file in plant_files()}
    unknown = [name for name in names if name not in files]
    if unknown:
        known = ", ".join(files) or "none"
        raise PlantRefused(f"There is no plant {', '.join(unknown)}; there are {known}.")
    return [read_plant(files[name]) for name in names or files]


def all_found(trial: Trial, plants: Sequence[Plant]) -> bool:
    """Try them one at a time, a line for each."""
    lost = 0
    with progress_bar() as bar:
        task = bar.add_task("without a plant", total=len(plants))
        trial.check_healthy(plants)
        for plant in plants:
            bar.update(task, description=plant.name)
            verdict = trial.verdict(plant)
            lost += bool(verdict.missed_by)
            say(line_of(plant, verdict))
            bar.advance(task)
    say(f"{len(plants) - lost} of {len(plants)} plants found.")
    return not lost


def line_of(plant: Plant, verdict: Verdict) -> str:
    """Who found it; or who should have and did not, and what pytest said then."""
    within = f"in {verdict.took_s:.1f} s"
    found = f"found by {', '.join(verdict.found_by)} {within}" if verdict.found_by else ""
    if not verdict.missed_by:
        return f"{plant.name}: {found}"
    missed = f"NOT FOUND by {', '.join(verdict.missed_by)}"
    return f"{plant.name}: {missed}{found and '; '}{found}\n{verdict.said}"


def progress_bar() -> Progress:
    """Which plant is tried, and how many are left; shows nothing where nobody watches."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=CONSOLE,
        disable=not CONSOLE.is_terminal,
        transient=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
