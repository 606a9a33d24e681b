"""What clients say changes nothing that must be stored or told, so it waits for nobody."""

from __future__ import annotations

from pathlib import Path

from headgate.model.control import from_coordinator, to_coordinator
from tests.services.coordinator.test_service import running
from tests.waiting import until


async def test_a_clients_acknowledgement_counts_while_a_decision_is_being_stored(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as served:
        cluster = served.coordinator._leading().cluster
        client = served.join("client", "client-1")
        await until(lambda: client.last(from_coordinator.PushTopology))
        served.store.gate.clear()
        served.join("gateway", "gateway-1")
        await until(lambda: "gateway-1" in cluster.members)

        await client.session.send(to_coordinator.AckTopology(cluster.generation, ("t",)))

        await until(lambda: [c.topics for c in cluster.clients.values()] == [("t",)], 5.0)
        assert not served.store.gate.is_set()
