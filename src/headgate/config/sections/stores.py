"""Where records, positions and the coordinator's state are kept, and for how long."""

from __future__ import annotations

from typing import Annotated, Literal

from headgate.config.sections.section import Section
from headgate.config.units import seconds, size_bytes
from headgate.config.value_types import (
    Duration,
    EtcdEndpoints,
    KeyPrefix,
    MongoDatabase,
    MongoUrl,
    Secret,
    Size,
    Wording,
)


class RetentionSettings(Section):
    max_age: Duration = seconds("7d")
    """Age from which on records are dropped."""
    max_size: Size = size_bytes("10GiB")
    """Size of a partition's records above which the oldest are dropped."""
    past_settled: bool = False
    """Drop also what no router has settled yet; false keeps it, whatever its age and size."""
    every: Duration = seconds("1m")
    """Time between two looks for what can be dropped."""


class LogSettings(Section):
    backend: Literal["embedded", "postgresql"] = "embedded"
    """Where records are kept: in files of the data folder, or in PostgreSQL."""
    dsn: Annotated[str, Secret(), Wording("the address of a PostgreSQL database")] = ""
    """Address of the database, as postgresql://user@host/database (for PostgreSQL only)."""
    retention: RetentionSettings = RetentionSettings()


class EtcdSettings(Section):
    endpoints: EtcdEndpoints = ""
    """Addresses of the cluster's members for clients, with commas in between."""
    prefix: KeyPrefix = "/headgate"
    """Beginning of every key; clusters of Headgate that share an etcd need one each."""
    user: str = ""
    """User, where etcd asks for one (empty: none)."""
    password: Annotated[str, Secret(whole=True), Wording("the user's password")] = ""
    """Its password."""


class MongoSettings(Section):
    url: MongoUrl = ""
    """Address of a replica set, as mongodb://user@host,host2/?replicaSet=name."""
    database: MongoDatabase = "headgate"
    """Database; clusters of Headgate that share a MongoDB need one each."""
