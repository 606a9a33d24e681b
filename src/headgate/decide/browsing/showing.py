"""What people are shown of a record: all of it, but for values that the configuration masks.

Invariant: whatever is shown, matched or looked for here is the record as it is shown. So a filter
that asks for a masked value finds out nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from headgate.decide.connectors.whole_collection import concerned
from headgate.decide.delivery.gaps import is_marker
from headgate.decide.filter.plan import Filter
from headgate.decide.filter.record_fields import KEY_FIELD, with_record_fields
from headgate.decide.produce.headers import decoded
from headgate.model.browse_api import MASKED, BrowsedRecord
from headgate.model.event import UNDECODABLE, WHOLE_COLLECTION, Record

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Masks:
    """`paths` are dotted; a list on the way stands for each of its elements. `_key` is the record's
    key."""

    def __init__(self, paths: Sequence[str] = ()) -> None:
        self._paths = {path: tuple(path.split(".")) for path in paths}

    def masked(self, record: Record) -> tuple[Record, list[str]]:
        """The record as it may be shown, and the paths that aren't."""
        if not self._paths:
            return record, []
        names: set[str] = set()
        document = self._without(record.document, names)
        earlier = None if record.earlier is None else self._without(record.earlier, names)
        shown = replace(record, document=document, earlier=earlier)
        if KEY_FIELD in self._paths and record.key is not None:
            shown = replace(shown, key=MASKED)
            names.add(KEY_FIELD)
        return shown, sorted(names)

    def _without(self, raw: bytes, names: set[str]) -> bytes:
        try:
            document = _decode(raw)
        except UNDECODABLE:
            # The document has a number that can't be represented, so its fields can't be told
            # apart.
            names.update(self._paths)
            return _encode(MASKED)
        found = {path for path, steps in self._paths.items() if _hide(document, steps)}
        names |= found
        return _encode(document) if found else raw


def _hide(value: object, steps: tuple[str, ...]) -> bool:
    """Whether there was anything to hide; changes `value`."""
    if type(value) is list:
        hidden = [_hide(element, steps) for element in value]  # each of them, not up to the first
        return any(hidden)
    if type(value) is not dict or steps[0] not in value:
        return False
    if len(steps) > 1:
        return _hide(value[steps[0]], steps[1:])
    value[steps[0]] = MASKED
    return True


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which of the records, as they are shown, the reader looks for. A marker, or a record about a
    whole collection that the filter doesn't exclude, is always wanted where no key is."""

    matches: Filter
    key: str | None = None
    collection: str | None = None

    def verdict(self, shown: Record) -> bool | None:
        """None where the filter failed."""
        if self.key is not None and shown.key != self.key:
            return False
        if is_marker(shown):
            return True
        if shown.op in WHOLE_COLLECTION:
            about = concerned(shown)
            is_of_it = self.collection is None or self.collection in about
            return is_of_it and not self.matches.excludes(*about)
        if self.collection is not None and shown.collection != self.collection:
            return False
        if self.matches.expression is None:
            return True
        try:
            document = _decode(shown.document)
        except UNDECODABLE:
            return None
        return self.matches.evaluate(with_record_fields(document, shown.key, shown.collection))


def described(shown: Record, masked: list[str]) -> BrowsedRecord:
    return BrowsedRecord(
        partition=shown.partition,
        seq=shown.seq,
        version=shown.version,
        event_id=shown.event_id,
        op=shown.op,
        time_ms=shown.time_ms,
        size_bytes=len(shown.document),
        document=msgspec.Raw(shown.document),
        key=shown.key,
        collection=shown.collection,
        headers=decoded(shown.headers),
        earlier=msgspec.UNSET if shown.earlier is None else msgspec.Raw(shown.earlier),
        source=shown.source,
        masked=masked,
    )
