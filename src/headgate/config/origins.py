"""Where values came from, for people who look, and for processes that are started with them.

A process that another one starts gets every setting as a variable: without being told, it would say
that all of them came from there. Invariant: an origin decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import get_args

from headgate.config.keys import KEYS
from headgate.config.schema import Config
from headgate.config.sources import ORIGINS_VARIABLE, SettingSource, SourceKind
from headgate.model.settings_api import SettingInfo

DEFAULT = SettingSource("default")
CHOSEN = SettingSource("chosen at the start")


def settings_of(config: Config, origins: Mapping[str, SettingSource]) -> tuple[SettingInfo, ...]:
    """All of them, without their secrets."""
    return tuple(
        SettingInfo(name, key.shown(key.of(config)), str(origins.get(name, DEFAULT)))
        for name, key in KEYS.items()
    )


def handed_on(config: Config, origins: Mapping[str, SettingSource]) -> dict[str, str]:
    """The variable that tells a process which is started with `config` where its values came from.
    A value that isn't the default, though nobody has set it, was chosen at the start."""
    told = {}
    for name, key in KEYS.items():
        origin = origins.get(name, DEFAULT)
        if origin == DEFAULT and key.of(config) != key.default:
            origin = CHOSEN
        if origin != DEFAULT:
            told[name] = (origin.kind, origin.where)
    return {ORIGINS_VARIABLE: json.dumps(told)}


def told_by(variables: Mapping[str, str]) -> Mapping[str, SettingSource] | None:
    """Where the settings came from, as the process that started this one says; None where it says
    nothing, or nothing that can be understood."""
    try:
        told = json.loads(variables.get(ORIGINS_VARIABLE, ""))
        found = {str(name): SettingSource(kind, str(where)) for name, (kind, where) in told.items()}
    except (ValueError, TypeError, AttributeError):
        return None
    kinds = get_args(SourceKind)
    return found if all(one.kind in kinds for one in found.values()) else None
