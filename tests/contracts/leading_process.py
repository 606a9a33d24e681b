"""A coordinator reduced to what an election is about: it campaigns, then saves while it leads.

It prints "ready" once etcd has answered, then one JSON line for everything that happens. Every
save holds the revision of the leadership it was made under, so that etcd's own history shows who
wrote when.

`python -m tests.contracts.leading_process ENDPOINTS PREFIX NAME TTL_S`
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing

from headgate.adapters.etcd.connection import EtcdConnection
from headgate.adapters.etcd.coordination import EtcdCoordinationStore
from headgate.adapters.etcd.election import EtcdElection
from headgate.errors import Fenced, StorageFailed
from headgate.model.leader import Leader
from headgate.model.stored import StoredState
from headgate.ports.election import Leadership


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201


async def lead(connection: EtcdConnection, leadership: Leadership) -> None:
    store = EtcdCoordinationStore(connection, leadership)
    count = 0
    while True:
        count += 1
        try:
            await store.save(StoredState(gateways=(f"{leadership.revision}-{count}",)))
        except Fenced as error:
            say(event="fenced", revision=leadership.revision, held=leadership.held, why=str(error))
            return
        except StorageFailed:
            say(event="failed", revision=leadership.revision)
            continue
        say(event="saved", revision=leadership.revision)
        await asyncio.sleep(0.02)


async def main(endpoints: str, prefix: str, name: str, ttl_s: int) -> None:
    # With a short lease a save is given up soon, so that the end of the lease is seen in time.
    connection = EtcdConnection(
        endpoints, prefix=prefix, timeout_s=max(2.0, ttl_s / 2), attempt_timeout_s=0.5
    )
    election = EtcdElection(connection, ttl_s=ttl_s)
    async with aclosing(election.observe()) as seen:
        await anext(seen)
    print("ready", flush=True)  # noqa: T201
    while True:
        leadership = await election.campaign(Leader(name))
        say(event="leads", revision=leadership.revision)
        await lead(connection, leadership)
        await leadership.lost()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
