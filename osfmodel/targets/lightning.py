"""PyTorch Lightning: DistributedDataParallel, to which DDPStrategy passes all arguments that it does not know.

Run with lightning 2.6.6 by tests/live/test_dialects_live.py.
"""

from __future__ import annotations

from dataclasses import replace

from osfmodel.targets import ddp
from osfmodel.workload import Workload


def render(knobs: ddp.DdpKnobs, workload: Workload) -> str:
    """Python to paste where the Trainer is made."""
    return ddp.arguments(knobs, workload) + STRATEGY + ddp.hook_beside(workload)


STRATEGY = """
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy

strategy = DDPStrategy(**ddp_kwargs)  # other arguments of DDP as usual
trainer = Trainer(strategy=strategy)  # add devices=..., num_nodes=... as usual
"""

TARGET = replace(
    ddp.TARGET,
    meaning="PyTorch Lightning on PyTorch DDP: its default caps",
    render=render,
    dialect_of="ddp",
    compared=False,
)
