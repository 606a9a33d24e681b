"""`headgate node`: which nodes there are, and how one of them gives its partitions away, or begins
anew."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from typing import Annotated

import msgspec

from headgate.cli.command_line import Argument, Group, Option
from headgate.cli.following import (
    DEFAULT_TIMEOUT,
    POLL_S,
    TimeoutOption,
    WaitOption,
    none_left,
    seconds,
)
from headgate.cli.moves import happened, owned
from headgate.cli.output import (
    NO_URL,
    JsonOption,
    UrlOption,
    await_,
    calls_to,
    console,
    print_json,
    say,
)
from headgate.cli.views.tables import plural
from headgate.client.http import HttpClient
from headgate.errors import HeadgateError, InvalidRequest, NotFound, NotNow, Timeout
from headgate.model.api import NodeStatus, PlannedMove, Status

app = Group(help="List the nodes, drain or restart one of them.")

NODE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class NodeList(msgspec.Struct):
    """What `node list --json` prints."""

    nodes: list[NodeStatus]


class Drained(msgspec.Struct):
    """What `node drain --json` prints."""

    node: NodeStatus
    moves: list[PlannedMove]


@app.command("list")
def list_nodes(url: UrlOption = NO_URL, as_json: JsonOption = False) -> None:
    """List the coordinator and all nodes that it knows."""
    from headgate.cli.views.status import nodes_table

    found = NodeList(await_(_status(url)).nodes)
    if as_json:
        print_json(found)
    else:
        console().print(nodes_table(found.nodes))


@app.command()
def drain(
    node_id: Annotated[
        str, Argument(metavar="ID", help="The node, as `headgate node list` names it.")
    ],
    cancel: Annotated[
        bool, Option("--cancel", help="End the draining: the node gets partitions again.")
    ] = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Let a node give everything away and get nothing, so that it can be stopped.

    It stays so until --cancel, or until the node leaves.
    """
    if cancel and wait:
        raise InvalidRequest("--wait is for draining: leave it out with --cancel")
    if not NODE_ID.fullmatch(node_id):
        raise NotFound(f"there is no node {node_id!r}: see `headgate node list`", node=node_id)
    limit_s = seconds(timeout) if wait else None
    drained = await_(_drain(url, node_id, cancel=cancel, wait_s=limit_s, quiet=as_json))
    if as_json:
        print_json(drained)


@app.command()
def restart(
    node_id: Annotated[
        str, Argument(metavar="ID", help="The node, as `headgate node list` names it.")
    ],
    wait: Annotated[bool, Option("--wait", help="Wait until it is ready again.")] = False,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Let a node stop and begin anew, in place; its partitions wait for it.

    They do so for coordinator.timeout, then they go to others.
    """
    if not NODE_ID.fullmatch(node_id):
        raise NotFound(f"there is no node {node_id!r}: see `headgate node list`", node=node_id)
    limit_s = seconds(timeout) if wait else None
    node = await_(_restart(url, node_id, wait_s=limit_s, quiet=as_json))
    if as_json:
        print_json(node)


async def _restart(url: str, node_id: str, *, wait_s: float | None, quiet: bool) -> NodeStatus:
    async with calls_to(url) as client:
        before = _node(await client.get("/v1/status", Status), node_id)
        if before is not None and before.role == "coordinator":
            raise InvalidRequest(
                f"{node_id} is the coordinator, for which nothing has to wait: stop it, start it"
            )
        node = _decoded(await client.call("POST", f"/v1/nodes/{node_id}/restart"))
        if not quiet:
            say(f"{node_id} restarts; it keeps its {plural(node.partitions, 'partition')}")
        if wait_s is not None:
            node = await _back(client, node, wait_s)
            if not quiet:
                say(f"{node_id} is back")
    return node


async def _back(client: HttpClient, before: NodeStatus, wait_s: float) -> NodeStatus:
    """The node as another process of its name, once that is ready. What answers may be the very
    gateway that restarts."""
    deadline_s = time.monotonic() + wait_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(NotNow):
            found = _node(await client.get("/v1/status", Status), before.id)
            is_new = found is not None and found.incarnation != before.incarnation
            if found is not None and is_new and found.state in ("ready", "draining"):
                return found
        await asyncio.sleep(POLL_S)
    raise Timeout(
        f"{before.id} isn't back after {wait_s:g} s: see `headgate node list`, or wait longer with "
        "--timeout"
    )


async def _status(url: str) -> Status:
    async with calls_to(url) as client:
        return await client.get("/v1/status", Status)


async def _drain(
    url: str, node_id: str, *, cancel: bool, wait_s: float | None, quiet: bool
) -> Drained:
    async with calls_to(url) as client:
        before = await client.get("/v1/status", Status)
        if (known := _node(before, node_id)) is not None and known.role == "coordinator":
            raise InvalidRequest(f"{node_id} is the coordinator, which owns no partitions")
        method = "DELETE" if cancel else "POST"
        answer = await client.call(method, f"/v1/nodes/{node_id}/drain")
        after = await client.get("/v1/status", Status)
        drained = Drained(
            _node(after, node_id) or _decoded(answer), happened(before, after, node_id)
        )
        if not quiet:
            _show(drained, after, cancel=cancel)
        if wait_s is not None:
            await none_left(
                client,
                lambda now: _still_owned(now, node_id),
                total=max(len(drained.moves), owned(after, node_id), int(after.learning)),
                timeout_s=wait_s,
            )
            empty = msgspec.structs.replace(drained.node, partitions=0)
            drained = msgspec.structs.replace(drained, node=empty)
            if not quiet:
                say(f"{node_id} owns nothing any more and can be stopped")
    return drained


def _decoded(answer: bytes) -> NodeStatus:
    return msgspec.json.decode(answer, type=NodeStatus)


def _node(status: Status, node_id: str) -> NodeStatus | None:
    return next((node for node in status.nodes if node.id == node_id), None)


def _still_owned(status: Status, node_id: str) -> int:
    """Raises when another operator has ended the draining: waiting would have no end."""
    count, node = owned(status, node_id), _node(status, node_id)
    if count and node is not None and node.state in ("ready", "starting"):
        raise HeadgateError(f"{node_id} isn't draining any more: an operator has ended it")
    # A coordinator that is still learning may not know yet what the node has.
    return max(count, int(status.learning))


def _show(drained: Drained, after: Status, *, cancel: bool) -> None:
    from headgate.cli.views.plan import plan_table

    node, moves = drained.node, drained.moves
    if moves:
        console().print(plan_table(moves))
    if cancel:
        say(f"{node.id} is not draining; {_coming(moves)}")
    elif after.learning:
        say(f"{node.id} is draining; nothing moves while the coordinator learns who owns what")
    elif moves:
        say(f"{node.id} is draining: it gives away {plural(len(moves), 'partition')}")
    elif node.partitions:
        say(f"{node.id} is draining; {plural(node.partitions, 'partition')} still to move")
    else:
        say(f"{node.id} is draining, owns nothing and can be stopped")


def _coming(moves: list[PlannedMove]) -> str:
    return f"it gets {plural(len(moves), 'partition')}" if moves else "nothing moves now"
