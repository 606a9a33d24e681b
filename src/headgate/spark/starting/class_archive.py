"""The archive of the classes that Spark's Java loads, from which it starts in half the time.

One file per Java, PySpark and class path, in the user's cache folder; `training` makes it. Its name
says what it was made for and how long it is.

Invariant: an archive never keeps Spark from starting. What isn't whole, is another user's or was
made for other jars isn't used, and Java is told to check the rest and to go on without it, quietly.
A whole archive gets its name in one step, and of the older ones only a few are kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headgate.spark.starting.folders import cache_folder
from headgate.spark.starting.java import Java

KEPT_MAX = 3
"""Archives of about 170 MB each: several checkouts or Javas, but not all there ever were."""
FAILED_FOR_S = 86_400.0
"""A Java that can't make one isn't asked again for so long."""
AOT_VERSION = 25
"""From here on Java makes caches that hold more, and needs no archive of its own below them."""
JAVA_OPTIONS_FROM = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Variables that Java itself reads."""

_LAYOUT = re.compile(r"-XX:[+-]?(?:Use(?:Z|Shenandoah|Epsilon)GC|UseCompressed\w+|ObjectAlign\S+)")
"""Options by which objects look different in memory, so that an archive fits no other."""

Kind = Literal["jsa", "aot"]


def kind_for(java: Java) -> Kind:
    return "aot" if java.version >= AOT_VERSION else "jsa"


def options_to_use(path: Path) -> list[str]:
    """For a Java that starts from the archive at `path`: it looks at every byte first (0.2 s), and
    where it doesn't like it says nothing and starts as it would without."""
    if path.suffix == ".aot":
        chosen = [f"-XX:AOTCache={path}", "-Xlog:aot*=off"]
    else:
        chosen = [f"-XX:SharedArchiveFile={path}", "-Xshare:auto"]
    return [*chosen, "-XX:+VerifySharedSpaces", "-Xlog:cds*=off"]


def options_to_make(path: Path) -> list[str]:
    """For a Java that writes the archive when it ends, which takes it another ten seconds."""
    if path.suffix == ".aot":
        return [f"-XX:AOTCacheOutput={path}", "-Xlog:aot*=off", "-Xlog:cds*=off"]
    return [f"-XX:ArchiveClassesAtExit={path}", "-Xlog:cds*=off"]


def options_to_insist(path: Path) -> list[str]:
    """For a Java that fails if it can't use the archive."""
    insist = "-XX:AOTMode=on" if path.suffix == ".aot" else "-Xshare:on"
    return [*(one for one in options_to_use(path) if not one.startswith("-Xshare")), insist]


def fingerprint(java: Java, home: Path, environ: Mapping[str, str]) -> str:
    """What an archive fits: this build of Java, these jars at this place, this layout in memory."""
    given = " ".join(environ.get(name, "") for name in JAVA_OPTIONS_FROM)
    facts = [str(java.home), java.build, str(home), *sorted(_LAYOUT.findall(given))]
    for jar in sorted((home / "jars").glob("*.jar")):
        status = jar.stat()
        facts.append(f"{jar.name} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java and one Spark home, whether or not it is there."""

    folder: Path
    fingerprint: str
    kind: Kind

    @classmethod
    def of(cls, java: Java, home: Path, environ: Mapping[str, str]) -> ClassArchive | None:
        """None when there is nowhere to keep it, or nothing to make it of."""
        folder = cache_folder(environ)
        try:
            print_ = fingerprint(java, home, environ)
        except OSError:  # a jar went away just now
            return None
        return None if folder is None else cls(folder / "classes", print_, kind_for(java))

    def find(self) -> Path | None:
        """The archive, if it is there, whole and ours; it is then the last to be tidied away."""
        for path in self._candidates():
            if _is_whole(path) and _is_ours(self.folder) and _is_ours(path):
                with contextlib.suppress(OSError):
                    os.utime(path)
                return path
        return None

    def distrust(self) -> None:
        """Java didn't start with it: nobody shall try again."""
        for path in self._candidates():
            path.unlink(missing_ok=True)

    def is_wanted(self) -> bool:
        """There is no archive, and no failure of late says that it can't be made."""
        return self.find() is None and not self._failed_lately()

    @contextlib.contextmanager
    def making(self) -> Iterator[Path | None]:
        """A path to write the archive to, for one process of this user at a time; None for all
        others. What a process that died while it was writing has left is removed."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield None
                return
            for left in self.folder.glob("making-*"):
                shutil.rmtree(left, ignore_errors=True)
            workshop = Path(tempfile.mkdtemp(prefix="making-", dir=self.folder))
            try:
                yield workshop / f"archive.{self.kind}"
            finally:
                shutil.rmtree(workshop, ignore_errors=True)

    def keep(self, made: Path) -> Path:
        """Give the file its name, once it is on disk; the oldest of the others go."""
        made.chmod(0o400)
        with made.open("rb") as file:
            os.fsync(file.fileno())
            size_bytes = os.fstat(file.fileno()).st_size
        target = self.folder / f"spark-{self.fingerprint}-{size_bytes}.{self.kind}"
        made.replace(target)
        self.tidy()
        return target

    def note_failure(self, reason: str) -> None:
        with contextlib.suppress(OSError):
            self._failure.write_text(reason + "\n")

    def tidy(self) -> None:
        """Keep the KEPT_MAX that were used last, and no note that has had its time."""
        archives = sorted(self.folder.glob("spark-*-*.*"), key=_age_s)
        for path in [p for p in archives if p.suffix in (".jsa", ".aot")][KEPT_MAX:]:
            path.unlink(missing_ok=True)
        for note in self.folder.glob("spark-*.failed"):
            if _age_s(note) > FAILED_FOR_S:
                note.unlink(missing_ok=True)

    @property
    def _failure(self) -> Path:
        return self.folder / f"spark-{self.fingerprint}.failed"

    def _failed_lately(self) -> bool:
        return _age_s(self._failure) <= FAILED_FOR_S

    def _candidates(self) -> list[Path]:
        return sorted(self.folder.glob(f"spark-{self.fingerprint}-*.{self.kind}"))


def _is_whole(path: Path) -> bool:
    """It is as long as its name says. Java may crash on a file that is shorter."""
    try:
        return path.stem.rpartition("-")[2] == str(path.stat().st_size)
    except OSError:
        return False


def _is_ours(path: Path) -> bool:
    """Nobody else can have put code in there."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _age_s(path: Path) -> float:
    """Seconds since it was made or used; endless when it isn't there."""
    try:
        return max(time.time() - path.stat().st_mtime, 0.0)
    except OSError:
        return float("inf")
