"""A fault of the program itself, at any line of any decision.

Whatever a decision calls is part of it: its own module, the tables it changes, the planner. Where
the fault strikes is up to the test; that it may strike anywhere is the point. But for the copying
itself (drafts.py), which ends with assignments that nothing can interrupt.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import headgate.decide.coordination
import headgate.decide.planning
from headgate.decide.coordination import drafts

FOLDERS = tuple(
    str(Path(package.__file__).parent)
    for package in (headgate.decide.coordination, headgate.decide.planning)
    if package.__file__ is not None
)


@cache
def _may_strike(file: str) -> bool:
    return file.startswith(FOLDERS) and file != drafts.__file__


class Fault(Exception):
    """Raised where none of the program's authors expected anything."""


class Faults:
    """`left` is how many more lines the decisions within `deciding` execute before one of them
    raises; None: none will. `struck` counts those that did."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.struck = 0

    @contextmanager
    def deciding(self) -> Iterator[None]:
        if self.left is None:
            yield
            return
        before = sys.gettrace()
        sys.settrace(self._entered)
        try:
            yield
        finally:
            sys.settrace(before)

    def _entered(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self._executed if _may_strike(frame.f_code.co_filename) else None

    def _executed(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.left = None
                self.struck += 1
                raise Fault(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return self._executed
