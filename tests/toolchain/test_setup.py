"""The set-up: everything is pinned with its hash, and what is missing is one sentence."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
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


def path_of(checkout: Path, *more: str) -> Path:
    path = checkout.parent / "path"
    path.mkdir(exist_ok=True)
    for name in ("cat", "cksum", "dirname", "rm", "sed", "tail", *more):
        command = shutil.which(name)
        assert command
        (path / name).symlink_to(command)
    return path


def set_up(checkout: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run it with the few commands it needs and whatever Pythons the test put on the PATH."""
    path = path_of(checkout)
    return subprocess.run(
        ["/bin/sh", checkout / "scripts" / "setup.sh"],
        env={"PATH": str(path), **environ},
        capture_output=True,
        text=True,
        timeout=30,
    )


def fake_python(
    checkout: Path, name: str, version: str, *, venv: bool, making: str = "exit 9"
) -> None:
    """Answers the two questions of the script and does `making` to make an environment; anything
    else it is asked fails."""
    path = checkout.parent / "path"
    path.mkdir(exist_ok=True)
    (path / name).write_text(
        "#!/bin/sh\n"
        'case "$2" in\n'
        f"venv) {making} ;;\n"
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


TAKES_LONG = """
trap 'echo Traceback >&2; exit 1' INT
touch begun
while :; do sleep 0.05; done
"""
HEEDS_SIGINT = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def test_a_ctrl_c_is_one_sentence(checkout: Path) -> None:
    fake_python(checkout, "python3", "3.12", venv=True, making=TAKES_LONG)
    path = path_of(checkout, "sleep", "touch")
    command = [sys.executable, "-c", HEEDS_SIGINT, "/bin/sh", "scripts/setup.sh"]
    with subprocess.Popen(
        command,
        cwd=checkout,
        env={"PATH": str(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as setting_up:
        deadline_s = time.monotonic() + 20
        while not (checkout / "begun").exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        os.killpg(setting_up.pid, signal.SIGINT)
        _, said = setting_up.communicate(timeout=20)
    assert said == "Stopped; run it again and it goes on.\n"
    assert setting_up.returncode == 130


def test_what_fails_says_why(checkout: Path) -> None:
    fake_python(checkout, "python3", "3.12", venv=True, making="echo no room >&2; exit 3")
    done = set_up(checkout)
    assert (done.returncode, done.stderr) == (3, "no room\n")


def make_a_fake_environment(checkout: Path) -> None:
    """Its commands do nothing; making the archive takes a second."""
    made = checkout / "made" / "bin"
    made.mkdir(parents=True)
    (made / "uv").write_text("#!/bin/sh\n")
    (made / "python").write_text('#!/bin/sh\ncase "$2" in *training) sleep 1.5 ;; esac\n')
    for command in made.iterdir():
        command.chmod(0o755)
    fake_python(checkout, "python3", "3.12", venv=True, making="cp -r made .venv")


def test_where_nobody_watches_each_step_is_one_line(checkout: Path) -> None:
    make_a_fake_environment(checkout)
    done = subprocess.run(
        ["/bin/sh", "scripts/setup.sh"],
        cwd=checkout,
        env={"PATH": str(path_of(checkout, "cp", "sleep"))},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == [
        "1/5",
        "2/5",
        "3/5",
        "4/5",
        "5/5",
    ]
    assert "\r" not in done.stdout


def test_at_a_terminal_the_seconds_of_a_step_are_counted_within_one_line(checkout: Path) -> None:
    make_a_fake_environment(checkout)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["/bin/sh", "scripts/setup.sh"],
        cwd=checkout,
        env={"PATH": str(path_of(checkout, "cp", "sleep"))},
        stdout=theirs,
    ) as setting_up:
        assert setting_up.wait(timeout=30) == 0
    os.close(theirs)
    said = os.read(ours, 100_000).decode()
    os.close(ours)
    archive = said.rstrip().split("\r\n")[-2]
    counted = [line for line in archive.split("\r") if line]
    assert [line.rpartition(": ")[2] for line in counted][:2] == ["0 s", "1 s"]
    assert all(line.startswith("  4/5 ") and len(line) < 80 for line in counted)


def test_ci_runs_the_test_command_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines == ["#!/usr/bin/env bash", "exec make test"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


# --- scripts/chromium.sh --------------------------------------------------------------------------


def fetch_chromium(
    checkout: Path, *, user: str = "0", system: str = "debian", apt: str = "exit 0"
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What it says, and what it asked of apt-get, which does `apt`."""
    path = path_of(checkout)
    (path / "timeout").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (path / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (path / "apt-get").write_text(f'#!/bin/sh\necho "$@" >>{checkout}/asked\n{apt}\n')
    (path / "grep").symlink_to(str(shutil.which("grep")))
    for name in ("timeout", "id", "apt-get"):
        (path / name).chmod(0o755)
    release = checkout / "os-release"
    release.write_text(f"NAME=any\nID={system}\n")
    done = subprocess.run(
        ["/bin/sh", checkout / "scripts" / "chromium.sh"],
        env={"PATH": str(path), "OS_RELEASE": str(release)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    asked = checkout / "asked"
    lines = asked.read_text().splitlines() if asked.exists() else []
    return done, [" ".join(word for word in line.split() if "-" not in word) for line in lines]


def test_a_chromium_is_installed_where_that_is_possible(checkout: Path) -> None:
    done, asked = fetch_chromium(checkout)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert asked == ["install chromium"]


@pytest.mark.parametrize(
    "where", [{"user": "1000"}, {"system": "ubuntu"}], ids=["not root", "not Debian"]
)
def test_elsewhere_nothing_is_installed(checkout: Path, where: dict[str, str]) -> None:
    done, asked = fetch_chromium(checkout, **where)
    assert (done.returncode, done.stderr, asked) == (0, "", [])


def test_a_chromium_that_is_there_is_enough(checkout: Path) -> None:
    path_of(checkout)
    (checkout.parent / "path" / "chromium").write_text("#!/bin/sh\n")
    (checkout.parent / "path" / "chromium").chmod(0o755)
    path = checkout.parent / "path"
    done = subprocess.run(
        ["/bin/sh", checkout / "scripts" / "chromium.sh"], env={"PATH": str(path)}, check=True
    )
    assert done.returncode == 0


def test_an_installation_that_fails_is_one_sentence_and_no_failure(checkout: Path) -> None:
    done, asked = fetch_chromium(checkout, apt="exit 100")
    assert done.returncode == 0
    assert done.stderr == (
        "Chromium could not be installed: the tests in a browser will be skipped.\n"
    )
    assert asked == ["install chromium", "update"]


def test_lists_of_packages_are_fetched_where_there_are_none(checkout: Path) -> None:
    done, asked = fetch_chromium(
        checkout,
        apt=f'[ -e {checkout}/updated ] || {{ [ "$1" = update ] && : >{checkout}/updated; }}',
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert asked == ["install chromium", "update", "install chromium"]
