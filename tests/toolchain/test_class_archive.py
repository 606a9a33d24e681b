"""The archive that Spark's Java starts from: which one fits, what isn't trusted, what is kept."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pyspark.errors import PySparkRuntimeError

from headgate.spark.starting import session, training
from headgate.spark.starting.archiving import make_archive
from headgate.spark.starting.class_archive import (
    FAILED_FOR_S,
    KEPT_MAX,
    ClassArchive,
    fingerprint,
    options_to_use,
)
from headgate.spark.starting.java import Java, find_java
from headgate.spark.starting.training import NotMade
from tests.waiting import has_ended, until

JAVA = Java(Path("/opt/java"), 17, "JAVA_HOME", "Debian 17.0.15+6 amd64")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    jars = tmp_path / "home" / "jars"
    jars.mkdir(parents=True)
    for name in ("spark-core.jar", "scala.jar"):
        (jars / name).write_bytes(b"jar")
    return jars.parent


@pytest.fixture
def archive(tmp_path: Path, home: Path) -> ClassArchive:
    found = ClassArchive.of(JAVA, home, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert found is not None
    return found


def put(archive: ClassArchive, content: bytes = b"classes") -> Path:
    """Make it as a training does, without a Java."""
    with archive.making() as path:
        assert path is not None
        path.write_bytes(content)
        return archive.keep(path)


# --- which one fits -------------------------------------------------------------------------------


def test_the_fingerprint_is_stable(home: Path) -> None:
    assert fingerprint(JAVA, home, {}) == fingerprint(JAVA, home, {"PATH": "/bin"})


@pytest.mark.parametrize(
    "other",
    [
        replace(JAVA, build="Debian 17.0.16+8 amd64"),
        replace(JAVA, home=Path("/opt/other")),
    ],
    ids=["build", "place"],
)
def test_another_java_has_another_archive(home: Path, other: Java) -> None:
    assert fingerprint(other, home, {}) != fingerprint(JAVA, home, {})


def test_other_jars_have_another_archive(home: Path) -> None:
    before = fingerprint(JAVA, home, {})
    jar = home / "jars" / "scala.jar"
    os.utime(jar, ns=(0, 0))
    touched = fingerprint(JAVA, home, {})
    jar.write_bytes(b"another")
    os.utime(jar, ns=(0, 0))
    longer = fingerprint(JAVA, home, {})
    (home / "jars" / "new.jar").touch()
    assert len({before, touched, longer, fingerprint(JAVA, home, {})}) == 4


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", True),
        ("-XX:+UseZGC", False),
        ("-XX:-UseCompressedOops", False),
    ],
    ids=["quick", "another collector", "wide pointers"],
)
def test_only_options_that_change_the_layout_count(home: Path, options: str, same: bool) -> None:
    given = {"JDK_JAVA_OPTIONS": options}
    assert (fingerprint(JAVA, home, given) == fingerprint(JAVA, home, {})) is same


@pytest.mark.parametrize(("version", "kind"), [(17, "jsa"), (24, "jsa"), (25, "aot"), (26, "aot")])
def test_newer_javas_make_caches(home: Path, version: int, kind: str) -> None:
    found = ClassArchive.of(replace(JAVA, version=version), home, {"HOME": "/home/u"})
    assert found is not None
    assert (found.folder, found.kind) == (Path("/home/u/.cache/headgate/classes"), kind)


def test_without_a_cache_folder_there_is_none(home: Path) -> None:
    assert ClassArchive.of(JAVA, home, {}) is None


def test_a_driver_of_a_cluster_has_none() -> None:
    environ = {"HOME": "/home/u"}
    assert session.archive_for("spark://10.0.0.1:7077", JAVA, environ) is None
    assert session.archive_for("local-cluster[2,1,1024]", JAVA, environ) is None
    assert session.archive_for("local[8,4]", JAVA, environ) is not None


def test_java_checks_it_and_stays_quiet() -> None:
    for name in ("a.jsa", "a.aot"):
        options = options_to_use(Path(name))
        assert "-XX:+VerifySharedSpaces" in options
        assert "-Xlog:cds*=off" in options
    assert "-Xshare:auto" in options_to_use(Path("a.jsa"))


# --- when it isn't trusted ------------------------------------------------------------------------


def test_what_was_made_is_found(archive: ClassArchive) -> None:
    assert archive.find() is None
    assert archive.is_wanted()
    made = put(archive)
    assert archive.find() == made
    assert not archive.is_wanted()
    assert made.read_bytes() == b"classes"


def test_a_file_that_was_cut_short_is_not_used(archive: ClassArchive) -> None:
    made = put(archive)
    made.chmod(0o600)
    made.write_bytes(b"cla")
    assert archive.find() is None
    assert archive.is_wanted()


@pytest.mark.parametrize("place", ["file", "folder"])
def test_what_others_can_write_is_not_used(archive: ClassArchive, place: str) -> None:
    made = put(archive)
    (made if place == "file" else archive.folder).chmod(0o777)
    assert archive.find() is None


def test_one_that_java_did_not_start_with_is_gone(archive: ClassArchive) -> None:
    put(archive)
    archive.distrust()
    assert archive.find() is None


def test_spark_starts_without_an_archive_that_its_java_dies_of(
    tmp_path: Path, archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = put(archive)
    tried: list[list[str]] = []

    def started(*arguments: list[str]) -> None:
        tried.append(arguments[3])
        if str(made) in " ".join(arguments[3]):
            raise PySparkRuntimeError("JAVA_GATEWAY_EXITED")

    monkeypatch.setattr(session, "archive_for", lambda *_: archive)
    monkeypatch.setattr(session, "_started", started)
    for name in ("SPARK_HOME", "JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")
    session.build_session(
        app_name="app", master="local[2,4]", java=JAVA, scratch=tmp_path / "scratch"
    )
    assert [str(made) in " ".join(options) for options in tried] == [True, False]
    assert archive.find() is None


def test_a_failure_is_not_repeated_for_a_day(archive: ClassArchive) -> None:
    put(archive)
    archive.distrust()
    archive.note_failure("this Java wrote none")
    assert not archive.is_wanted()
    note = archive.folder / f"spark-{archive.fingerprint}.failed"
    assert note.read_text() == "this Java wrote none\n"
    then_s = time.time() - FAILED_FOR_S - 60
    os.utime(note, (then_s, then_s))
    assert archive.is_wanted()
    archive.tidy()
    assert not note.exists()


# --- making and keeping ---------------------------------------------------------------------------


def test_only_one_makes_it_at_a_time(archive: ClassArchive) -> None:
    with archive.making() as mine:
        assert mine is not None
        with archive.making() as theirs:
            assert theirs is None
        assert mine.parent.exists()
    with archive.making() as again:
        assert again is not None


def test_a_process_that_waits_for_nobody_leaves_the_first_to_it(archive: ClassArchive) -> None:
    with archive.making() as mine:
        assert mine is not None
        other = threading.Thread(target=training.make, args=(archive, JAVA))
        other.start()
        other.join(30)
        assert not other.is_alive()
    assert archive.find() is None


def test_what_a_killed_one_left_is_removed(archive: ClassArchive) -> None:
    put(archive)
    left = archive.folder / "making-abc"
    left.mkdir()
    (left / "archive.jsa").write_bytes(b"half")
    with archive.making() as path:
        assert path is not None
        assert not left.exists()


def test_one_that_is_given_up_leaves_nothing(archive: ClassArchive) -> None:
    def give_up() -> None:
        with archive.making() as path:
            assert path is not None
            path.write_bytes(b"half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        give_up()
    assert archive.find() is None
    assert [p.name for p in archive.folder.iterdir()] == ["lock"]


def test_the_ones_used_last_are_kept(archive: ClassArchive) -> None:
    several = [replace(archive, fingerprint=f"{n:016x}") for n in range(KEPT_MAX + 2)]
    made = []
    for number, one in enumerate(several[:-1]):
        made.append(put(one))
        os.utime(made[-1], (number + 1, number + 1))
    assert several[1].find(), "it is in use"
    made.append(put(several[-1]))
    kept = {path for path in made if path.exists()}
    assert kept == {made[1], made[-2], made[-1]}


def test_a_cache_folder_that_cannot_be_written_costs_nothing(home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    archive = ClassArchive.of(JAVA, home, {"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert archive is not None
    assert archive.find() is None
    with pytest.raises(OSError, match="file"):
        training.make(archive, JAVA)


def test_what_no_java_starts_from_is_not_kept(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(java: Java, options: list[str], folder: Path) -> list[str]:
        (folder / "archive.jsa").write_bytes(b"garbage")
        return [str(find_java(os.environ).home / "bin" / "java"), *options, training.MAIN_CLASS]

    monkeypatch.setattr(training, "_train", train)
    with pytest.raises(NotMade, match="Java doesn't start from it"):
        training.make(archive, JAVA)
    assert archive.find() is None


def test_a_java_that_writes_none_is_noted(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "_train", lambda *_: ["java", training.MAIN_CLASS])
    monkeypatch.setattr(training, "find_java", lambda _: JAVA)
    monkeypatch.setattr(training, "archive_for", lambda *_: archive)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    assert training.main() == 1
    assert capsys.readouterr().err == "headgate: no class archive for Spark: this Java wrote none\n"
    assert training.main() == 0, "not again today"


# --- a router without one ----------------------------------------------------------------------


async def test_a_router_without_an_archive_has_one_made(
    archive: ClassArchive, tmp_path: Path
) -> None:
    wanted = tmp_path / "ran"
    await make_archive(archive, {}, after_s=0, command=["/bin/sh", "-c", f": > {wanted}"])
    assert wanted.exists()


async def test_a_router_with_an_archive_starts_nothing(archive: ClassArchive) -> None:
    put(archive)
    await make_archive(archive, {}, after_s=0, command=["/nowhere"])


async def test_what_makes_it_ends_with_the_router(archive: ClassArchive, tmp_path: Path) -> None:
    said = tmp_path / "pid"
    script = f"echo $$ > {said}.new; mv {said}.new {said}; exec tail -f /dev/null"
    environ = {"PATH": os.environ["PATH"]}
    making = asyncio.ensure_future(
        make_archive(archive, environ, after_s=0, command=["/bin/sh", "-c", script])
    )
    await until(said.exists)
    process = psutil.Process(int(said.read_text()))
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    await until(lambda: has_ended(process))


# --- a real Java ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def javas() -> list[Java]:
    """The one that Spark runs on here, and the one that PyPI brings."""
    return list({java.home: java for java in (find_java(os.environ), find_java({}))}.values())


def test_java_goes_on_quietly_with_what_is_no_archive(tmp_path: Path, javas: list[Java]) -> None:
    for java in javas:
        path = tmp_path / f"archive.{'aot' if java.version >= 25 else 'jsa'}"
        for content in (b"", b"garbage" * 100_000):
            path.write_bytes(content)
            done = subprocess.run(
                [java.home / "bin" / "java", *options_to_use(path), "-version"],
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout == ""
            assert "arn" not in done.stderr
