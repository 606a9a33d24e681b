"""Spark's home without its zipped copy of PySpark, and what workers are forked from."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest

from headgate.spark.starting.home import light_home
from headgate.spark.starting.session import QUICK_START, _environment, home_for, quick_start

WHOLE = Path(pyspark.__file__).parent


def test_it_is_pysparks_own_home_without_the_copy(tmp_path: Path) -> None:
    home = light_home({}, roots=(tmp_path,))
    assert home is not None
    assert (home / "jars").resolve() == (WHOLE / "jars").resolve()
    assert (home / "bin" / "spark-submit").exists()
    assert not (home / "python").exists()


def test_a_home_that_is_set_is_kept(tmp_path: Path) -> None:
    assert light_home({"SPARK_HOME": "/opt/spark"}, roots=(tmp_path,)) is None
    assert list(tmp_path.iterdir()) == []


def test_only_the_java_that_is_started_now_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for before in (None, "/opt/spark"):
        monkeypatch.delenv("SPARK_HOME", raising=False)
        if before:
            monkeypatch.setenv("SPARK_HOME", before)
        with _environment(tmp_path):
            assert os.environ["SPARK_HOME"] == str(tmp_path)
        assert os.environ.get("SPARK_HOME") == before


def test_no_setting_of_ours_is_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "HEADGATE_SECURITY__ADMIN_TOKEN"
    monkeypatch.setenv(name, "planted")
    with _environment(tmp_path):
        assert name not in os.environ
    assert os.environ[name] == "planted"


def test_a_cluster_gets_the_home_that_it_would_have_had() -> None:
    assert home_for("spark://10.0.0.1:7077", {}) == WHOLE
    assert home_for("local-cluster[2,1,1024]", {"SPARK_HOME": "/opt/spark"}) == Path("/opt/spark")


def test_it_is_made_once_and_again_when_it_is_broken(tmp_path: Path) -> None:
    home = light_home({}, roots=(tmp_path,))
    assert home is not None
    made = home.stat().st_ino
    assert light_home({}, roots=(tmp_path,)) == home
    assert home.stat().st_ino == made
    (home / "jars").unlink()
    assert light_home({}, roots=(tmp_path,)) == home
    assert (home / "jars").exists()


def test_a_root_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    home = light_home({}, roots=(tmp_path / "file", tmp_path / "folder"))
    assert home is not None
    assert home.parent == tmp_path / "folder"
    assert light_home({}, roots=(tmp_path / "file",)) is None


def test_many_may_make_it_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        homes = list(pool.map(lambda _: light_home({}, roots=(tmp_path,)), range(32)))
    (home,) = set(homes)
    assert list(tmp_path.iterdir()) == [home]


def test_workers_are_forked_from_a_process_without_threads() -> None:
    program = (
        "import os, headgate.wiring.worker_daemon; "
        "print(len(os.listdir('/proc/self/task')) if os.path.isdir('/proc/self/task') else 1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1\n", done.stderr


def test_workers_load_nothing_that_reads_a_configuration() -> None:
    program = "import sys, headgate.wiring.worker_daemon; print('pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, list(QUICK_START)),
        ({"JDK_JAVA_OPTIONS": "-Xss2m"}, list(QUICK_START)),
        ({"JDK_JAVA_OPTIONS": "-Xss2m -XX:+UseZGC"}, ["-XX:TieredStopAtLevel=1"]),
        ({"JAVA_TOOL_OPTIONS": "-XX:+UseG1GC"}, ["-XX:TieredStopAtLevel=1"]),
    ],
    ids=["nothing", "something else", "a collector", "for every Java"],
)
def test_the_users_collector_is_kept(given: dict[str, str], expected: list[str]) -> None:
    assert quick_start(given) == expected
