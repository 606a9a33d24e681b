"""What docs/architecture.md says of `model`: its values are frozen."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator

import msgspec

import headgate.model


def classes() -> Iterator[type]:
    for module in pkgutil.walk_packages(headgate.model.__path__, "headgate.model."):
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, type) and one.__module__ == module.name:
                yield one


def is_frozen(one: type) -> bool:
    if issubclass(one, msgspec.Struct):
        return one.__struct_config__.frozen
    if dataclasses.is_dataclass(one):
        return bool(one.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    return True


def test_every_value_of_the_model_is_frozen() -> None:
    found = list(classes())
    assert len(found) > 50
    assert [one.__qualname__ for one in found if not is_frozen(one)] == []
