"""A plant: a known mistake as a small patch, with the tests that have to find it.

A plant is a unified diff, as `git diff` prints it, below a header that says what it puts back and
who finds it. It is applied by what its lines say, not by their numbers, which drift: the lines a
hunk expects, context included, must stand exactly once in the file.

Invariant: a plant applies to every hunk or to nothing, and says in a sentence why it doesn't. It
only ever changes text in memory; whoever asks writes it, into a copy of the sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
PUTS_BACK, FOUND_BY = "Puts back:", "Found by:"
_COUNTS = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class PlantRefused(Exception):
    """The plant can't be read or doesn't apply any more; one sentence that names it."""


@dataclass(frozen=True, slots=True)
class Hunk:
    path: str
    old: tuple[str, ...]
    """The lines it expects, context included."""
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plant:
    name: str
    puts_back: str
    found_by: tuple[str, ...]
    """The node ids of the tests that must fail with it."""
    hunks: tuple[Hunk, ...]

    def applied(self, text_of: Callable[[str], str]) -> dict[str, str]:
        """The text of each file it changes, by path, with the mistake in it."""
        changed: dict[str, str] = {}
        for hunk in self.hunks:
            text = changed[hunk.path] if hunk.path in changed else text_of(hunk.path)
            lines = text.split("\n")
            size = len(hunk.old)
            found = [at for at in range(len(lines)) if lines[at : at + size] == [*hunk.old]]
            if len(found) != 1:
                raise PlantRefused(
                    f"Plant {self.name} does not apply: the lines it changes must stand once in "
                    f"{hunk.path} and stand there {len(found)} times; bring the patch up to date "
                    f"(it starts with {_first_words(hunk)!r})."
                )
            lines[found[0] : found[0] + size] = hunk.new
            changed[hunk.path] = "\n".join(lines)
        return changed


def plant_files() -> list[Path]:
    return sorted(FOLDER.glob("*.patch"))


def read_plant(file: Path) -> Plant:
    return parse_plant(file.stem, file.read_text())


def parse_plant(name: str, text: str) -> Plant:
    """The plant that a patch file holds."""
    lines = text.splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith(("diff ", "--- "))), len(lines))
    puts_back, found_by = _header(lines[:at])
    hunks = _hunks(name, lines[at:])
    missing = [
        what
        for what, given in ((PUTS_BACK, puts_back), (FOUND_BY, found_by), ("a hunk", hunks))
        if not given
    ]
    if missing:
        raise PlantRefused(f"Plant {name} lacks {' and '.join(missing)}; add it to the patch.")
    return Plant(name, puts_back, found_by, hunks)


def _header(lines: list[str]) -> tuple[str, tuple[str, ...]]:
    """What it puts back (a sentence that may go on in the next lines), and who finds it."""
    sentence: list[str] = []
    found_by: list[str] = []
    for line in lines:
        if line.startswith(FOUND_BY):
            found_by.append(line.removeprefix(FOUND_BY).strip())
        elif not found_by:
            sentence += line.removeprefix(PUTS_BACK).split()
    return " ".join(sentence), tuple(found_by)


def _hunks(name: str, lines: list[str]) -> tuple[Hunk, ...]:
    hunks: list[Hunk] = []
    path = ""
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.startswith(("--- ", "+++ ")):
            path = line[4:].split("\t")[0]
            if path == "/dev/null":
                raise PlantRefused(
                    f"Plant {name} adds or removes a file; let it change files that are there."
                )
            path = path.partition("/")[2]  # without git's a/ and b/
        elif counts := _COUNTS.match(line):
            hunk, at = _hunk(name, path, lines, at, int(counts[1] or 1), int(counts[2] or 1))
            hunks.append(hunk)
    return tuple(hunks)


def _hunk(
    name: str, path: str, lines: list[str], at: int, old_left: int, new_left: int
) -> tuple[Hunk, int]:
    """The hunk whose first line is `lines[at]`, and where the next thing begins.

    Its counts say where it ends: a removed line may look like the start of the next file.
    """
    old: list[str] = []
    new: list[str] = []
    while (old_left, new_left) > (0, 0) and at < len(lines):
        mark, line = lines[at][:1], lines[at][1:]
        at += 1
        if mark not in ("", " ", "-", "+", "\\"):
            break
        if mark in ("", " ", "-"):  # editors strip the blank of an empty line
            old.append(line)
            old_left -= 1
        if mark in ("", " ", "+"):
            new.append(line)
            new_left -= 1
    if (old_left, new_left) != (0, 0):
        raise PlantRefused(
            f"Plant {name} has a hunk of {path} whose line counts are wrong; make it anew with "
            f"git diff."
        )
    return Hunk(path, tuple(old), tuple(new)), at


def _first_words(hunk: Hunk) -> str:
    return next((line.strip() for line in hunk.old if line.strip()), "")
