"""What all messages between the coordinator and its nodes are, one stream per node.

One mechanism carries everything that must be the same everywhere: versioned state is pushed,
applied, then acknowledged. Topologies have a generation, subscriptions a revision; both only grow,
and a receiver ignores what is older than what it has.
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all control messages; the tag is the class name."""
