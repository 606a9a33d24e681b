"""Every setting there is: its name, type, bounds, default and meaning.

Its sections are in sections/, what a value may be is in value_types.py.

Invariant: the models are immutable and refuse what they don't know; a value inside them is already
in the unit the code works with (seconds, bytes). What several fields must agree on is in rules.py.
The docstring below a field is its documentation, wherever it is shown.
"""

from __future__ import annotations

from pathlib import Path

from headgate.config.sections.delivery import RoutingSettings, TransportSettings
from headgate.config.sections.reliability import ReliabilitySettings
from headgate.config.sections.roles import (
    CoordinatorSettings,
    GatewaySettings,
    IngestSettings,
    PublicSettings,
    RouterSettings,
)
from headgate.config.sections.section import Section
from headgate.config.sections.security import SecuritySettings
from headgate.config.sections.showing import DemoSettings, EvidenceSettings, UiSettings
from headgate.config.sections.stores import EtcdSettings, LogSettings, MongoSettings
from headgate.config.sections.subscribing import ConsumersSettings, SubscriptionsSettings
from headgate.config.units import size_bytes
from headgate.config.value_types import LogLevel, NodeName, Size


class Config(Section):
    """The whole configuration; `Config()` is the one without any setting changed."""

    log_level: LogLevel = "info"
    """Least important level that is logged."""
    client_id: NodeName = ""
    """Stable name of this node, so that it keeps its partitions (empty: made up at start)."""
    data: Path = Path("headgate-data")
    """Folder of the log, the positions and the coordinator's state."""
    log_file_size: Size = size_bytes("16MiB")
    """Size above which `headgate up` begins a role's log file anew; the former one is kept."""
    insecure: bool = False
    """Listen also where others than this machine reach a role that nothing guards, and may do
    whatever it does."""
    public: PublicSettings = PublicSettings()
    coordinator: CoordinatorSettings = CoordinatorSettings()
    ingest: IngestSettings = IngestSettings()
    log: LogSettings = LogSettings()
    etcd: EtcdSettings = EtcdSettings()
    mongo: MongoSettings = MongoSettings()
    router: RouterSettings = RouterSettings()
    gateway: GatewaySettings = GatewaySettings()
    transport: TransportSettings = TransportSettings()
    security: SecuritySettings = SecuritySettings()
    subscriptions: SubscriptionsSettings = SubscriptionsSettings()
    ui: UiSettings = UiSettings()
    evidence: EvidenceSettings = EvidenceSettings()
    consumers: ConsumersSettings = ConsumersSettings()
    demo: DemoSettings = DemoSettings()
    routing: RoutingSettings = RoutingSettings()
    reliability: ReliabilitySettings = ReliabilitySettings()
