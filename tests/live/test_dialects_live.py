"""Lines for Accelerate, the Trainer and Lightning, run by them: the buckets are read from DDP's log."""

from __future__ import annotations

import json
import os

import pytest

import osfmodel as osf
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.entities.plan import contiguous_plan
from osfmodel.solve import Limits
from tests.conftest import workload_of
from tests.live.launching import told

if not os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    for package in ("torch", "accelerate", "lightning", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install {package}")

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
SIZES = [600_000, 40_000, 900_000, 4_000, 350_000, 1_200_000]
"""Bytes, in the order in which gradients become ready."""
ENDS = [2, 3, 6]
SCRIPT = """
import json, sys
import torch, torch.distributed as dist

answer, folder, sizes, parts = *sys.argv[1:3], json.loads(sys.argv[3]), sys.argv[4:]

class Chain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tensors = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(size // 4)) for size in sizes[::-1])

    def forward(self, x, labels=None):
        for tensor in self.tensors:
            x = x + tensor.sum()
        return {"loss": x.mean()}

def formed(ddp):
    return [int(size) for size in ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")]

def on_accelerate(lines):
    names = {}
    exec(lines, names)
    accelerator, model = names["accelerator"], Chain()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for _ in range(3):
        accelerator.backward(model(torch.ones(1))["loss"])
        optimizer.step()
    return formed(model)

def on_trainer(lines):
    import transformers

    names = {}
    exec(lines, names)
    arguments = transformers.TrainingArguments(
        folder, max_steps=3, per_device_train_batch_size=1, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="no", logging_strategy="no", dataloader_pin_memory=False,
    )
    trainer = transformers.Trainer(Chain(), arguments, train_dataset=[{"x": torch.ones(1)}] * 8)
    replaced, = [line.strip("# ") for line in lines.splitlines() if "trainer.accelerator" in line]
    exec(replaced, names | {"trainer": trainer})
    trainer.train()
    return formed(trainer.model_wrapped)

def on_lightning(lines):
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.chain = Chain()

        def training_step(self, batch, index):
            return self.chain(batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def on_train_end(self):
            self.formed = formed(self.trainer.strategy.model)  # unwrapped afterwards

    names = {}
    quiet = "logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False"
    given = f"Trainer(strategy=strategy, accelerator='cpu', devices=2, max_steps=3, {quiet})"
    exec(lines.replace("Trainer(strategy=strategy)", given), names)
    module = Module()
    names["trainer"].fit(module, torch.utils.data.DataLoader(torch.ones(8, 1)))
    return module.formed

accelerate, lightning = parts
found = [on_accelerate(accelerate), on_trainer(accelerate), on_lightning(lightning)]
if dist.get_rank() == 0:
    open(answer, "w").write(json.dumps(found))
"""


def test_they_form_the_plan(tmp_path):
    workload = workload_of([float(i) for i in range(len(SIZES))], SIZES)
    plan, pricing = contiguous_plan(workload, ENDS), Pricing.of(AffineCost(((1e-3, 1e-9),)), workers=2)
    lines = []
    for name in ("accelerate", "lightning"):
        target = osf.CONFIG_TARGETS[name]
        knobs = target.convert.complete(
            target.convert.from_plan(plan, workload, pricing, Limits()), workload, [pricing], Limits()
        )
        lines.append(target.text.render(knobs, workload))
    found = told(SCRIPT, 2, tmp_path, str(tmp_path), json.dumps(SIZES), *lines, ACCELERATE_USE_CPU="true")
    assert found == [[bucket.size for bucket in plan.buckets]] * 3
