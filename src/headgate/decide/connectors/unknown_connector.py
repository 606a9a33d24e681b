"""The answer to a request that names a connector that isn't there."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from headgate.decide.produce.unknown_topic import CLOSE, SHOWN
from headgate.errors import NotFound

SEE = "headgate connector list shows which there are"


def unknown_connector(name: str, known: Iterable[str]) -> NotFound:
    """Names the one that was probably meant."""
    shown = name[:SHOWN]
    meant = get_close_matches(shown, list(known), n=1, cutoff=CLOSE)
    advice = f"did you mean {meant[0]}?" if meant else SEE
    return NotFound(f"there is no connector {shown}; {advice}", name=shown)
