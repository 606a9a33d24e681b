"""How fast a snapshot may read: a setting of its connector, of any type."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.errors import InvalidRequest

SETTING = "snapshot_rows_per_s"
MOST = 10_000_000


def rows_per_s(settings: Mapping[str, str]) -> int | None:
    """None: as fast as it goes. Raises InvalidRequest."""
    text = settings.get(SETTING, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text[:9]) >= 1 and int(text) <= MOST):
        raise InvalidRequest(
            f"the setting {SETTING} must be a number of rows, from 1 to {MOST:,}, or be left out",
            key=SETTING,
        )
    return int(text)
