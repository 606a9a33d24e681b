"""From the sources to one checked configuration.

Precedence: command line, environment, `.env`, file, default. Invariant: a `LoadedConfig` is
complete and consistent, and `origins` has an entry for every key. Anything else is an
`InvalidConfig` with a sentence for every mistake, each on a line of its own, that names the key,
its source and what is allowed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headgate.config.address import ENV_PREFIX, dotenv_path, read_dotenv
from headgate.config.keys import KEYS, Key, nearest
from headgate.config.origins import told_by
from headgate.config.readiness import NOT_YET, ONLY_AVAILABLE
from headgate.config.rules import broken, open_doors
from headgate.config.schema import Config
from headgate.config.sources import (
    Setting,
    Settings,
    SettingSource,
    Source,
    from_command_line,
    from_dotenv,
    from_environment,
    from_file,
)
from headgate.config.units import NotAllowed
from headgate.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The effective values, where each came from, and what a command should warn about."""

    config: Config
    origins: dict[str, SettingSource]
    warnings: list[str]


def load_config(
    *,
    command_line: Mapping[str, object] | None = None,
    config_file: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
    working_dir: Path | None = None,
) -> LoadedConfig:
    """Read every source and check the result; raises InvalidConfig.

    `command_line` maps dotted keys to values (None: not given). Without `config_file` the file is
    the one that HEADGATE_CONFIG names, if any. `working_dir` is where `.env` is looked for.
    """
    variables = os.environ if environ is None else environ
    dotenv_file = dotenv_path(working_dir)
    dotenv = read_dotenv(dotenv_file)
    file = config_file or variables.get("HEADGATE_CONFIG") or dotenv.get("HEADGATE_CONFIG")
    sources = (
        from_file(Path(file)) if file else Source({}, []),
        from_dotenv(dotenv, dotenv_file),
        from_environment(variables),
        from_command_line(command_line or {}),
    )
    settings: Settings = {}
    for source in sources:
        settings.update(source.settings)
    config, impossible = _validated(settings)
    origins = {
        name: settings[name].origin if name in settings else SettingSource("default")
        for name in KEYS
    }
    if (told := told_by(variables)) is not None:
        origins = {name: _first(one, told.get(name)) for name, one in origins.items()}
    mistakes = [*(one for source in sources for one in source.mistakes), *impossible]
    mistakes += _unavailable(config, origins)
    mistakes += _contradictions(config, origins, unsure=_names_in(mistakes))
    if mistakes:
        raise _all_of(mistakes)
    return LoadedConfig(config, origins, _warnings(config, origins))


def _first(here: SettingSource, told: SettingSource | None) -> SettingSource:
    """Where a value came from that was handed on to this process by a variable."""
    if here.kind != "environment":
        return here
    return SettingSource("default") if told is None else told


def inherited_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What other programs get from this process: its environment without Headgate's settings."""
    variables = os.environ if environ is None else environ
    return {k: v for k, v in variables.items() if not k.startswith(ENV_PREFIX)}


def environment_of(config: Config) -> dict[str, str]:
    """Variables that make another process load exactly `config`, whatever its other sources say."""
    return {key.env_name: key.text(key.of(config)) for key in KEYS.values()}


def _validated(settings: Settings) -> tuple[Config, list[InvalidConfig]]:
    """The config with every value that can be, and a mistake for each that can't, which has its
    default there."""
    values: dict[str, object] = {}
    allowed: dict[str, str] = {}
    for name, setting in settings.items():
        try:
            values[name] = KEYS[name].parse(setting.raw)
        except NotAllowed as refusal:
            allowed[name] = refusal.allowed
    try:
        config = Config.model_validate(_nested(values))
    except ValidationError as error:
        for wrong in error.errors():
            name = ".".join(str(part) for part in wrong["loc"])
            allowed[name] = KEYS[name].allowed
        possible = {name: value for name, value in values.items() if name not in allowed}
        config = Config.model_validate(_nested(possible))
    return config, [
        _impossible(KEYS[name], setting, allowed[name])
        for name, setting in settings.items()
        if name in allowed
    ]


def _nested(values: Mapping[str, object]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *sections, last = name.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return nested


def _impossible(key: Key, setting: Setting, allowed: str) -> InvalidConfig:
    raw = "empty" if setting.raw in (None, "") else repr(setting.raw)
    if key.is_secret:
        raw = "something else"  # which may hold a password all the same
    meant = nearest(str(setting.raw), key.choices)
    hint = f": did you mean {meant}?" if meant else ""
    return InvalidConfig(
        f"{key.name} is {raw[:80]} ({setting.origin}), but must be {allowed}{hint}",
        key=key.name,
        origin=str(setting.origin),
        allowed=allowed,
    )


def _unavailable(config: Config, origins: Mapping[str, SettingSource]) -> Iterator[InvalidConfig]:
    for name, available in ONLY_AVAILABLE.items():
        value = KEYS[name].text(KEYS[name].of(config))
        if value not in available:
            yield InvalidConfig(
                f"{name} {value} ({origins[name]}) isn't available in this version; "
                f"use {' or '.join(sorted(available))}",
                key=name,
                origin=str(origins[name]),
            )


def _contradictions(
    config: Config, origins: Mapping[str, SettingSource], *, unsure: AbstractSet[str]
) -> Iterator[InvalidConfig]:
    """Settings that contradict each other, but for those that are still `unsure`."""

    def shown(name: str) -> str:
        value = KEYS[name].shown(KEYS[name].of(config)) or "empty"
        return f"{name} ({value}, {origins[name]})"

    for rule in broken(config):
        if unsure.isdisjoint((rule.left, rule.right)):
            yield InvalidConfig(
                f"{shown(rule.left)} must {rule.must} {shown(rule.right)}",
                key=rule.left,
                other=rule.right,
                origin=str(origins[rule.left]),
            )


def _names_in(mistakes: list[InvalidConfig]) -> set[str]:
    """The keys that were meant by what is wrong."""
    return {str(one.details.get("suggestion") or one.details["key"]) for one in mistakes}


def _all_of(mistakes: list[InvalidConfig]) -> InvalidConfig:
    """One error for all; its details are those of the first, and all the keys."""
    first = mistakes[0]
    if len(mistakes) == 1:
        return first
    keys = [one.details["key"] for one in mistakes]
    return InvalidConfig("\n".join(map(str, mistakes)), **first.details, keys=keys)


def _warnings(config: Config, origins: Mapping[str, SettingSource]) -> list[str]:
    unused = [
        f"{name} is set to {key.shown(key.of(config))} ({origins[name]}), "
        "but nothing uses it in this version yet"
        for name, key in KEYS.items()
        if name in NOT_YET and key.of(config) != key.default
    ]
    exposed = [
        f"{door.key} is {door.host(config)} ({origins[door.key]}): everybody who reaches it may "
        f"{door.open_to_all}"
        for door in open_doors(config)
    ]
    return unused + exposed
