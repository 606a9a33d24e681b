"""Refuses every way to start a task or a thread but headgate.tasks, which notices how it ends.

`python scripts/check_tasks.py src` lists the places and fails if there is one. A task of an
`asyncio.TaskGroup` is fine: the block that it belongs to waits for it and raises what it raised.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

STARTS = {"create_task", "ensure_future"}
MAKES = {"asyncio.Task", "threading.Thread"}
INSTEAD = "start it with headgate.tasks (Crew, Helpers, start_thread), so that its end is noticed"
EXEMPT = (
    "headgate/tasks.py",  # the way itself
)


def places(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of whatever starts a task or a thread by itself."""
    tree = ast.parse(source)
    groups = {name for node in ast.walk(tree) for name in _groups(node)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute() as func) if ast.unparse(func) in MAKES:
                yield node.lineno, ast.unparse(func)
            case ast.Call(func=ast.Attribute(attr="shield"), args=[ast.Call(), *_]):
                yield node.lineno, "shield of a call"
            case ast.ClassDef(bases=bases):
                yield from (
                    (node.lineno, name) for name in map(ast.unparse, bases) if name in MAKES
                )
            case ast.Attribute(value=of, attr=name) if name in STARTS:
                if ast.unparse(of) not in groups:
                    yield node.lineno, name
            case ast.ImportFrom(module=module, names=names):
                for alias in names:
                    if alias.name in STARTS or f"{module}.{alias.name}" in MAKES:
                        yield node.lineno, alias.name


def _groups(node: ast.AST) -> Iterator[str]:
    """Task groups, by the words of the file: `async with asyncio.TaskGroup() as name`, or an
    argument of that type."""
    match node:
        case ast.withitem(
            context_expr=ast.Call(func=ast.Attribute(attr="TaskGroup")),
            optional_vars=ast.Name(id=name),
        ):
            yield name
        case ast.arg(arg=name, annotation=ast.Attribute(attr="TaskGroup")):
            yield name


def main(folders: list[str]) -> int:
    found = 0
    for folder in map(Path, folders):
        for file in sorted(folder.rglob("*.py")):
            if file.relative_to(folder).as_posix().startswith(EXEMPT):
                continue
            for line, name in sorted(places(file.read_text(encoding="utf-8"))):
                sys.stderr.write(f"{file}:{line}: {name}: {INSTEAD}\n")
                found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
