"""Opens what connectors read, by their type. A type's library is loaded when a connector has it."""

from __future__ import annotations

from headgate.config.secrets import find_secret
from headgate.errors import OriginRefused
from headgate.model.connector import Connector
from headgate.ports.origin import Origin


def open_origin(connector: Connector) -> Origin:
    """Implements ports.origin.OpenOrigin. Raises OriginRefused where the library isn't
    installed, and InvalidRequest for settings that are wrong."""
    if connector.type == "postgresql":
        return _postgres_origin(connector)
    return _mongo_origin(connector)


def _postgres_origin(connector: Connector) -> Origin:
    try:
        from headgate.adapters.pgoutput.origin import PostgresOrigin
    except ImportError as error:
        raise OriginRefused(
            f"connector {connector.name} needs psycopg where the ingest node runs: "
            f"run pip install 'headgate[postgres]' there ({error})"
        ) from error
    return PostgresOrigin(connector.settings, name=connector.name, resolve=find_secret)


def _mongo_origin(connector: Connector) -> Origin:
    try:
        from headgate.adapters.mongo.origin import MongoOrigin
    except ImportError as error:
        raise OriginRefused(
            f"connector {connector.name} needs PyMongo where the ingest node runs: "
            f"run pip install 'headgate[mongo]' there ({error})"
        ) from error
    return MongoOrigin(connector.settings, name=connector.name, resolve=find_secret)
