"""Where this package keeps what it makes once per machine or user.

Invariant: nothing here is needed. A process that finds no folder it can write does without.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """The user's own cache folder for Headgate; None when nothing says where that is."""
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "headgate"
    if environ.get("HOME"):
        return Path(environ["HOME"]) / ".cache" / "headgate"
    return None


def shim_roots(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Folders for the small files around Java and Spark, best first: the Python environment, which
    is removed with what they point to, then the user's cache."""
    cache = cache_folder(environ)
    return (Path(sys.prefix) / "share", *([cache] if cache else []))
