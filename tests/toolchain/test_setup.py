"""The set-up: everything is pinned with its hash, and what is missing is one sentence."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PINNED = re.compile(r"^[a-z0-9._-]+(\[[a-z0-9,_-]+\])?==\S+( ; [^\\]+)? \\$", re.IGNORECASE)


def entries(lock: Path) -> list[list[str]]:
    """The lines of each requirement: what is pinned, then its hashes."""
    found: list[list[str]] = []
    for line in lock.read_text().splitlines():
        if line.startswith("    --hash="):
            found[-1].append(line)
        elif not line.lstrip().startswith("#"):
            found.append([line])
    return found


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_requirement_is_pinned_with_hashes(lock: Path) -> None:
    loose = [entry for entry in entries(lock) if not PINNED.match(entry[0]) or len(entry) < 2]
    assert entries(lock)
    assert loose == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_names_no_package_index(lock: Path) -> None:
    assert "://" not in lock.read_text()


# --- scripts/setup.sh -----------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the set-up reads, in a folder of its own, and an empty PATH folder next to it."""
    root = tmp_path / "checkout"
    root.mkdir()
    shutil.copytree(ROOT / "scripts", root / "scripts")
    shutil.copytree(ROOT / "requirements", root / "requirements")
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def set_up(checkout: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run it with the few commands it needs and whatever Pythons the test put on the PATH."""
    path = checkout.parent / "path"
    path.mkdir(exist_ok=True)
    for name in ("cat", "cksum", "dirname", "rm", "sed", "tail"):
        command = shutil.which(name)
        assert command
        (path / name).symlink_to(command)
    return subprocess.run(
        ["/bin/sh", checkout / "scripts" / "setup.sh"],
        env={"PATH": str(path), **environ},
        capture_output=True,
        text=True,
        timeout=30,
    )


def fake_python(checkout: Path, name: str, version: str, *, venv: bool) -> None:
    """Answers the two questions of the script; anything else it is asked fails."""
    path = checkout.parent / "path"
    path.mkdir(exist_ok=True)
    (path / name).write_text(
        "#!/bin/sh\n"
        'case "$2" in\n'
        f"*version_info*) echo {version} ;;\n"
        f"*ensurepip*) exit {0 if venv else 1} ;;\n"
        "*) exit 9 ;;\n"
        "esac\n"
    )
    (path / name).chmod(0o755)


def test_without_a_python_it_says_so(checkout: Path) -> None:
    done = set_up(checkout)
    assert done.returncode == 2
    assert done.stderr.startswith("Headgate needs Python 3.11 or newer")
    assert len(done.stderr.splitlines()) == 1


def test_a_python_that_is_named_must_be_new_enough(checkout: Path) -> None:
    fake_python(checkout, "python3", "3.12", venv=True)
    fake_python(checkout, "old", "", venv=True)
    done = set_up(checkout, PYTHON="old")
    assert done.returncode == 2
    assert done.stderr == "PYTHON=old is not a Python 3.11 or newer; name another one.\n"


def test_a_python_that_is_too_old_is_passed_over(checkout: Path) -> None:
    fake_python(checkout, "python3", "", venv=True)
    fake_python(checkout, "python3.13", "3.13", venv=False)
    assert "python3.13 can't make virtual environments" in set_up(checkout).stderr


def test_a_python_without_venv_says_which_package_to_install(checkout: Path) -> None:
    fake_python(checkout, "python3", "3.12", venv=False)
    done = set_up(checkout)
    assert done.returncode == 2
    assert "apt install python3.12-venv" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ci_runs_the_test_command_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines == ["#!/usr/bin/env bash", "exec make test"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
