"""What a benchmark gives back, and the registry's entry for one.

Invariant: figures and ratios are flat and numbers only; a ratio is to a baseline that was measured
in the same run, on the same machine, so that it means something elsewhere too.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec


class Result(msgspec.Struct, frozen=True):
    """One object of the JSON output."""

    name: str
    conditions: dict[str, str | int | float]
    figures: dict[str, float]
    ratios: dict[str, float]


class Failed(Exception):
    """The benchmark ran, and what it saw must not be taken for a measurement."""


Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`run` takes whether to be quick (done within two minutes) and where to say how it goes."""

    name: str
    about: str
    run: Callable[[bool, Say], Coroutine[Any, Any, Result]]
