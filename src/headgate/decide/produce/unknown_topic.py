"""The answer to a request that names a topic that isn't there."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from headgate.errors import NotNow, UnknownTopic
from headgate.model.topology import Topology

SHOWN = 100
"""Characters of a name that nobody has checked."""
CLOSE = 0.6
SEE = "headgate topic list shows which there are"


def check_heard(topology: Topology) -> None:
    """Raises NotNow for a gateway that was just started: a client that is told that there is no
    such topic, or nothing in any, would give up."""
    if topology.generation == 0:
        raise NotNow("this gateway has not heard from the coordinator yet; try again")


def unknown_topic(name: str, known: Iterable[str], *, is_wanted: bool = True) -> UnknownTopic:
    """Names the one that was probably meant; else says how to make it, if it `is_wanted`."""
    shown = name[:SHOWN]
    meant = get_close_matches(shown, list(known), n=1, cutoff=CLOSE)
    how = f"create it: headgate topic create {shown}" if is_wanted else SEE
    advice = f"did you mean {meant[0]}?" if meant else how
    return UnknownTopic(f"there is no topic {shown}; {advice}", topic=shown)
