"""Nobody removes what a living process made, and what a dead one left goes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headgate.adapters import scratch as module
from headgate.adapters.scratch import Scratch

LIVES = """
import sys
from pathlib import Path
from headgate.adapters.scratch import Scratch
mine = Scratch(Path(sys.argv[1]))
mine.path.mkdir()
print(mine.path, flush=True)
sys.stdin.read()
"""


def living(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", LIVES, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_lives_stays_and_what_is_dead_goes(tmp_path: Path) -> None:
    process, theirs = living(tmp_path)
    try:
        mine = Scratch(tmp_path)
        assert theirs.is_dir()
        mine.path.mkdir()
    finally:
        process.kill()
        process.communicate()
    third = Scratch(tmp_path)
    assert not theirs.exists()
    assert mine.path.is_dir()
    mine.remove()
    third.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_lock_is_nobodys(tmp_path: Path) -> None:
    """Such as those that were named by process ids."""
    (tmp_path / "1").mkdir()
    Scratch(tmp_path).remove()
    assert list(tmp_path.iterdir()) == []


def test_whoever_is_swept_before_it_has_its_lock_takes_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter(["swept", "mine"])
    monkeypatch.setattr("headgate.adapters.scratch.secrets.token_hex", lambda _: next(names))
    taken = module._taken

    def swept_first(file: Path, flags: int) -> int | None:
        found = taken(file, flags)
        if file.stem == "swept":
            file.unlink()
        return found

    monkeypatch.setattr(module, "_taken", swept_first)
    mine = Scratch(tmp_path)
    assert mine.path == tmp_path / "mine"
    assert (tmp_path / "mine.lock").exists()
    mine.remove()
