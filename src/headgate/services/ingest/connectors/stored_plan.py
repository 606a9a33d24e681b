"""What the partitions have stored of a connector, as a plan."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.decide.connectors.plan import ConnectorPlan, plan
from headgate.model.connector import Connector
from headgate.model.topology import Topic
from headgate.ports.log import LogReader
from headgate.services.ingest.connectors.handing_in import all_of
from headgate.services.ingest.partitions import Partitions


async def stored_plan(
    connector: Connector, topics: Sequence[Topic], reader: LogReader
) -> ConnectorPlan:
    """To go by only for who has claimed all of them."""
    refs = [ref for topic in topics for ref in topic.all_refs()]
    found = await all_of([reader.taken_in(ref, connector.name) for ref in refs])
    return plan(connector, topics, dict(zip(refs, found, strict=True)))


async def present_plan(
    connector: Connector, partitions: Partitions, reader: LogReader
) -> ConnectorPlan:
    """To look at: the connector's reader may move on meanwhile. Raises UnknownTopic."""
    topics = [partitions.topic(name) for name in connector.topics]
    return await stored_plan(connector, topics, reader)


def why_lost(planned: ConnectorPlan, *, begun: bool) -> str:
    """Why nobody but an operator can say where to go on, as far as the partitions know; empty: that
    is known."""
    if planned.ended:
        return "the origin has lost the history behind its last position"
    if not planned.resume and begun:
        return (
            "none of its positions is stored: its topics were deleted, their store was lost, or "
            "its coordinator's before it began"
        )
    return ""


def how_to_go_on(name: str, why: str) -> str:
    return f"{why}; say where to go on with `headgate connector reset {name} --to …`"
