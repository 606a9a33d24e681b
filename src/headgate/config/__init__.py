"""The configuration: read once at the edge, typed, and with the origin of every value.

Invariant: nothing outside this package reads the environment, `.env` or the configuration file;
what `load_config` returns has passed every check, so no other part checks a setting again.

Each name is imported from its module when it is asked for: a command that only calls a server needs
its address, and doesn't wait for the schema.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.config.address import find_token, read_token, server_url
    from headgate.config.load import (
        LoadedConfig,
        environment_of,
        inherited_environment,
        load_config,
    )
    from headgate.config.readiness import NOT_YET, ONLY_AVAILABLE
    from headgate.config.schema import Config
    from headgate.config.sources import SettingSource
else:
    _MODULES = {
        "NOT_YET": "readiness",
        "ONLY_AVAILABLE": "readiness",
        "Config": "schema",
        "LoadedConfig": "load",
        "SettingSource": "sources",
        "environment_of": "load",
        "find_token": "address",
        "inherited_environment": "load",
        "load_config": "load",
        "read_token": "address",
        "server_url": "address",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


__all__ = [
    "NOT_YET",
    "ONLY_AVAILABLE",
    "Config",
    "LoadedConfig",
    "SettingSource",
    "environment_of",
    "find_token",
    "inherited_environment",
    "load_config",
    "read_token",
    "server_url",
]
