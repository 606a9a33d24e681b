"""Opens what connectors read, by their type. A type's library is loaded when a connector has it."""

from __future__ import annotations

from headgate.config.secrets import find_secret
from headgate.errors import OriginRefused
from headgate.model.connector import Connector
from headgate.ports.origin import Origin


def open_origin(connector: Connector) -> Origin:
    """Implements ports.origin.OpenOrigin. Raises OriginRefused where the library isn't
    installed, and InvalidRequest for settings that are wrong."""
    try:
        from headgate.adapters.mongo.origin import MongoOrigin
    except ImportError as error:
        raise OriginRefused(
            f"connector {connector.name} needs PyMongo where the ingest node runs: "
            f"run pip install 'headgate[mongo]' there ({error})"
        ) from error
    return MongoOrigin(connector.settings, name=connector.name, resolve=find_secret)
