"""The answer of GET /v1/settings: what a node runs with, and where each value came from.

Invariant: no value here holds a secret; it is shown as `headgate config show` shows it.
"""

from __future__ import annotations

import msgspec


class SettingInfo(msgspec.Struct, frozen=True):
    """`origin` is `default`, or names the file, the variable or whatever else has set it."""

    key: str
    value: str
    origin: str


class NodeSettings(msgspec.Struct, frozen=True):
    node: str
    role: str
    settings: tuple[SettingInfo, ...]
