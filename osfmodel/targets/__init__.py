"""Configuration targets: CONFIG_TARGETS maps a framework's name to its Target.

To add one: a module with a TARGET and one line here. Its default knobs are at once a named plan of ``osf predict``,
and tests/conformance runs over the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from osfmodel.targets import ddp, horovod
from osfmodel.targets.target import Target

__all__ = ["CONFIG_TARGETS", "Target"]

CONFIG_TARGETS: Mapping[str, Target] = {
    "ddp": ddp.TARGET,
    "horovod": horovod.TARGET,
}
