"""The planter: a hunk goes where its lines stand once, and a trial tells found from not found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.plants.__main__ import line_of
from tests.plants.planting import PlantRefused, parse_plant
from tests.plants.trial import Trial, TrialFailed, Verdict

PATCH = """\
Puts back: the door is
left open.
Found by: tests/test_door.py::test_shut
Found by: tests/test_door.py::test_locked

diff --git a/src/door.py b/src/door.py
index 1111111..2222222 100644
--- a/src/door.py
+++ b/src/door.py
@@ -10,4 +10,3 @@ def leave() -> None:
 def leave() -> None:
     walk()
-    shut()

"""
DOOR = """\
def leave() -> None:
    walk()
    shut()

"""


def planted(text: str, patch: str = PATCH) -> str:
    return parse_plant("open-door", patch).applied({"src/door.py": text}.__getitem__)["src/door.py"]


def test_the_header_says_what_is_put_back_and_who_finds_it() -> None:
    plant = parse_plant("open-door", PATCH)
    assert plant.puts_back == "the door is left open."
    assert plant.found_by == ("tests/test_door.py::test_shut", "tests/test_door.py::test_locked")


@pytest.mark.parametrize(
    "above", ["", "import os\n\n", "x = 1\n" * 500], ids=["top", "two", "many"]
)
def test_a_hunk_goes_where_its_lines_stand_whatever_their_numbers(above: str) -> None:
    assert planted(f"{above}{DOOR}rest()\n") == (
        f"{above}def leave() -> None:\n    walk()\n\nrest()\n"
    )


def test_hunks_of_one_file_all_go_in() -> None:
    more = PATCH + "@@ -40,1 +39,2 @@\n rest()\n+--- a/more\n"
    assert planted(f"{DOOR}rest()\n", more) == (
        "def leave() -> None:\n    walk()\n\nrest()\n--- a/more\n"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def leave() -> None:\n    walk()\n", "stand there 0 times"),
        (DOOR.replace("walk", "run"), "stand there 0 times"),
        (DOOR * 2, "stand there 2 times"),
    ],
    ids=["gone", "context changed", "twice"],
)
def test_lines_that_do_not_stand_there_once_are_refused(text: str, reason: str) -> None:
    with pytest.raises(PlantRefused, match=f"^Plant open-door does not apply: .*{reason}"):
        planted(text)


def test_a_later_hunk_that_is_refused_leaves_nothing_planted() -> None:
    with pytest.raises(PlantRefused):
        planted(DOOR, PATCH + "@@ -40,1 +39,1 @@\n-gone()\n+here()\n")


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        (PATCH.partition("diff ")[0], "lacks a hunk"),
        (PATCH.replace("Found by: ", "Found: "), "lacks Found by:"),
        (PATCH.partition("Found by:")[1] + PATCH.partition("Found by:")[2], "lacks Puts back:"),
        (PATCH.replace("-10,4", "-10,9"), "line counts are wrong"),
        (PATCH.replace("--- a/src/door.py", "--- /dev/null"), "adds or removes a file"),
    ],
    ids=["no hunk", "no finder", "no sentence", "wrong counts", "new file"],
)
def test_a_patch_that_is_no_plant_is_refused_by_name(patch: str, reason: str) -> None:
    with pytest.raises(PlantRefused, match=f"^Plant open-door .*{reason}"):
        parse_plant("open-door", patch)


# --- the trial ------------------------------------------------------------------------------------

TESTS = """\
from headgate import door

def test_shut():
    assert door.shut

def test_knock():
    assert True

def test_jammed():
    assert False
"""
OPEN = """\
Puts back: the door is left open.
Found by: tests/test_door.py::test_shut
Found by: tests/test_door.py::test_knock

--- a/src/headgate/door.py
+++ b/src/headgate/door.py
@@ -1 +1 @@
-shut = True
+shut = None
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with a door, under the name of the one that is installed."""
    root = tmp_path / "project"
    (root / "src" / "headgate").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "src" / "headgate" / "__init__.py").touch()
    (root / "src" / "headgate" / "door.py").write_text("shut = True\n")
    (root / "tests" / "test_door.py").write_text(TESTS)
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\ntestpaths = ['tests']\n")
    return root


def test_a_trial_tells_who_finds_a_plant_and_leaves_no_trace(root: Path, tmp_path: Path) -> None:
    verdict = Trial(root, tmp_path).verdict(parse_plant("open-door", OPEN))
    assert verdict.found_by == ("tests/test_door.py::test_shut",)
    assert verdict.missed_by == ("tests/test_door.py::test_knock",)
    for sources in (root, tmp_path):
        assert (sources / "src" / "headgate" / "door.py").read_text() == "shut = True\n"


def test_a_test_that_fails_without_a_plant_shows_nothing(root: Path, tmp_path: Path) -> None:
    plant = parse_plant("open-door", OPEN.replace("test_knock", "test_jammed"))
    with pytest.raises(TrialFailed, match="must pass without a plant"):
        Trial(root, tmp_path).check_healthy([plant])


def test_a_trial_that_would_import_something_else_is_refused(root: Path, tmp_path: Path) -> None:
    shutil.rmtree(root / "src" / "headgate")
    with pytest.raises(TrialFailed, match="instead of the copy"):
        Trial(root, tmp_path)


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (Verdict(("a",), (), 1.24, "out"), "open-door: found by a in 1.2 s"),
        (Verdict((), ("a", "b"), 1.0, "out"), "open-door: NOT FOUND by a, b\nout"),
        (
            Verdict(("a",), ("b",), 1.0, "out"),
            "open-door: NOT FOUND by b; found by a in 1.0 s\nout",
        ),
    ],
    ids=["found", "missed", "missed by one"],
)
def test_the_line_of_a_plant_says_who_missed_it(verdict: Verdict, line: str) -> None:
    assert line_of(parse_plant("open-door", OPEN), verdict) == line
