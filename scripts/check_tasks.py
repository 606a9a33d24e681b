"""Refuses what must come from one place: tasks and threads, and what a machine gives.

`python scripts/check_tasks.py src` lists the places and fails if there is one.

- A task or a thread is started with headgate.tasks, which notices how it ends. A task of an
  `asyncio.TaskGroup` is fine, too: the block that it belongs to waits for it and raises what it
  raised.
- Lanes, services and clients take time, chance, the process's number and other threads from
  headgate.ports.machine, so that they run on a scripted one. The event loop's own clock and timers
  are fine.
- What is decided, known or needed asks no machine at all: it is given a time as an argument. And
  none of all these opens a file; what is stored has a port.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Place = tuple[int, str]

STARTS = {"create_task", "ensure_future"}
MAKES = {"asyncio.Task", "threading.Thread"}

SOURCES = {"random", "secrets", "time", "uuid"}
"""Modules that are nothing but clocks and chance."""
GIVES = {
    "asyncio.to_thread",
    "concurrent.futures.ProcessPoolExecutor",
    "concurrent.futures.ThreadPoolExecutor",
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "os.getpid",
    "os.getrandom",
    "os.times",
    "os.urandom",
}
OFFLOADS = {"run_in_executor"}


def tasks(tree: ast.Module) -> Iterator[Place]:
    """Line and name of whatever starts a task or a thread by itself."""
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


def machine(tree: ast.Module) -> Iterator[Place]:
    """Line and name of whatever asks the machine by itself."""
    known = dict(name for node in ast.walk(tree) for name in _imported(node))
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                for _, full in _imported(node):
                    if full.partition(".")[0] in SOURCES or full in GIVES:
                        yield node.lineno, full
            case ast.Attribute(attr=name) if name in OFFLOADS:
                yield node.lineno, name
            case ast.Attribute():
                first, _, rest = ast.unparse(node).partition(".")
                full = f"{known.get(first, first)}.{rest}"
                if full in GIVES:
                    yield node.lineno, full


def files(tree: ast.Module) -> Iterator[Place]:
    """Line and name of whatever opens a file; import contracts keep out what else could."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name("open")):
                yield node.lineno, "open"


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What the file calls it, and what it is."""
    match node:
        case ast.Import(names=names):
            for alias in names:
                first = alias.name.partition(".")[0]  # all that is bound without `as`
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        case ast.ImportFrom(module=str(module), names=names):
            for alias in names:
                yield alias.asname or alias.name, f"{module}.{alias.name}"


@dataclass(frozen=True, slots=True)
class Rule:
    """`where` are the beginnings of paths it is for, `but` those that may."""

    places: Callable[[ast.Module], Iterator[Place]]
    instead: str
    where: tuple[str, ...]
    but: tuple[str, ...] = ()

    def concerns(self, path: str) -> bool:
        return path.startswith(self.where) and not path.startswith(self.but)


PURE = ("headgate/decide/", "headgate/model/", "headgate/ports/")
SHELLS = ("headgate/lane/", "headgate/services/", "headgate/client/")
RULES = (
    Rule(
        tasks,
        "start it with headgate.tasks (Crew, Helpers, start_thread), so that its end is noticed",
        where=("",),
        but=("headgate/tasks.py",),  # the way itself
    ),
    Rule(
        machine,
        "take it from headgate.ports.machine, which comes as an argument",
        where=SHELLS,
        but=("headgate/services/supervisor.py",),  # whose work is this machine's processes
    ),
    Rule(machine, "take what it says as an argument", where=PURE),
    Rule(files, "take a port, or what is in the file", where=(*PURE, *SHELLS)),
)


def main(folders: list[str]) -> int:
    found = 0
    for folder in map(Path, folders):
        for file in sorted(folder.rglob("*.py")):
            path = file.relative_to(folder).as_posix()
            tree = ast.parse(file.read_text(encoding="utf-8"))
            for rule in RULES:
                if rule.concerns(path):
                    for line, name in sorted(rule.places(tree)):
                        sys.stderr.write(f"{file}:{line}: {name}: {rule.instead}\n")
                        found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
