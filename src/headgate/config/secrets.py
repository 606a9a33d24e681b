"""Secrets that others name: a variable of this process's environment, or a file on its machine.

Invariant: what is found is never part of an error, and is read anew each time, so that a secret
that was changed is taken up by the next connection.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from headgate.errors import InvalidConfig

FILE = "file:"


def find_secret(reference: str, *, environ: Mapping[str, str] | None = None) -> str:
    """What stands for `NAME` or `file:PATH`; a file's last line end isn't part of it. Raises
    InvalidConfig."""
    if reference.startswith(FILE):
        return _from_file(Path(reference.removeprefix(FILE)))
    value = (os.environ if environ is None else environ).get(reference)
    if not value:
        raise InvalidConfig(
            f"the environment of this process has no {reference}: set it where the process is "
            "started, and start it again",
            key=reference,
        )
    return value


def _from_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InvalidConfig(
            f"the file {path}, which a secret shall be in, can't be read: {reason}", key=str(path)
        ) from None
