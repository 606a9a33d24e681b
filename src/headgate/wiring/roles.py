"""Where ports meet adapters: builds each role from the configuration.

Nothing is decided here. Another store, transport or control plane is a change of this package and
of no other. What only one role needs is imported when that role is built.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.notes import FileRouterNotes
from headgate.adapters.machine import THIS_MACHINE
from headgate.config import Config, inherited_environment
from headgate.config.cluster_tokens import find_cluster_tokens
from headgate.decide.http.web_pages import origins_of
from headgate.decide.links.passes import ClusterTokens
from headgate.model.lanes import LaneSettings, TransportPlace
from headgate.model.settings_api import SettingInfo
from headgate.wiring.access import known_principals, leave_admin_key
from headgate.wiring.auditing import audit_trail
from headgate.wiring.control import addresses, connector
from headgate.wiring.stores import (
    checkpoint_place,
    coordination,
    log_store,
    open_checkpoints,
    open_letters,
    open_log_reader,
    open_log_writer,
    retention,
)

if TYPE_CHECKING:
    from headgate.adapters.listeners import ListenerOptions
    from headgate.decide.produce.placing import PlacingRules
    from headgate.metrics.roles import RouterMetrics
    from headgate.ports.windows import Windows
    from headgate.services.coordinator.service import Coordinator, CoordinatorSettings
    from headgate.services.gateway.service import Gateway, GatewayOptions
    from headgate.services.ingest.node import Ingest, IngestOptions
    from headgate.services.router.plans import RouterSettings
    from headgate.services.router.service import Router
    from headgate.spark.windows.open_windows import SparkSettings

RUN_LANE = "headgate.wiring.lanes:run_lane"
WARM_LANE = "headgate.wiring.lanes:warm_lane"
WORKER_DAEMON = "headgate.wiring.worker_daemon"

Shown = tuple[SettingInfo, ...]
"""The settings of a role, as it shows them to people who ask."""


def node_id(config: Config, role: str) -> str:
    """The stable id of this node, or one made up for this start."""
    return config.client_id or f"{role}-{THIS_MACHINE.token(4)}"


def incarnation() -> str:
    return THIS_MACHINE.token(16)


def cluster_tokens(config: Config) -> ClusterTokens:
    return find_cluster_tokens(config.security.cluster.tokens)


def coordinator_settings(config: Config) -> CoordinatorSettings:
    from headgate.decide.coordination.members.members import Balance, Timing
    from headgate.decide.coordination.registry.quotas import Quotas
    from headgate.services.coordinator.service import CoordinatorSettings

    settings, shutdown = config.coordinator, config.reliability.shutdown
    most = config.subscriptions
    # A donor is given what a stop is given, and a little for the way.
    handoff_s = shutdown.flush_timeout + shutdown.checkpoint_timeout + 5.0
    return CoordinatorSettings(
        node_id=node_id(config, "coordinator"),
        host=settings.host,
        ports=(settings.router_port, settings.consumer_port),
        http_port=settings.http_port,
        timing=Timing(
            lease_ms=round(settings.timeout * 1000),
            grace_ms=round(min(settings.grace, settings.timeout) * 1000),
            check_in_ms=round(settings.check_in * 1000),
            lane_report_timeout_ms=round(config.router.lane_report_timeout * 1000),
            rebalance_ms=round(settings.rebalance * 1000),
            handoff_ms=round(handoff_s * 1000),
            learn_for_ms=round(settings.learn_for * 1000),
            adoption_ms=round(settings.adoption_timeout * 1000),
        ),
        default_partitions=config.routing.num_partitions,
        balance=Balance(
            settings.strategy,
            ingest=settings.ingest_imbalance,
            router=settings.router_imbalance,
            consumer=settings.consumer_imbalance,
            keys_per_target=config.consumers.shard_size,
            places_subscribers=config.routing.mode == "consistent_hash",
        ),
        quotas=Quotas(
            most.max_per_gateway,
            most.max_per_tenant,
            most.max_total,
            cost_per_gateway_us=round(most.max_cost_per_gateway * 1_000_000),
            cost_per_tenant_us=round(most.max_cost_per_tenant * 1_000_000),
        ),
        advertised_host=settings.advertise,
        origins=origins_of(config.public.origins),
        keeper=cluster_tokens(config).keeper("coordinator"),
        alone=settings.store == "embedded",
        dead_letters_max_age_s=config.routing.dlq.max_age,
    )


def build_coordinator(config: Config, folder: DataFolder, *, shown: Shown = ()) -> Coordinator:
    from headgate.adapters.grpc.control import GrpcControlServer
    from headgate.adapters.http.server import HttpServer
    from headgate.services.coordinator.service import Coordinator, CoordinatorPorts

    election, open_store = coordination(config, folder)
    settings = coordinator_settings(config)
    audit = audit_trail(config, folder, "coordinator")
    return Coordinator(
        settings,
        CoordinatorPorts(
            election,
            open_store,
            open_checkpoints(checkpoint_place(config), folder),
            open_log_reader(log_store(config), folder),
            open_letters(log_store(config), folder),
            HttpServer(),
            GrpcControlServer(settings.keeper, audit),
            THIS_MACHINE,
            known_principals(config, "coordinator"),
            audit,
            partial(leave_admin_key, folder),
            shown,
        ),
    )


def ingest_options(config: Config) -> IngestOptions:
    from headgate.decide.produce.admission import ProduceLimits
    from headgate.services.ingest.connectors.options import IntakeOptions
    from headgate.services.ingest.node import IngestOptions
    from headgate.services.ingest.produce.appends import WriteBounds
    from headgate.services.ingest.produce.shares import ProduceRates
    from headgate.services.ingest.produce.writing import WritingOptions

    settings, tokens = config.ingest, cluster_tokens(config)
    return IngestOptions(
        node_id=node_id(config, "ingest"),
        incarnation=incarnation(),
        host=settings.host,
        port=settings.port,
        port_setting="ingest.port",
        advertised_host=settings.advertise,
        origins=origins_of(config.public.origins),
        keeper=tokens.keeper("ingest"),
        passes=tokens.passes("ingest"),
        rates=ProduceRates(
            config.security.limits.produce_events, config.security.limits.produce_bytes
        ),
        weight=settings.weight,
        writing=WritingOptions(
            limits=ProduceLimits(
                body_bytes=settings.max_body,
                document_bytes=settings.max_document,
                document_depth=settings.max_depth,
            ),
            bounds=WriteBounds(requests=settings.waiting_requests, bytes=settings.waiting_memory),
            placing=placing_rules(config),
            idempotency_ttl_s=settings.idempotency_ttl,
        ),
        intake=IntakeOptions(document_bytes=settings.max_document),
        stop_timeout_s=config.reliability.shutdown.flush_timeout,
        retention=retention(config),
        retain_every_s=config.log.retention.every,
    )


def placing_rules(config: Config) -> PlacingRules:
    from headgate.decide.produce.partition_health import HealthRules
    from headgate.decide.produce.placing import PlacingRules

    settings = config.ingest
    return PlacingRules(
        write_timeout_s=settings.write_timeout,
        health=HealthRules(
            set_aside_initial_s=settings.set_aside_initial,
            set_aside_max_s=settings.set_aside_max,
            set_aside_multiplier=settings.set_aside_multiplier,
            degraded_factor=settings.degraded_factor,
            degraded_window_s=settings.degraded_window,
        ),
    )


def build_ingest(config: Config, folder: DataFolder, *, shown: Shown = ()) -> Ingest:
    from headgate.adapters.http.calls import PooledCalls
    from headgate.adapters.http.http1_server import Http1Server
    from headgate.services.ingest.node import Ingest
    from headgate.wiring.origins import open_origin

    options = ingest_options(config)
    return Ingest(
        options,
        writer=open_log_writer(log_store(config), folder),
        reader=open_log_reader(log_store(config), folder),
        open_session=connector(
            addresses(config.ingest.server_address, config.ingest.server_port),
            shown=options.passes.to("coordinator"),
        ),
        settled=open_checkpoints(checkpoint_place(config), folder).list,
        http=Http1Server(),
        calls=PooledCalls(),
        open_origin=open_origin,
        machine=THIS_MACHINE,
        principals=known_principals(config, "ingest"),
        audit=audit_trail(config, folder, "ingest"),
        settings=shown,
    )


def coordinator_url(config: Config) -> str:
    """Where the coordinator serves HTTP, as long as none has said so itself."""
    host = config.gateway.server_address.partition(",")[0]
    bare = host if host.endswith("]") else host.rpartition(":")[0] or host
    return f"http://{bare}:{config.coordinator.http_port}"


def gateway_options(config: Config) -> GatewayOptions:
    from headgate.adapters.grpc.control import NOTICED_S
    from headgate.decide.limits.holdings import Most
    from headgate.services.gateway.groups.bounds import (
        CHECK_INS_MISSED,
        ConsumerBounds,
        sure_for_s,
    )
    from headgate.services.gateway.service import DedupOptions, EvidenceOptions, GatewayOptions
    from headgate.services.gateway.subscriptions.subscriptions import Bounds, SlowPolicies

    settings, public = config.gateway, config.public
    slow, dedup = settings.when_slow, config.reliability.dedup
    each = config.security.limits
    noticed_s = min(NOTICED_S, CHECK_INS_MISSED * config.coordinator.check_in)
    return GatewayOptions(
        node_id=node_id(config, "gateway"),
        incarnation=incarnation(),
        coordinator_url=coordinator_url(config),
        host=public.host,
        port=public.port,
        ws_port=public.ws_port,
        advertised_host=public.advertise,
        origins=origins_of(public.origins),
        passes=cluster_tokens(config).passes("gateway"),
        masked=tuple(path.strip() for path in config.ui.mask.split(",") if path.strip()),
        demo=config.demo.control,
        bounds=Bounds(
            queue=settings.subscriber_queue,
            subscribers=settings.max_subscribers,
            per_connection=settings.max_subscriptions,
            memory_bytes=settings.queue_memory,
            when_slow=SlowPolicies(high=slow.high, normal=slow.normal, low=slow.low),
            subscribe_timeout_s=config.coordinator.subscribe_timeout,
            soft_delete=config.subscriptions.soft_delete,
            ttl_s=config.subscriptions.ttl,
            each=Most(each.connections, each.subscriptions, round(each.filter_cost * 1_000_000)),
            noticed_s=noticed_s,
        ),
        consumers=ConsumerBounds(
            unsure_s=sure_for_s(lease_s=config.coordinator.timeout),
            noticed_s=noticed_s,
        ),
        waiting_bytes=settings.waiting_memory,
        stop_timeout_s=config.reliability.shutdown.flush_timeout,
        dedup=DedupOptions(enabled=dedup.enabled, cache_size=dedup.cache_size, ttl_s=dedup.ttl),
        evidence=EvidenceOptions(config.evidence.size, config.evidence.age),
    )


def listener_options(config: Config) -> ListenerOptions:
    from headgate.adapters.listeners import ListenerOptions

    transport = config.transport
    return ListenerOptions(
        protocol=config.routing.delivery.protocol,
        host=config.gateway.client_address,
        port=config.gateway.client_port,
        advertised_host=config.gateway.advertise,
        keeper=cluster_tokens(config).keeper("gateway"),
        token=transport.token,
        certificate=transport.tls_certificate,
        key=transport.tls_key,
        authority=transport.tls_authority,
        nats=transport.nats,
        nats_prefix=transport.nats_prefix,
    )


def build_gateway(config: Config, folder: DataFolder, *, shown: Shown = ()) -> Gateway:
    from headgate.adapters.http.calls import PooledCalls
    from headgate.adapters.http.server import HttpServer
    from headgate.adapters.listeners import listener_for
    from headgate.adapters.picows.server import PicowsListener
    from headgate.adapters.web_files import packaged_files
    from headgate.services.gateway.service import Gateway

    options = gateway_options(config)
    audit = audit_trail(config, folder, "gateway")
    return Gateway(
        options,
        reader=open_log_reader(log_store(config), folder),
        checkpoints=open_checkpoints(checkpoint_place(config), folder),
        letters=open_letters(log_store(config), folder) if config.routing.dlq.enabled else None,
        open_session=connector(
            addresses(config.gateway.server_address, config.gateway.server_port),
            shown=options.passes.to("coordinator"),
        ),
        http=HttpServer(),
        calls=PooledCalls(),
        open_listener=partial(
            listener_for,
            replace(listener_options(config), audit=audit),
            options.node_id,
            incarnation=options.incarnation,
        ),
        connections=PicowsListener(),
        machine=THIS_MACHINE,
        web_files=packaged_files(),
        principals=known_principals(config, "gateway"),
        audit=audit,
        settings=shown,
    )


def router_settings(config: Config, folder: DataFolder) -> RouterSettings:
    from headgate.services.router.plans import RouterSettings

    settings = config.router
    return RouterSettings(
        node_id=node_id(config, "router"),
        incarnation=incarnation(),
        weight=settings.weight,
        coordinator=addresses(settings.server_address, settings.server_port),
        slots=settings.slots,
        http=(settings.host, settings.http_port),
        advertised_host=settings.advertise,
        origins=origins_of(config.public.origins),
        passes=cluster_tokens(config).passes("router"),
        data=folder.root,
        lane=lane_settings(config),
    )


def spark_settings(config: Config, folder: DataFolder, *, node_id: str) -> SparkSettings:
    from headgate.spark.windows.open_windows import SparkSettings

    settings = config.router
    return SparkSettings(
        app_name=f"headgate-{node_id}",
        master=settings.master,
        slots=settings.slots,
        driver_memory=settings.driver_memory,
        scratch=folder.spark_dir,
        run_lane=RUN_LANE,
        warm_lane=WARM_LANE,
        lane=lane_settings(config),
        class_archive=settings.class_archive,
        settings={"spark.python.daemon.module": WORKER_DAEMON},
    )


def windows_on_spark(
    config: Config, folder: DataFolder, *, node_id: str, metrics: RouterMetrics
) -> Windows:
    from headgate.spark.starting.java import find_java
    from headgate.spark.windows.open_windows import SparkWindows

    settings = spark_settings(config, folder, node_id=node_id)
    return SparkWindows(settings, find_java(inherited_environment()), metrics)


def build_router(
    config: Config, folder: DataFolder, windows: Windows | None = None, *, shown: Shown = ()
) -> Router:
    """On Spark, unless it is given `windows` that run on something else."""
    from headgate.adapters.http.calls import PooledCalls
    from headgate.adapters.http.server import HttpServer
    from headgate.metrics.roles import RouterMetrics
    from headgate.services.router.service import Router, RouterPorts

    settings, metrics = router_settings(config, folder), RouterMetrics()
    if windows is None:
        windows = windows_on_spark(config, folder, node_id=settings.node_id, metrics=metrics)
    ports = RouterPorts(
        windows=windows,
        connect=connector(
            addresses(config.router.server_address, config.router.server_port),
            shown=settings.passes.to("coordinator"),
        ),
        notes=FileRouterNotes(folder.notes_dir(settings.node_id)),
        listener=HttpServer(),
        calls=PooledCalls(),
        machine=THIS_MACHINE,
        principals=known_principals(config, "router"),
        settings=shown,
    )
    return Router(settings, ports, metrics)


def lane_settings(config: Config) -> LaneSettings:
    routing, reliability = config.routing, config.reliability
    passes = cluster_tokens(config).passes("lane")
    return LaneSettings(
        log_level=config.log_level,
        log=log_store(config),
        checkpoints=checkpoint_place(config),
        coordinator_pass=passes.to("coordinator"),
        transport=TransportPlace(
            shown=passes.to("gateway"),
            token=config.transport.token,
            authority=config.transport.tls_authority,
            nats=config.transport.nats,
        ),
        mode=routing.mode,
        max_fanout=routing.max_fanout,
        window_s=config.router.window,
        read_limit=config.router.read_limit,
        batch_max_size=routing.batch.max_size,
        batch_max_bytes=routing.batch.max_bytes,
        batch_max_wait_s=routing.batch.max_wait,
        batch_flush_interval_s=routing.batch.flush_interval,
        queue_size=routing.backpressure.queue_size,
        queue_bytes=routing.backpressure.queue_memory,
        soft_watermark=routing.backpressure.soft_watermark,
        hard_watermark=routing.backpressure.hard_watermark,
        resume_watermark=routing.backpressure.resume_watermark,
        soft_delete=config.subscriptions.soft_delete,
        delivery_timeout_s=routing.delivery.timeout,
        retry_max_attempts=routing.delivery.retry.max_attempts,
        retry_initial_s=routing.delivery.retry.initial_delay,
        retry_max_s=routing.delivery.retry.max_delay,
        retry_multiplier=routing.delivery.retry.multiplier,
        breaker_threshold=reliability.circuit_breaker.threshold,
        breaker_timeout_s=reliability.circuit_breaker.timeout,
        buffer_timeout_s=config.router.buffer_timeout,
        redrive_every_s=config.router.flush_every,
        dlq_enabled=routing.dlq.enabled,
        gap_enabled=reliability.gap_detection.enabled,
        gap_max_s=reliability.gap_detection.max_gap,
        checkpoint_interval_s=reliability.checkpoint.interval,
        checkpoint_event_count=reliability.checkpoint.event_count,
        flush_timeout_s=reliability.shutdown.flush_timeout,
        checkpoint_timeout_s=reliability.shutdown.checkpoint_timeout,
        evidence_size=config.evidence.size,
        evidence_age_s=config.evidence.age,
    )
