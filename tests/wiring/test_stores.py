"""The configuration's choice of a store is the one that is opened, or a sentence says why not."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.etcd.election import EtcdElection
from headgate.config.load import load_config
from headgate.errors import InvalidConfig
from headgate.model.lanes import LaneSettings, LogStore
from headgate.wiring.roles import lane_settings
from headgate.wiring.stores import (
    checkpoint_place,
    coordination,
    open_checkpoints,
    open_log_reader,
)

SETTINGS: dict[str, dict[str, object]] = {
    "embedded": {},
    "etcd": {"etcd.endpoints": "one:2379, [::1]:2379", "etcd.user": "me", "etcd.password": "x"},
    "mongo": {"mongo.url": "mongodb://one,two/?replicaSet=x"},
}
KINDS = {
    "embedded": "EmbeddedCheckpointStore",
    "etcd": "EtcdCheckpointStore",
    "mongo": "MongoCheckpointStore",
}


@pytest.mark.parametrize("backend", SETTINGS)
async def test_the_chosen_store_of_positions_is_opened_also_in_a_lane(
    tmp_path: Path, backend: str
) -> None:
    given = {"reliability.checkpoint.backend": backend, **SETTINGS[backend]}
    config = load_config(command_line=given, environ={}, working_dir=tmp_path).config
    place = checkpoint_place(config)
    # As it travels to a worker.
    encoded = msgspec.json.encode(lane_settings(config))
    assert msgspec.json.decode(encoded, type=LaneSettings).checkpoints == place
    store = open_checkpoints(place, DataFolder.open(tmp_path / "data"))
    assert type(store).__name__ == KINDS[backend]
    await store.close()


@pytest.mark.parametrize(
    ("backend", "library", "extra"),
    [
        ("etcd", "aetcd", "headgate[etcd]"),
        ("mongo", "pymongo", "headgate[mongo]"),
        ("postgresql", "psycopg", "headgate[postgres]"),
    ],
)
def test_a_library_that_is_missing_is_named_with_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, library: str, extra: str
) -> None:
    found = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith("headgate.adapters."):
            raise ModuleNotFoundError(f"No module named {library!r}")
        return found(name, *args)

    folder = DataFolder.open(tmp_path / "data")
    config = load_config(environ={}, working_dir=tmp_path).config
    place = msgspec.structs.replace(checkpoint_place(config), backend=backend)
    is_log = backend == "postgresql"
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidConfig) as said:
        _ = (
            open_log_reader(LogStore(backend), folder)
            if is_log
            else open_checkpoints(place, folder)
        )
    assert f"needs {library}, which isn't installed: run pip install '{extra}'" in str(said.value)


@pytest.mark.parametrize(
    ("timeout", "ttl_s"), [("30s", 10), ("31s", 11), ("6s", 4)], ids=["default", "up", "least"]
)
def test_a_leader_is_replaced_in_a_third_of_the_time_that_nodes_have(
    tmp_path: Path, timeout: str, ttl_s: int
) -> None:
    given = {
        "coordinator.store": "etcd",
        "coordinator.timeout": timeout,
        "coordinator.check_in": "2s",
        "etcd.endpoints": "one:2379",
    }
    config = load_config(command_line=given, environ={}, working_dir=tmp_path).config
    election, _ = coordination(config, DataFolder.open(tmp_path / "data"))
    assert isinstance(election, EtcdElection)
    assert election.ttl_s == ttl_s
