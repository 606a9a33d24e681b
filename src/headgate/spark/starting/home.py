"""A SPARK_HOME from which Python workers start in a fifth of the time.

Spark puts the zipped copy of PySpark in its home before everything else on the workers' path, and
Python compiles what it imports from there anew in every process, of which the first batch starts
five. The home made here is PySpark's own, entry by entry, without that copy: workers import the
PySpark that is installed beside this code, which is the one the driver runs.

Invariant: a SPARK_HOME that the user has set stays. Several processes may make the folder at once:
it gets its name when it is complete, and they all make the same.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyspark

from headgate.spark.starting.folders import shim_roots

ENTRIES = ("bin", "conf", "data", "jars", "licenses", "sbin")
"""All that a home has besides `python`, where the copy is."""


def light_home(environ: Mapping[str, str], *, roots: tuple[Path, ...] | None = None) -> Path | None:
    """The folder to use as SPARK_HOME, made below the first of `roots` that can be written; None
    where the one that is set, or PySpark's own, has to do."""
    if environ.get("SPARK_HOME"):
        return None
    whole = Path(pyspark.__file__).parent
    for root in shim_roots(environ) if roots is None else roots:
        try:
            return _make(root, whole)
        except OSError:  # this root can't be written; the next one may
            continue
    return None


def _make(root: Path, whole: Path) -> Path:
    """A home below `root`, named for what it points to."""
    targets = [whole / name for name in ENTRIES if (whole / name).exists()]
    name = hashlib.sha256("\n".join(map(str, targets)).encode()).hexdigest()[:12]
    home = root / f"headgate-spark-{name}"
    if _is_intact(home, targets):
        return home
    root.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=root))
    try:
        for target in targets:
            (made / target.name).symlink_to(target)
        made.chmod(0o755)
        _name(made, home, targets)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return home


def _name(made: Path, home: Path, targets: list[Path]) -> None:
    """One that is intact stays, also if another process made it: it may be in use."""
    try:
        made.rename(home)
    except OSError:
        if not _is_intact(home, targets):
            shutil.rmtree(home, ignore_errors=True)
            made.rename(home)


def _is_intact(home: Path, targets: list[Path]) -> bool:
    try:
        return all((home / target.name).readlink() == target for target in targets)
    except OSError:
        return False
