"""The files that the roles of `headgate up` log to, none of which grows for ever.

Invariant: a file that is begun anew stays the same file, because its role, and whatever that
started, holds it open. All of them append, so what they write next is at its new beginning. The
lines of the moment between the copy and the cut are lost, as with every log that is cut this way.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def former(file: Path) -> Path:
    """Where the lines are that were in `file` before it was begun anew."""
    return file.with_name(f"{file.name}.1")


def keep_small(file: Path, max_bytes: int) -> bool:
    """Begin `file` anew if it is larger; the lines that it had take the place of the former ones.

    Returns whether it did. Raises OSError where the disk is full or the folder is gone.
    """
    if file.stat().st_size <= max_bytes:
        return False
    fresh = file.with_name(f"{file.name}.moving")
    shutil.copyfile(file, fresh)
    fresh.replace(former(file))
    os.truncate(file, 0)
    return True
