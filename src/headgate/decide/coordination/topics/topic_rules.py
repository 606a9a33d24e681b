"""Which topics may be created."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headgate.errors import HeadgateError, InvalidRequest, TopicExists
from headgate.model.api import MAX_PARTITIONS, NAME_PATTERN, NAME_RULE


def refusal(name: str, partitions: int, existing: Iterable[str] = ()) -> HeadgateError | None:
    """Why there can't be such a new topic; None when there can."""
    if not re.fullmatch(NAME_PATTERN, name):
        return InvalidRequest(
            f"topic name {name[:200]!r} is not allowed: use {NAME_RULE}", name=name
        )
    if not 1 <= partitions <= MAX_PARTITIONS:
        return InvalidRequest(
            f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}",
            partitions=partitions,
        )
    # Names become folders, and some file systems don't tell upper from lower case.
    if twin := next((t for t in existing if t.lower() == name.lower()), None):
        return TopicExists(
            f"topic {twin} exists already: use it (`headgate topic describe {twin}`), or choose "
            "another name",
            name=twin,
        )
    return None
