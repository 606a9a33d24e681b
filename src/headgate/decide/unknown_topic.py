"""What to say to whoever names a topic that isn't there."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from headgate.errors import UnknownTopic

SHOWN = 100
"""Characters of a name that nobody has checked."""
CLOSE = 0.6


def unknown_topic(name: str, known: Iterable[str]) -> UnknownTopic:
    shown = name[:SHOWN]
    meant = get_close_matches(shown, list(known), n=1, cutoff=CLOSE)
    advice = f"did you mean {meant[0]}?" if meant else f"create it: headgate topic create {shown}"
    return UnknownTopic(f"there is no topic {shown}; {advice}", topic=shown)
