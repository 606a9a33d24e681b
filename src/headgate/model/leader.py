"""The coordinator that leads, as other coordinators and clients get to know it."""

from __future__ import annotations

import msgspec


class Leader(msgspec.Struct, frozen=True):
    """A coordinator and where it answers: `url` over HTTP, `control` (host:port) over gRPC."""

    node_id: str
    url: str = ""
    control: str = ""
