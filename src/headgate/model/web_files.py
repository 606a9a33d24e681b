"""The files that browsers fetch from a gateway, as values.

Invariant: a file never changes while a process runs, so its ETag is as good as its content.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class WebFile(msgspec.Struct, frozen=True):
    content: bytes
    media_type: str
    etag: str


WebFiles = Mapping[str, WebFile]
"""By path below the package's folder: `index.html`, `lib/table.js`."""
