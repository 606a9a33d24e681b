"""All roles on one machine: their ports, and the processes the supervisor starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.machine import THIS_MACHINE
from headgate.adapters.processes import free_port, is_port_free
from headgate.config import Config, SettingSource, environment_of, inherited_environment
from headgate.config.keys import KEYS
from headgate.config.origins import handed_on
from headgate.errors import PortInUse
from headgate.services.supervisor import RoleCommand, Supervisor


def plan_ports(config: Config, origins: Mapping[str, SettingSource]) -> Config:
    """`config` with every port decided, for all roles on one machine.

    Ports that users call are as configured. Those between the roles are any free ones unless they
    are set, so that they collide with none of a laptop's other servers; the coordinator's HTTP
    interface, at which people look, is at its usual port if that is free.
    """
    public = config.public
    for host, port, key in (
        (public.host, public.port, "public.port"),
        (public.host, public.ws_port, "public.ws_port"),
        (config.coordinator.host, config.coordinator.http_port, "coordinator.http_port"),
    ):
        if port and _is_meant(origins[key], key) and not is_port_free(host, port):
            raise PortInUse(
                f"port {port} on {host} is in use; stop what listens there, or choose another with "
                f"`headgate up --port N`, {KEYS[key].env_name} or {key}",
                port=port,
                key=key,
            )

    def decide(host: str, port: int, key: str, *, internal: bool) -> int:
        if port and not (internal and origins[key].kind == "default"):
            return port
        return free_port(host)

    coordinator, local = config.coordinator, config.coordinator.host
    router_port = decide(local, coordinator.router_port, "coordinator.router_port", internal=True)
    consumer_port = decide(
        local, coordinator.consumer_port, "coordinator.consumer_port", internal=True
    )
    changes: dict[str, dict[str, object]] = {
        "public": {
            "port": decide(public.host, public.port, "public.port", internal=False),
            "ws_port": decide(public.host, public.ws_port, "public.ws_port", internal=False),
        },
        "coordinator": {
            "router_port": router_port,
            "consumer_port": consumer_port,
            "http_port": decide(
                local,
                coordinator.http_port,
                "coordinator.http_port",
                internal=not is_port_free(local, coordinator.http_port),
            ),
        },
        "ingest": {
            "port": decide(config.ingest.host, config.ingest.port, "ingest.port", internal=True),
            "server_address": local,
            "server_port": router_port,
        },
        "router": {
            "http_port": decide(
                config.router.host, config.router.http_port, "router.http_port", internal=True
            ),
            "server_address": local,
            "server_port": router_port,
        },
        "gateway": {
            "client_port": decide(
                config.gateway.client_address,
                config.gateway.client_port,
                "gateway.client_port",
                internal=True,
            ),
            "server_address": local,
            "server_port": consumer_port,
        },
    }
    sections = {
        name: getattr(config, name).model_copy(update=update) for name, update in changes.items()
    }
    return config.model_copy(update=sections)


def _is_meant(origin: SettingSource, key: str) -> bool:
    """A port that another can't stand in for."""
    return key.startswith("public.") or origin.kind != "default"


ROLES = ("coordinator", "ingest", "gateway", "router")
GOODBYE_S = 5.0
TOKEN_BYTES = 32
NO_ORIGINS: Mapping[str, SettingSource] = {}
SPARK_STOP_S = 15.0


def _stop_timeout_s(config: Config, role: str) -> float:
    """Longer than a role takes that keeps to what the settings allow it."""
    shutdown = config.reliability.shutdown
    in_flight_s = shutdown.flush_timeout + shutdown.checkpoint_timeout
    return in_flight_s + GOODBYE_S + (SPARK_STOP_S if role == "router" else 0.0)


def with_cluster_token(config: Config) -> Config:
    """Where callers need a credential, roles that are started together share a cluster token: the
    one that is set, otherwise one made for this start."""
    security = config.security
    if not security.is_on or security.cluster.tokens:
        return config
    cluster = security.cluster.model_copy(update={"tokens": THIS_MACHINE.token(TOKEN_BYTES)})
    return config.model_copy(update={"security": security.model_copy(update={"cluster": cluster})})


def build_supervisor(
    config: Config,
    folder: DataFolder,
    say: Callable[[str], None],
    roles: Sequence[str] = ROLES,
    *,
    origins: Mapping[str, SettingSource] = NO_ORIGINS,
) -> Supervisor:
    """These roles on this machine, as processes; `config` has its ports decided. `origins` are
    those of its settings, which the roles tell on request."""
    inherited, config = inherited_environment(), with_cluster_token(config)
    folder.logs_dir.mkdir(exist_ok=True)
    commands = []
    for role in roles:
        own = config.model_copy(update={"client_id": f"{role}-1", "data": folder.root})
        commands.append(
            RoleCommand(
                role,
                [sys.executable, "-m", "headgate", role, "--supervised"],
                {**inherited, **environment_of(own), **handed_on(own, origins)},
                folder.logs_dir / f"{role}.log",
                log_max_bytes=config.log_file_size,
                stop_timeout_s=_stop_timeout_s(config, role),
                begins_early=role == "router",  # Spark's start is most of everything's
            )
        )
    return Supervisor(commands, say)
