"""The configuration: read once at the edge, typed, and with the origin of every value.

Invariant: nothing outside this package reads the environment, `.env` or the configuration file;
what `load_config` returns has passed every check, so no other part checks a setting again.
"""

from headgate.config.load import (
    LoadedConfig,
    environment_of,
    inherited_environment,
    load_config,
    server_url,
)
from headgate.config.readiness import NOT_YET, ONLY_AVAILABLE
from headgate.config.schema import Config
from headgate.config.sources import Origin

__all__ = [
    "NOT_YET",
    "ONLY_AVAILABLE",
    "Config",
    "LoadedConfig",
    "Origin",
    "environment_of",
    "inherited_environment",
    "load_config",
    "server_url",
]
