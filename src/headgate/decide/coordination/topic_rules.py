"""Which topics may be created."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headgate.errors import InvalidRequest, TopicExists
from headgate.model.api import MAX_PARTITIONS, NAME_PATTERN, NAME_RULE


def check_new_topic(name: str, partitions: int, existing: Iterable[str]) -> None:
    """Raises InvalidRequest or TopicExists for what can't be a new topic."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidRequest(f"topic name {name!r} is not allowed: use {NAME_RULE}", name=name)
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidRequest(
            f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}",
            partitions=partitions,
        )
    # Names become folders, and some file systems don't tell upper from lower case.
    if twin := next((t for t in existing if t.lower() == name.lower()), None):
        raise TopicExists(f"topic {twin} exists already; choose another name", name=twin)
