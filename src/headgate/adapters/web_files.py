"""The web files that the package brings along, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from headgate.decide.http.web_files import MEDIA_TYPES, web_file
from headgate.model.web_files import WebFiles

FOLDER = Path(__file__).parents[1] / "ui"


@cache
def packaged_files() -> WebFiles:
    """By their paths below `ui/`."""
    return {
        (name := file.relative_to(FOLDER).as_posix()): web_file(name, file.read_bytes())
        for file in sorted(FOLDER.rglob("*"))
        if file.suffix in MEDIA_TYPES
    }
