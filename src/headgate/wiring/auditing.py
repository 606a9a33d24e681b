"""Where a role writes down what operators did and who was refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headgate.adapters.audit_file import AuditFile
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.machine import THIS_MACHINE
from headgate.config import Config


@dataclass(frozen=True, slots=True)
class AuditOptions:
    path: Path
    max_bytes: int
    keep: int


def audit_options(config: Config, folder: DataFolder, role: str) -> AuditOptions:
    """A file per node: one without a name of its own shares that of its role."""
    settings = config.security.audit
    kept_in = Path(settings.folder).expanduser() if settings.folder else folder.audit_dir
    name = config.client_id or role
    return AuditOptions(kept_in / f"{name}.jsonl", settings.max_size, settings.keep)


def audit_trail(config: Config, folder: DataFolder, role: str) -> AuditFile:
    options = audit_options(config, folder, role)
    return AuditFile(
        options.path,
        machine=THIS_MACHINE,
        max_bytes=options.max_bytes,
        keep=options.keep,
        role=role,
        node_id=config.client_id,
    )
