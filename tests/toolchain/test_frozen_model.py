"""What docs/architecture.md says of `model`: its values are frozen."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

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


def assigned_later(tree: ast.Module) -> Iterator[str]:
    """Attributes of `self` that are assigned once it is made, whatever kind of class it is."""
    for method in ast.walk(tree):
        if not isinstance(method, ast.FunctionDef) or method.name == "__init__":
            continue
        for node in ast.walk(method):
            match node:
                case ast.Attribute(ast.Name("self"), attribute, ast.Store() | ast.Del()):
                    yield f"{method.name}: {attribute}"


def test_no_field_of_the_model_is_assigned_anew() -> None:
    files = Path(headgate.model.__path__[0]).rglob("*.py")
    found = {file.name: list(assigned_later(ast.parse(file.read_text()))) for file in files}
    assert len(found) > 20
    assert {name: places for name, places in found.items() if places} == {}
