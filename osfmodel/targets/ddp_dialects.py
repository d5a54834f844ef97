"""Hugging Face Accelerate, and the Trainer on it: DistributedDataParallel, whose arguments they pass on.

DistributedDataParallelKwargs of accelerate 1.15.0 has ``bucket_cap_mb`` and no field for a list, but what its
``to_kwargs`` returns is given to DDP as it is; so the handler is made to return the list there (a subclass is refused:
handlers are looked up by their class). The Trainer of transformers 5.23.0 makes a handler of its own, which is replaced
before it trains. Both run by tests/live/test_dialects_live.py.
"""

from __future__ import annotations

from dataclasses import replace

from osfmodel.targets import ddp
from osfmodel.workload import Workload


def render(knobs: ddp.DdpKnobs, workload: Workload) -> str:
    """Python to paste where the Accelerator is made."""
    return ddp.arguments(knobs, workload) + HANDLER + ddp.hook_beside(workload)


HANDLER = """
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

handler = DistributedDataParallelKwargs()  # other arguments as usual
others = handler.to_kwargs()
handler.to_kwargs = lambda: {**others, **ddp_kwargs}  # it has no field for a list; what this returns is given to DDP
accelerator = Accelerator(kwargs_handlers=[handler])
# Hugging Face Trainer, in the place of the line above, before trainer.train():
#     trainer.accelerator.ddp_handler = handler
"""

TARGET = replace(
    ddp.TARGET,
    meaning="Hugging Face Accelerate or Trainer on PyTorch DDP: its default caps",
    render=render,
    dialect_of="ddp",
    compared=False,
)
