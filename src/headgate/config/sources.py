"""Where settings come from, each source as a flat mapping from dotted key to raw value.

Invariant: the settings of a source name existing keys only; for anything else that it holds it has
a mistake, with the sentence that says what was meant. Values are still as they were written. Only
what can't be read at all is refused here, since nobody knows what else is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from headgate.config.address import ENV_PREFIX, text_of
from headgate.config.keys import KEYS, SECTIONS, nearest_key
from headgate.errors import InvalidConfig

ORIGINS_VARIABLE = "HEADGATE_ORIGINS"
NON_KEYS: frozenset[str] = frozenset(
    {"HEADGATE_CONFIG", "HEADGATE_URL", "HEADGATE_TOKEN", "HEADGATE_TOKEN_FILE", ORIGINS_VARIABLE}
)
"""Variables with our prefix that aren't settings: which file to read, which server to call, and
where a process that was started by another one has its settings from."""

SourceKind = Literal[
    "default", "file", ".env", "environment", "command line", "chosen at the start"
]


@dataclass(frozen=True, slots=True)
class SettingSource:
    """Where a value came from; `where` is the file or the variable's name."""

    kind: SourceKind
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}" if self.kind in ("file", "environment") else self.kind


@dataclass(frozen=True, slots=True)
class Setting:
    """A value as it was written, and where."""

    raw: object
    origin: SettingSource


Settings = dict[str, Setting]


@dataclass(frozen=True, slots=True)
class Source:
    """The settings of one source, and what is wrong with how they are written."""

    settings: Settings
    mistakes: list[InvalidConfig]


def _sorted_out(found: Iterable[tuple[str, Setting] | InvalidConfig]) -> Source:
    source = Source({}, [])
    for one in found:
        if isinstance(one, InvalidConfig):
            source.mistakes.append(one)
        else:
            name, setting = one
            source.settings[name] = setting
    return source


def unknown_key(name: str, origin: SettingSource) -> InvalidConfig:
    """The sentence for a name that is no key: a section, a misspelling or something else."""
    meant = nearest_key(name)
    if name in SECTIONS:
        example = _written(next(key for key in KEYS if key.startswith(f"{name}.")), origin)
        sentence = f"{name} is a section, not a value ({origin}): set its keys, such as {example}"
    elif meant is None:
        sentence = f"unknown key {name} ({origin}): `headgate config show` lists every key"
    elif meant == name and origin.kind == "file":
        sentence = f"{name} must be written as nested keys ({origin})"
    else:
        sentence = f"unknown key {name} ({origin}): did you mean {_written(meant, origin)}?"
    return InvalidConfig(sentence, key=name, origin=str(origin), suggestion=meant)


def _written(name: str, origin: SettingSource) -> str:
    by_variable = origin.kind in ("environment", ".env")
    return ENV_PREFIX + name.upper().replace(".", "__") if by_variable else name


def from_command_line(values: Mapping[str, object]) -> Source:
    """Options as {dotted key: value}; None means that the option wasn't given."""
    origin = SettingSource("command line")
    return _sorted_out(
        (name, Setting(value, origin)) if name in KEYS else unknown_key(name, origin)
        for name, value in values.items()
        if value is not None or name not in KEYS
    )


def from_environment(variables: Mapping[str, str]) -> Source:
    return _sorted_out(_from_variables(variables.items(), dotenv=None))


def from_dotenv(variables: Mapping[str, str], path: Path) -> Source:
    """The entries of a `.env` that bear our prefix; the others belong to somebody else."""
    return _sorted_out(_from_variables(variables.items(), dotenv=path))


def _from_variables(
    variables: Iterable[tuple[str, str]], *, dotenv: Path | None
) -> Iterator[tuple[str, Setting] | InvalidConfig]:
    by_name = {key.env_name: key for key in KEYS.values()}
    for variable, raw in sorted(variables):
        # Any spelling of the prefix is meant for us; only the documented one is taken.
        if not variable.upper().startswith(ENV_PREFIX) or variable in NON_KEYS:
            continue
        origin = (
            SettingSource("environment", variable)
            if dotenv is None
            else SettingSource(".env", str(dotenv))
        )
        if variable in by_name:
            yield by_name[variable].name, Setting(raw, origin)
        else:
            yield unknown_key(variable[len(ENV_PREFIX) :].lower().replace("__", "."), origin)


def yaml_of(path: Path) -> Any:
    """What the YAML file at `path` says, which must exist; no key is given twice in it."""
    try:
        # S506: the loader is a SafeLoader.
        return yaml.load(text_of(path), Loader=_UniqueKeys)  # noqa: S506
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it can't be parsed"
        raise InvalidConfig(f"{path} is not valid YAML{line}: {problem}") from error


def from_file(path: Path) -> Source:
    """The YAML file at `path`, which must exist."""
    content = yaml_of(path)
    if content is None:
        return Source({}, [])
    if not isinstance(content, dict):
        raise InvalidConfig(f"{path} must hold keys and values, such as log_level: info")
    return _sorted_out(_flatten(content, "", SettingSource("file", str(path))))


def _flatten(
    content: Mapping[object, object], prefix: str, origin: SettingSource
) -> Iterator[tuple[str, Setting] | InvalidConfig]:
    for part, raw in content.items():
        name = f"{prefix}{part}"
        if name in SECTIONS and raw is None:
            continue  # a heading whose keys are all commented out
        if name in SECTIONS and isinstance(raw, dict) and "." not in str(part):
            yield from _flatten(raw, f"{name}.", origin)
        elif name in KEYS and "." not in str(part):
            yield name, Setting(raw, origin)
        else:
            yield unknown_key(name, origin)


class _UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML ships no types
    """Refuses a key that is given twice, of which YAML would silently take the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            name = str(key_node.value)
            if name in seen and key_node.tag != "tag:yaml.org,2002:merge":
                raise yaml.MarkedYAMLError(
                    problem=f"{name} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(name)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping
