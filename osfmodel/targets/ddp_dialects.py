"""Wrappers of DistributedDataParallel that pass its arguments on: Hugging Face Accelerate and Trainer, Lightning.

DistributedDataParallelKwargs of accelerate 1.15.0 has ``bucket_cap_mb`` and no field for a list, but what its
``to_kwargs`` returns is given to DDP as it is; so the handler is made to return the list there (a subclass is refused:
handlers are looked up by their class). The Trainer of transformers 5.23.0 makes a handler of its own, which is replaced
before it trains. Both run by tests/live/test_dialects_live.py.

Lightning's DDPStrategy passes on all arguments that it does not know: run with lightning 2.6.6 by the same test.
"""

from __future__ import annotations

from dataclasses import replace

from osfmodel.targets import ddp
from osfmodel.targets.target import LIGHTNING_ACCUMULATION, Accumulation

HANDLER = """
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

handler = DistributedDataParallelKwargs()  # other arguments as usual
others = handler.to_kwargs()
handler.to_kwargs = lambda: {**others, **ddp_kwargs}  # it has no field for a list; what this returns is given to DDP
accelerator = Accelerator(kwargs_handlers=[handler])
# Hugging Face Trainer, instead of the line above, before trainer.train():
#     trainer.accelerator.ddp_handler = handler
"""


def accelerate_accumulating(text: str, ending: str, count: int) -> str:
    """The lines with an Accelerator that accumulates."""
    made = "Accelerator(kwargs_handlers=[handler]"
    return text.replace(f"{made})", f"{made}, gradient_accumulation_steps={count})") + ACCUMULATED.format(count=count)


ACCUMULATED = """\
# The plan is for {count} micro-batches a step, sent with the last: train inside  with accelerator.accumulate(model):
# Hugging Face Trainer: TrainingArguments(gradient_accumulation_steps={count}, ...)
"""

ACCELERATE = replace(
    ddp.TARGET,
    summary="Hugging Face Accelerate or Trainer on PyTorch DDP: its default caps",
    text=replace(
        ddp.TARGET.text,
        render=lambda knobs, workload: ddp.arguments(knobs, workload) + HANDLER + ddp.hook_beside(workload),
        accumulation=Accumulation(accelerate_accumulating, lambda count: {"gradient_accumulation_steps": count}),
    ),
    dialect_of="ddp",
    live=False,
)


STRATEGY = """
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy

strategy = DDPStrategy(**ddp_kwargs)  # other arguments of DDP as usual
trainer = Trainer(strategy=strategy)  # add devices=..., num_nodes=... as usual
"""


LIGHTNING = replace(
    ddp.TARGET,
    summary="PyTorch Lightning on PyTorch DDP: its default caps",
    text=replace(
        ddp.TARGET.text,
        render=lambda knobs, workload: ddp.arguments(knobs, workload) + STRATEGY + ddp.hook_beside(workload),
        accumulation=LIGHTNING_ACCUMULATION,
    ),
    dialect_of="ddp",
    live=False,
)
