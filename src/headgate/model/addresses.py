"""Addresses that a server listens on, and the addresses at which other processes reach it."""

from __future__ import annotations

ANY_HOST = ("", "0.0.0.0", "::")  # noqa: S104  # compared with, not listened on
"""Stand for all addresses of a machine; nobody can connect to them."""


def reachable(host: str, port: int, *, advertised: str = "") -> str:
    """`host:port` of what listens on `host`, for others; `advertised` is how they reach it, where
    that is known."""
    name = advertised or ("127.0.0.1" if host in ANY_HOST else host)
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
