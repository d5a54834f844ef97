"""Where a figure comes from: every workload, cluster and measurement carries one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """Provenance of a profile.

    origin:      who measured it and where it is published (repository, path, commit; paper, table)
    conditions:  hardware, software and settings under which it was measured, and what was done to it since
    licence:     the terms under which the figures were published
    """

    origin: str = "not stated"
    conditions: str = "not stated"
    licence: str = "not stated"
