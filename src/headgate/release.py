"""Which release of Headgate this is."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def release() -> str:
    """Looked up once: every look reads what was installed."""
    try:
        return version("headgate")
    except PackageNotFoundError:
        return "0"
