"""What several settings must agree on.

Pure: a whole config in, the disagreements out. Each rule names the keys it is about, so that
the sentence can show their values and where they came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from headgate.config.schema import Config
from headgate.decide.http.web_pages import is_loopback
from headgate.model.addresses import ANY_HOST


@dataclass(frozen=True, slots=True)
class Rule:
    """`left` and `right` hold when `holds(config)`; `must` reads "left must ... right"."""

    left: str
    must: str
    right: str
    holds: Callable[[Config], bool]


def _differ(*ports: int) -> bool:
    given = [port for port in ports if port]  # 0 is any free port: never the same one twice
    return len(given) == len(set(given))


def _threads(master: str) -> int | None:
    """Threads of a local master; None when the number isn't ours to know."""
    match = re.match(r"local\[(\d+),", master)
    return int(match[1]) if match else None


def _lanes_fit(config: Config) -> bool:
    threads = _threads(config.router.master)
    return threads is None or config.router.slots <= threads


def _has_keys(config: Config) -> bool:
    jwt = config.security.jwt
    return bool(jwt.keys or jwt.jwks or jwt.secret)


@dataclass(frozen=True, slots=True)
class Door:
    """An address that a role listens on; `open_to_all` is what everybody who reaches it may do
    there, unless it is `guarded` by what the settings `guards` ask for."""

    key: str
    open_to_all: str
    host: Callable[[Config], str]
    guarded: Callable[[Config], bool]
    guards: str

    def is_open(self, config: Config) -> bool:
        return not is_loopback(self.host(config)) and not self.guarded(config)


IDENTITIES = "security.enabled"
PASSES = "security.cluster.tokens"
BOTH = f"{IDENTITIES} and {PASSES}"


def _asks_everybody(config: Config) -> bool:
    return config.security.is_on and bool(config.security.cluster.tokens)


DOORS: tuple[Door, ...] = (
    Door(
        "public.host",
        "produce, subscribe, create and delete topics, and read dead letters",
        lambda c: c.public.host,
        lambda c: c.security.is_on,
        IDENTITIES,
    ),
    Door(
        "coordinator.host",
        "register as a node, take partitions over, and do what operators do",
        lambda c: c.coordinator.host,
        _asks_everybody,
        BOTH,
    ),
    Door(
        "ingest.host",
        "append to every topic",
        lambda c: c.ingest.host,
        _asks_everybody,
        BOTH,
    ),
    Door(
        "router.host",
        "read metrics and health",
        lambda c: c.router.host,
        lambda c: c.security.is_on,
        IDENTITIES,
    ),
    Door(
        "gateway.client_address",
        "deliver to subscribers",
        lambda c: c.gateway.client_address,
        # NATS listens in its stead, and checks the token itself.
        lambda c: (
            bool(c.security.cluster.tokens or c.transport.token)
            or c.routing.delivery.protocol == "nats"
        ),
        PASSES,
    ),
)


def _locked(door: Door) -> Rule:
    return Rule(
        door.key,
        f"be a loopback address, such as 127.0.0.1, or be guarded (set {door.guards}; "
        "see docs/security.md), or be opened to all with --insecure, which sets",
        "insecure",
        lambda c: c.insecure or not door.is_open(c),
    )


RULES: tuple[Rule, ...] = (
    *map(_locked, DOORS),
    Rule(
        "ingest.host",
        "be an address that others can connect to, or come with the name of this machine in",
        "ingest.advertise",
        lambda c: c.ingest.host not in ANY_HOST or bool(c.ingest.advertise),
    ),
    Rule(
        "gateway.client_address",
        "be an address that others can connect to, or come with the name of this machine in",
        "gateway.advertise",
        lambda c: c.gateway.client_address not in ANY_HOST or bool(c.gateway.advertise),
    ),
    Rule(
        "routing.backpressure.soft_watermark",
        "be below",
        "routing.backpressure.hard_watermark",
        lambda c: c.routing.backpressure.soft_watermark < c.routing.backpressure.hard_watermark,
    ),
    Rule(
        "routing.backpressure.resume_watermark",
        "be below",
        "routing.backpressure.soft_watermark",
        lambda c: c.routing.backpressure.resume_watermark < c.routing.backpressure.soft_watermark,
    ),
    Rule(
        "routing.batch.max_size",
        "be at most",
        "routing.backpressure.queue_size",
        lambda c: c.routing.batch.max_size <= c.routing.backpressure.queue_size,
    ),
    Rule(
        "routing.batch.max_wait",
        "be at least",
        "routing.batch.flush_interval",
        lambda c: c.routing.batch.max_wait >= c.routing.batch.flush_interval,
    ),
    Rule(
        "routing.delivery.retry.initial_delay",
        "be at most",
        "routing.delivery.retry.max_delay",
        lambda c: c.routing.delivery.retry.initial_delay <= c.routing.delivery.retry.max_delay,
    ),
    Rule(
        "coordinator.check_in",
        "be at most a third of",
        "coordinator.timeout",
        # Two check-ins may get lost before a node counts as lost.
        lambda c: c.coordinator.check_in * 3 <= c.coordinator.timeout,
    ),
    Rule(
        "router.lane_report_timeout",
        "be below",
        "router.window",
        lambda c: c.router.lane_report_timeout < c.router.window,
    ),
    Rule(
        "router.slots",
        "be at most the threads of",
        "router.master",
        # A lane holds its thread for the whole window; one without a thread would never start.
        _lanes_fit,
    ),
    Rule(
        "gateway.max_subscribers",
        "be at most",
        "subscriptions.max_per_gateway",
        # A gateway would accept subscribers that the coordinator then refuses.
        lambda c: c.gateway.max_subscribers <= c.subscriptions.max_per_gateway,
    ),
    Rule(
        "subscriptions.ttl",
        "be 0s or at least three times",
        "coordinator.check_in",
        # Gateways renew at least that often; two renewals may get lost.
        lambda c: not c.subscriptions.ttl or c.subscriptions.ttl >= 3 * c.coordinator.check_in,
    ),
    Rule(
        "ingest.max_document",
        "be at most",
        "ingest.max_body",
        lambda c: c.ingest.max_document <= c.ingest.max_body,
    ),
    Rule(
        "ingest.set_aside_initial",
        "be at most",
        "ingest.set_aside_max",
        lambda c: c.ingest.set_aside_initial <= c.ingest.set_aside_max,
    ),
    Rule(
        "log.backend",
        "come with the database's address in",
        "log.dsn",
        lambda c: c.log.backend == "embedded" or bool(c.log.dsn),
    ),
    Rule(
        "coordinator.store",
        "come with the members' addresses in",
        "etcd.endpoints",
        lambda c: c.coordinator.store != "etcd" or bool(c.etcd.endpoints),
    ),
    Rule(
        "reliability.checkpoint.backend",
        "come with the members' addresses in",
        "etcd.endpoints",
        lambda c: c.reliability.checkpoint.backend != "etcd" or bool(c.etcd.endpoints),
    ),
    Rule(
        "reliability.checkpoint.backend",
        "come with the replica set's address in",
        "mongo.url",
        lambda c: c.reliability.checkpoint.backend != "mongo" or bool(c.mongo.url),
    ),
    Rule(
        "etcd.user",
        "come with its password in",
        "etcd.password",
        lambda c: bool(c.etcd.user) == bool(c.etcd.password),
    ),
    Rule(
        "transport.tls_certificate",
        "come with its key in",
        "transport.tls_key",
        lambda c: bool(c.transport.tls_certificate) == bool(c.transport.tls_key),
    ),
    Rule(
        "routing.delivery.protocol",
        "come with the servers' addresses in",
        "transport.nats",
        lambda c: c.routing.delivery.protocol != "nats" or bool(c.transport.nats),
    ),
    Rule(
        "security.jwt.issuer",
        "come with whom its JWTs are made for in",
        "security.jwt.audience",
        # Otherwise a JWT that was made for another program would open this one, too.
        lambda c: bool(c.security.jwt.issuer) == bool(c.security.jwt.audience),
    ),
    Rule(
        "security.jwt.issuer",
        "come with its keys, in security.jwt.keys, security.jwt.secret or",
        "security.jwt.jwks",
        lambda c: bool(c.security.jwt.issuer) == _has_keys(c),
    ),
    Rule(
        "security.jwt.secret",
        "be set where HS256 is among, and only there,",
        "security.jwt.algorithms",
        # One secret for both kinds of signatures is how public keys become secrets.
        lambda c: bool(c.security.jwt.secret) == ("HS256" in c.security.jwt.algorithms),
    ),
    Rule(
        "public.port",
        "differ from",
        "public.ws_port",
        lambda c: _differ(c.public.port, c.public.ws_port),
    ),
    Rule(
        "gateway.client_port",
        "differ from",
        "public.port",
        lambda c: _differ(c.gateway.client_port, c.public.port),
    ),
    Rule(
        "gateway.client_port",
        "differ from",
        "public.ws_port",
        lambda c: _differ(c.gateway.client_port, c.public.ws_port),
    ),
    Rule(
        "coordinator.router_port",
        "differ from",
        "coordinator.consumer_port",
        lambda c: _differ(c.coordinator.router_port, c.coordinator.consumer_port),
    ),
    Rule(
        "coordinator.http_port",
        "differ from",
        "coordinator.router_port",
        lambda c: _differ(c.coordinator.http_port, c.coordinator.router_port),
    ),
    Rule(
        "coordinator.http_port",
        "differ from",
        "coordinator.consumer_port",
        lambda c: _differ(c.coordinator.http_port, c.coordinator.consumer_port),
    ),
)


def open_doors(config: Config) -> list[Door]:
    """Where others than this machine may come in."""
    return [door for door in DOORS if door.is_open(config)]


def broken(config: Config) -> list[Rule]:
    return [rule for rule in RULES if not rule.holds(config)]
