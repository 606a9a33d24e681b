"""Which settings belong to parts that aren't there yet.

Invariant: no setting does nothing in silence. A choice that only a missing part could honour is
refused (`ONLY_AVAILABLE`); a number that nothing reads yet is accepted with a warning (`NOT_YET`).
A part that arrives takes its entries out of here, in the same change.
"""

from __future__ import annotations

from collections.abc import Mapping

ONLY_AVAILABLE: Mapping[str, frozenset[str]] = {}
"""Of the values the schema knows, those that work in this version."""

NOT_YET: frozenset[str] = frozenset()
"""Settings that are checked but not read by anything yet."""
