"""Ranks in the test of the pages about training under a plan: ``torchrun -m tests.live.guiding PART``.

Each example runs as it stands, once with stand-ins that make it train under DDP, and under two plans. Each
part prints {case: distance of the parameters from DDP's}.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import osfmodel
from osfmodel.runtime import callbacks
from tests.conftest import ROOT
from tests.live.executing import RULES, apart, families, workload_of
from tests.repository.test_docs import blocks

PAGES = ("how-to/train-under-a-plan", "how-to/train-in-your-loop", "targets/runtime")
(_, LOOP), (ACCUMULATED, AMP, SAVE, RESUME, LIGHTNING, ACCELERATE), (_, LESS, SAVE_UNSENT, LOAD_UNSENT) = (
    blocks(ROOT / f"docs/{page}.md", "py") for page in PAGES
)
CASES = {"ddp": None, "merged plain": ("merged", "plain"), "mingled all": ("mingled", "all")}


def net():
    """The same on every rank."""
    torch.manual_seed(3)
    hidden = [part for _ in range(3) for part in (nn.Linear(16, 16), nn.Tanh())]
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), *hidden, nn.Linear(16, 3))


def data():
    """The same on every rank: 64 examples."""
    drawn = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(64, 8, generator=drawn), torch.randint(3, (64,), generator=drawn))


def plan_of(model, case):
    """The plan of a case; None for DDP."""
    if case is None:
        return None
    family, rules = case
    return families(workload_of(model))[family].under(RULES[rules])


def library(plan):
    """``osf``; where there is no plan, with an executor that does what DDP wants done."""
    if plan is not None:
        return osfmodel

    def execute(model, optimizer, plan):
        return SimpleNamespace(no_sync=model.no_sync, synchronize=lambda: None, close=lambda: None)

    return SimpleNamespace(execute=execute)


def distances(train):
    """{case: distance}, where ``train`` returns the parameters of a case."""
    reference = train(None)
    return {name: apart(train(case), reference) for name, case in CASES.items() if case}


def own():
    """The loops, one after the other, then a checkpoint, a new start from it, and on."""
    dist.init_process_group("gloo")
    share = TensorDataset(*(tensor[dist.get_rank() :: 2] for tensor in data().tensors))

    def fresh(case):
        model = net()
        plan = plan_of(model, case)
        model = DistributedDataParallel(model) if plan is None else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
        common = {"contextlib": contextlib, "torch": torch, "dist": dist, "device": "cpu", "osf": library(plan)}
        subject = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "plan": plan}
        return common | subject | {"loader": DataLoader(share, 4), "loss_of": nn.functional.cross_entropy}

    def train(case):
        names = fresh(case)
        for text in (LOOP, ACCUMULATED, AMP, LOOP.partition("\n")[2], SAVE):
            exec(text, names)
        names["executor"].close()
        dist.barrier()
        again = fresh(case)
        for text in (RESUME, AMP, ACCUMULATED):
            exec(text, again)
        again["executor"].close()
        assert apart(names["model"].parameters(), again["model"].parameters()) > 0
        return list(again["model"].parameters())

    return {"own": distances(train)}


def lightning():
    """As it stands, on from its checkpoint, and without clipping in bfloat16."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = net()

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def validation_step(self, batch, _):
            self.log("loss", nn.functional.cross_entropy(self.model(batch[0]), batch[1]), sync_dist=True)

        def val_dataloader(self):
            return DataLoader(data(), 4)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]

    strategy = callbacks.lightning_strategy
    plain = LIGHTNING.replace("gradient_clip_val=1.0", 'precision="bf16-mixed"').replace(
        "accumulate_grad_batches=2,", ""
    )
    resumed = LIGHTNING.replace("max_epochs=2", "max_epochs=4").replace("loader)", "loader, ckpt_path=path)")
    assert len({LIGHTNING, plain, resumed}) == 3

    class Manual(Module):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, number):
            loss = super().training_step(batch, number)
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def fit(text, case, path=None, kind=Module):
        module = kind()
        plan = plan_of(module, case)
        if plan is not None and dist.get_rank() == 0:
            osfmodel.save(plan, "plan.json")
        if plan is not None:
            dist.barrier()
        callbacks.lightning_strategy = strategy if plan is not None else lambda _: "ddp"
        given = {"load_plan": osfmodel.load_plan if plan is not None else lambda _: None}
        names = {"osf": SimpleNamespace(**given), "module": module, "loader": DataLoader(data(), 4), "path": path}
        exec(text, names)
        assert (type(names["trainer"].strategy).__name__ == "PlanStrategy") == (plan is not None)
        return list(module.parameters()), names["trainer"].checkpoint_callback.best_model_path

    class Two(Manual):  # Lightning takes two optimizers only so
        def configure_optimizers(self):
            return [torch.optim.SGD(self.model[k].parameters()) for k in (0, 2)]

        def on_fit_start(self):
            raise AssertionError("two optimizers were taken")

    def refused():
        names = {"osf": osfmodel, "module": Two(), "loader": DataLoader(data(), 4)}
        try:
            exec(plain, names)
        except osfmodel.UsageError as error:
            return str(error)
        return "nothing was raised"

    def train_on(case):
        _, path = fit(LIGHTNING, case)
        return fit(resumed, case, path)[0]

    return {
        "lightning": distances(lambda case: fit(LIGHTNING, case)[0]),
        "lightning resumed": distances(train_on),
        "lightning plain": distances(lambda case: fit(plain, case)[0]),
        "lightning manual": distances(lambda case: fit(plain, case, kind=Manual)[0]),
        "refused": refused(),
    }


def accelerate():
    """As it stands, on from a state that it saved, and without what looks at gradients in bfloat16."""
    from accelerate.state import AcceleratorState, GradientState

    lines = ACCELERATE.splitlines(keepends=True)
    plain = "".join(line for line in lines if not any(word in line for word in ("sync_gradients", "synchro", "clip")))
    plain = plain.replace("cpu=True", 'cpu=True, mixed_precision="bf16"')
    start = ACCELERATE.index("for inputs")

    def train(text, case, on):
        AcceleratorState._reset_state()
        GradientState._reset_state()
        model = net()
        plan = plan_of(model, case)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        names = {"model": model, "optimizer": optimizer, "plan": plan, "loader": DataLoader(data(), 4)}
        names |= {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7), "osf": library(plan)}
        names["loss_of"] = nn.functional.cross_entropy
        exec(text if plan is not None else text.replace(", evaluation_mode=True", ""), names)
        assert isinstance(names["model"], DistributedDataParallel) == (plan is None)
        if on:
            folder = str(case)
            names["accelerator"].save_state(folder)
            names["accelerator"].wait_for_everyone()
            for again in (False, True):
                if again:
                    names["accelerator"].load_state(folder)
                exec(text[start:], names)
        names["executor"].close()
        return list(model.parameters())

    return {
        "accelerate": distances(lambda case: train(ACCELERATE, case, False)),
        "accelerate resumed": distances(lambda case: train(ACCELERATE, case, True)),
        "accelerate plain": distances(lambda case: train(plain, case, False)),
    }


def less():
    """{plan: distance}: release and recomputation from neither; resumed sparse training from such that was not."""
    dist.init_process_group("gloo")
    share = TensorDataset(*(tensor[dist.get_rank() :: 2] for tensor in data().tensors))

    def fresh(which):
        model = net()
        names = {"plan": plan_of(model, ("merged", "plain"))}
        exec(LESS, names)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        names |= {"model": model, "optimizer": optimizer, "torch": torch, "dist": dist, "osf": osfmodel}
        return names | {"plan": names[which], "loader": DataLoader(share, 4), "loss_of": nn.functional.cross_entropy}

    def train(which, resumed=False):
        names = fresh(which)
        exec(LOOP, names)
        if resumed:
            exec(SAVE_UNSENT, names)
            saved = [names[part].state_dict() for part in ("model", "optimizer")]
            names["executor"].close()
            names = fresh(which)
            exec(LOOP.partition("\n")[0], names)
            exec(LOAD_UNSENT, names)
            for part, state in zip(("model", "optimizer"), saved, strict=True):
                names[part].load_state_dict(state)
        exec(LOOP.partition("\n")[2], names)
        names["executor"].close()
        return list(names["model"].parameters())

    found = {"released": apart(train("released"), train("plan"))}
    for which in ("sparse", "mirrored"):
        found[which] = apart(train(which, resumed=True), train(which))
    found["dense"] = apart(train("sparse"), train("plan"))
    return found


if __name__ == "__main__":
    told = {"own": own, "less": less, "lightning": lightning, "accelerate": accelerate}[sys.argv[1]]()
    rank = dist.get_rank()
    Path(f"{sys.argv[1]}-{rank}.json").write_text(json.dumps(told))
    dist.barrier()
    os._exit(0)  # what the frameworks still hold keeps gloo's threads alive, which at times abort an ending interpreter
