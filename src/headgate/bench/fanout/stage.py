"""What `bench fanout` runs on: the roles as processes, and a hand that delivers as a lane does.

There is no router: a coordinator without lanes takes a subscription as adopted at once, and the
benchmark delivers to the gateway itself, over the transport that lanes use. The ingest node is
there because a topic needs one; it stays idle. Everything is in a temporary folder, on free ports,
and ends with the context.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.http.delivery import HttpDeliveryTransport
from headgate.bench.result import Failed, Say
from headgate.bench.secured import administrator, known_at, token_for, with_administrator
from headgate.client.http import HttpClient
from headgate.config import Config
from headgate.config.cluster_tokens import find_cluster_tokens
from headgate.demo.stage import demo_config
from headgate.model.api import CreateTopic, TopicInfo
from headgate.model.delivery import Delivery, DeliveryBatch
from headgate.wiring.machine import build_supervisor, plan_ports

ROLES = ("coordinator", "ingest", "gateway")
GATEWAY_ID = "gateway-1"
TOPIC = "fanout"
PARTITION = 0
SPARE_FILES = 512
CREATE_TIMEOUT_S = 30.0
DELIVERY_TIMEOUT_S = 60.0


class Gateway:
    """Delivers event after event to one gateway, as a lane does. `token` is the credential of its
    subscribers (empty: none)."""

    def __init__(
        self, config: Config, pid: int, transport: HttpDeliveryTransport, token: str
    ) -> None:
        self.token = token
        self.url = f"ws://{config.public.host}:{config.public.ws_port}/v1/subscribe?topic={TOPIC}"
        self._delivery_url = f"http://{config.gateway.client_address}:{config.gateway.client_port}"
        self._process = psutil.Process(pid)
        self._transport = transport
        self._seq = 0

    async def deliver(self, document: bytes, subscriptions: tuple[str, ...]) -> None:
        """Returns with the gateway's answer, which says that the event was taken."""
        self._seq += 1
        delivery = Delivery(
            topic=TOPIC,
            partition=PARTITION,
            seq=self._seq,
            event_id=f"event-{self._seq:012}",
            key=None,
            collection="",
            op="insert",
            document=msgspec.Raw(document),
            subscriptions=subscriptions,
            epoch=1,
        )
        batch = DeliveryBatch(GATEWAY_ID, window=1, attempt=0, deliveries=(delivery,))
        answer = await self._transport.deliver(
            self._delivery_url, batch, timeout_s=DELIVERY_TIMEOUT_S
        )
        if answer.verdicts != ("accepted",):
            raise Failed(f"the gateway's verdict was {answer.verdicts[0]}")

    def cpu_s(self) -> float:
        """What the gateway has used since its start."""
        used = self._process.cpu_times()
        return float(used.user + used.system)

    @property
    def rss_mb(self) -> float:
        return round(self._process.memory_info().rss / 2**20, 1)


def allow_sockets(clients: int) -> None:
    """Raise this process's limit of open files, and with it that of everything it starts."""
    if sys.platform == "win32":
        return
    import resource

    wanted = clients + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Failed(
            f"{clients} connections need {wanted} open files per process, and this system allows "
            f"{hard}: raise the limit (ulimit -Hn {wanted})"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@asynccontextmanager
async def gateway_running(
    folder: Path, say: Say, *, is_secured: bool = False
) -> AsyncIterator[Gateway]:
    """`is_secured`: everybody has to say who they are, and subscribers' grant has a filter."""
    loaded = demo_config(folder / "data")
    config = plan_ports(loaded.config, loaded.origins)
    if is_secured:
        config = with_administrator(config)
    data = DataFolder.open(Path(config.data))
    with data.lock():
        supervisor = build_supervisor(config, data, say, ROLES)
        try:
            await supervisor.start(lambda role: say(f"{role} is ready"))
            token = await _prepared(config)
            pid = supervisor.pids["gateway"]
            if pid is None:
                raise Failed("the gateway has ended")
            lane = find_cluster_tokens(config.security.cluster.tokens).passes("lane")
            transport = HttpDeliveryTransport("bench", token=lane.to("gateway"))
            try:
                yield Gateway(config, pid, transport, token)
            finally:
                await transport.close()
        finally:
            await supervisor.stop()


async def _prepared(config: Config) -> str:
    """There is a topic; returns what its subscribers have to say, which the gateway knows."""
    url = f"http://{config.public.host}:{config.public.port}"
    admin = administrator(config)
    async with HttpClient(url, credentials=admin) as client:
        wanted = CreateTopic(TOPIC, partitions=1)
        await client.post("/v1/topics", wanted, TopicInfo, timeout_s=CREATE_TIMEOUT_S)
    if admin is None:
        return ""
    token = await token_for(url, admin, f"subscribe on {TOPIC} where number >= 0")
    await known_at(url, token)
    return token
