"""The stored state as separate elements, for stores that write what changed and nothing else.

A scalar field is one element; a field of several values is one element per value, named by what
tells it apart from the others: a text by itself, a struct by its first field (a topic's name, an
owner's partition, a node's id). A new field of StoredState needs nothing here.

Invariant: `assembled(elements(state))` is `state`, with the values of each field in the order of
their names; order carries no meaning in a stored state. Whatever subset of a change was written,
the elements assemble to a state. Names are paths whose parts hold no slash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

import msgspec

from headgate.errors import StorageFailed
from headgate.model.stored import StoredState

_encode = msgspec.json.Encoder().encode


def _is_many(kind: Any) -> bool:
    return get_origin(kind) is tuple


_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    field.name: msgspec.json.Decoder(
        get_args(field.type)[0] if _is_many(field.type) else field.type
    )
    for field in msgspec.structs.fields(StoredState)
}
"""Per field what reads one element of it, in the order in which fields are written."""
_MANY = frozenset(f.name for f in msgspec.structs.fields(StoredState) if _is_many(f.type))


def elements(state: StoredState) -> dict[str, bytes]:
    """Every element of `state` by its name."""
    return changed_elements(None, state)  # type: ignore[return-value]  # nothing to remove


def changed_elements(before: StoredState | None, after: StoredState) -> dict[str, bytes | None]:
    """What leads from `before` (None: from nothing) to `after`; None where an element goes.

    In the order of the fields, so that a topic is there before its partitions have owners. Costs
    a comparison per element, and names and encodes only what differs.
    """
    changes: dict[str, bytes | None] = {}
    for field in _DECODERS:
        new = getattr(after, field)
        if field not in _MANY:
            if before is None or getattr(before, field) != new:
                changes[field] = _encode(new)
            continue
        old = () if before is None else getattr(before, field)
        gone, come = (_by_name(field, values) for values in _differing(old, new))
        changes.update((name, None) for name in gone if name not in come)
        changes.update((n, _encode(value)) for n, value in come.items() if gone.get(n) != value)
    return changes


def assembled(found: Mapping[str, bytes]) -> StoredState:
    """The state that `found` makes up; elements of fields that don't exist (any more) are left out.

    Raises StorageFailed when one can't be read.
    """
    fields: dict[str, Any] = {name: [] for name in _MANY}
    for name, content in found.items():
        field = field_of(name)
        if field in _MANY:
            fields[field].append(_decoded(name, content))
        elif field in _DECODERS:
            fields[field] = _decoded(name, content)
    for field in _MANY:
        fields[field] = tuple(sorted(fields[field], key=_identity))
    return StoredState(**fields)


def field_of(name: str) -> str:
    return name.partition("/")[0]


def _decoded(name: str, content: bytes) -> Any:
    try:
        return _DECODERS[field_of(name)].decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StorageFailed(
            f"the stored element {name} is damaged ({error}); restore it from a copy", element=name
        ) from error


def _differing(old: Sequence[Any], new: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Both without what they begin and end with in common: next to nothing after one change."""
    if old is new:
        return (), ()
    shorter = min(len(old), len(new))
    start = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    rest = shorter - start
    end = next((i for i in range(rest) if old[-1 - i] != new[-1 - i]), rest)
    return old[start : len(old) - end], new[start : len(new) - end]


def _by_name(field: str, values: Sequence[Any]) -> dict[str, Any]:
    named = {f"{field}/{_path(_identity(value))}": value for value in values}
    if len(named) != len(values):
        raise ValueError(f"two of the state's {field} have the same name")
    return named


def _identity(value: Any) -> Any:
    """The key that tells a value apart from the others in its field."""
    if isinstance(value, msgspec.Struct):
        return getattr(value, value.__struct_fields__[0])
    return value


def _path(identity: Any) -> str:
    if isinstance(identity, msgspec.Struct):
        return "/".join(_path(part) for part in msgspec.structs.astuple(identity))
    return str(identity).replace("%", "%25").replace("/", "%2F")
