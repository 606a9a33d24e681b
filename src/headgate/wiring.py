"""Where ports meet adapters: builds each role, and each lane, from the configuration.

Nothing is decided here. Whoever wants another store, transport or control plane changes this file
and no other.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.adapters.embedded.checkpoints import EmbeddedCheckpointStore
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log_reader import EmbeddedLogReader
from headgate.adapters.processes import free_port, is_port_free
from headgate.config import Config, Origin, environment_of
from headgate.errors import PortInUse
from headgate.lane.spec import LaneReceipt, LaneSettings, LaneSpec
from headgate.model.control import Hello
from headgate.ports.control import ControlSession
from headgate.ports.transport import DeliveryTransport
from headgate.telemetry import configure_logging

if TYPE_CHECKING:
    from headgate.lane.host import LaneHost
    from headgate.lane.run import Lane
    from headgate.services.coordinator import Coordinator
    from headgate.services.gateway.service import Gateway
    from headgate.services.ingest.node import Ingest
    from headgate.services.supervisor import Supervisor
    from headgate.spark.router import Router

RUN_LANE = "headgate.wiring:run_lane"
WARM_LANE = "headgate.wiring:warm_lane"
LANE_MODULES = (
    "headgate.adapters.grpc.control",
    "headgate.adapters.http.delivery",
    "headgate.lane.run",
)


def environment() -> Mapping[str, str]:
    """The process's environment, for what looks for other programs in it (Java)."""
    return os.environ


def node_id(config: Config, role: str) -> str:
    """The stable id of this node, or one made up for this start."""
    return config.client_id or f"{role}-{uuid.uuid4().hex[:8]}"


def incarnation() -> str:
    return uuid.uuid4().hex


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def connector(address: str, port: int) -> Callable[[Callable[[], Hello]], ControlSession]:
    """Opens control streams to the coordinator at `address`."""
    from headgate.adapters.grpc.control import GrpcControlSession

    return lambda hello: GrpcControlSession(f"{address}:{port}", hello)


def build_coordinator(config: Config, folder: DataFolder) -> Coordinator:
    from headgate.adapters.embedded.coordination import EmbeddedCoordinationStore
    from headgate.decide.coordination.cluster import Timing
    from headgate.services.coordinator import Coordinator, CoordinatorSettings

    settings = config.coordinator
    return Coordinator(
        CoordinatorSettings(
            node_id=node_id(config, "coordinator"),
            host=settings.host,
            ports=(settings.router_port, settings.consumer_port),
            http_port=settings.http_port,
            timing=Timing(
                lease_ms=round(settings.timeout * 1000),
                check_in_ms=round(settings.check_in * 1000),
                lane_report_timeout_ms=round(config.router.lane_report_timeout * 1000),
            ),
            default_partitions=config.routing.num_partitions,
        ),
        EmbeddedCoordinationStore(folder),
        EmbeddedCheckpointStore(folder),
        EmbeddedLogReader(folder),
    )


def build_ingest(config: Config, folder: DataFolder) -> Ingest:
    from headgate.adapters.embedded.log_writer import EmbeddedLogWriter
    from headgate.decide.admission import ProduceLimits
    from headgate.services.ingest.node import Ingest, IngestOptions
    from headgate.services.ingest.partitions import WriteBounds

    settings = config.ingest
    checkpoints = EmbeddedCheckpointStore(folder)
    return Ingest(
        IngestOptions(
            node_id=node_id(config, "ingest"),
            incarnation=incarnation(),
            host=settings.host,
            port=settings.port,
            port_setting="ingest.port",
            limits=ProduceLimits(
                body_bytes=settings.max_body,
                document_bytes=settings.max_document,
                document_depth=settings.max_depth,
            ),
            bounds=WriteBounds(
                requests=settings.waiting_requests, write_timeout_s=settings.write_timeout
            ),
            stop_timeout_s=config.reliability.shutdown.flush_timeout,
        ),
        writer=EmbeddedLogWriter(folder),
        open_session=connector(settings.server_address, settings.server_port),
        settled=checkpoints.list,
        now_ms=wall_ms,
        stored=folder.stored_partitions,
    )


def build_gateway(config: Config, folder: DataFolder) -> Gateway:
    from headgate.services.gateway.service import Gateway, GatewayOptions
    from headgate.services.gateway.subscriptions import Bounds

    settings, public = config.gateway, config.public
    return Gateway(
        GatewayOptions(
            node_id=node_id(config, "gateway"),
            incarnation=incarnation(),
            coordinator_url=f"http://{settings.server_address}:{config.coordinator.http_port}",
            host=public.host,
            port=public.port,
            ws_port=public.ws_port,
            client_address=settings.client_address,
            client_port=settings.client_port,
            bounds=Bounds(
                queue=settings.subscriber_queue,
                subscribers=settings.max_subscribers,
                subscribe_timeout_s=config.coordinator.subscribe_timeout,
            ),
        ),
        reader=EmbeddedLogReader(folder),
        open_session=connector(settings.server_address, settings.server_port),
    )


def build_router(config: Config, folder: DataFolder) -> Router:
    from headgate.spark.java import find_java
    from headgate.spark.router import Router, RouterSettings

    settings = config.router
    return Router(
        RouterSettings(
            node_id=node_id(config, "router"),
            incarnation=incarnation(),
            coordinator=f"{settings.server_address}:{settings.server_port}",
            master=settings.master,
            slots=settings.slots,
            driver_memory=settings.driver_memory,
            data=folder.root,
            scratch=folder.spark_dir,
            run_lane=RUN_LANE,
            warm_lane=WARM_LANE,
            lane=lane_settings(config),
        ),
        find_java(environment()),
        connector(settings.server_address, settings.server_port),
    )


def lane_settings(config: Config) -> LaneSettings:
    routing, reliability = config.routing, config.reliability
    return LaneSettings(
        log_level=config.log_level,
        window_s=config.router.window,
        read_limit=config.router.read_limit,
        batch_max_size=routing.batch.max_size,
        batch_max_wait_s=routing.batch.max_wait,
        batch_flush_interval_s=routing.batch.flush_interval,
        queue_size=routing.backpressure.queue_size,
        delivery_timeout_s=routing.delivery.timeout,
        retry_initial_s=routing.delivery.retry.initial_delay,
        retry_max_s=routing.delivery.retry.max_delay,
        retry_multiplier=routing.delivery.retry.multiplier,
        checkpoint_interval_s=reliability.checkpoint.interval,
        checkpoint_event_count=reliability.checkpoint.event_count,
        flush_timeout_s=reliability.shutdown.flush_timeout,
        checkpoint_timeout_s=reliability.shutdown.checkpoint_timeout,
    )


def plan_ports(config: Config, origins: Mapping[str, Origin]) -> Config:
    """`config` with every port decided, for all roles on one machine.

    Ports that users call are as configured. Those between the roles are any free ones unless
    somebody set them, so that a laptop's other servers are in nobody's way.
    """
    public = config.public
    for host, port, key in (
        (public.host, public.port, "public.port"),
        (public.host, public.ws_port, "public.ws_port"),
    ):
        if port and not is_port_free(host, port):
            raise PortInUse(
                f"port {port} on {host} is in use; stop what listens there or set {key}",
                port=port,
                key=key,
            )
    taken: set[int] = set()

    def decide(host: str, port: int, key: str, *, internal: bool) -> int:
        if port and not (internal and origins[key].kind == "default"):
            return port
        while (found := free_port(host)) in taken:
            pass
        taken.add(found)
        return found

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
                local, coordinator.http_port, "coordinator.http_port", internal=True
            ),
        },
        "ingest": {
            "port": decide(config.ingest.host, config.ingest.port, "ingest.port", internal=True),
            "server_address": local,
            "server_port": router_port,
        },
        "router": {"server_address": local, "server_port": router_port},
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


def build_supervisor(config: Config, folder: DataFolder, say: Callable[[str], None]) -> Supervisor:
    """All roles on this machine, as processes; `config` has its ports decided."""
    from headgate.services.supervisor import RoleCommand, Supervisor

    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADGATE_")}
    folder.logs_dir.mkdir(exist_ok=True)
    commands = []
    for role in ("coordinator", "ingest", "gateway", "router"):
        own = config.model_copy(update={"client_id": f"{role}-1", "data": folder.root})
        commands.append(
            RoleCommand(
                role,
                [sys.executable, "-m", "headgate", role, "--supervised"],
                {**inherited, **environment_of(own)},
                folder.logs_dir / f"{role}.log",
            )
        )
    return Supervisor(commands, say)


_hosts: list[LaneHost[DeliveryTransport]] = []
"""The lane host of this worker process, once it has one."""


def run_lane(spec: LaneSpec) -> LaneReceipt:
    """What a Spark task calls, in a Python worker on an executor."""
    return _lane_host().run(spec)


def warm_lane() -> None:
    """What a Spark task calls to have a worker ready: load everything, start the loop."""
    _lane_host()


def _lane_host() -> LaneHost[DeliveryTransport]:
    from headgate.lane.host import LaneHost

    # A forked process has its parent's list but not its parent's threads.
    if not _hosts or _hosts[-1].pid != os.getpid():
        for module in LANE_MODULES:
            importlib.import_module(module)
        _hosts[:] = [LaneHost(_shared_transport, _open_lane)]
        # Spark collects garbage after every task, while the lanes of that window still run:
        # all that was imported must not be looked through each time.
        gc.collect()
        gc.freeze()
    return _hosts[-1]


def _shared_transport() -> DeliveryTransport:
    from headgate.adapters.http.delivery import HttpDeliveryTransport

    return HttpDeliveryTransport(f"lanes-{os.getpid()}")


def _open_lane(
    spec: LaneSpec, transport: DeliveryTransport
) -> tuple[Lane, Callable[[], Awaitable[None]]]:
    from headgate.lane.run import Lane, LanePorts

    configure_logging(spec.settings.log_level, role="lane", node_id=spec.router_id)
    folder = DataFolder(Path(spec.data))
    address, _, port = spec.coordinator.rpartition(":")
    reader, checkpoints = EmbeddedLogReader(folder), EmbeddedCheckpointStore(folder)

    async def close() -> None:
        await reader.close()
        await checkpoints.close()

    lane = Lane(spec, LanePorts(reader, checkpoints, transport, connector(address, int(port))))
    return lane, close
