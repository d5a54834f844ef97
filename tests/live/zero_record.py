"""Record what a step of real DeepSpeed sends, for tests/engine/test_zero_record.py (gloo, CPU, two ranks).

``DS_ACCELERATOR=cpu python -m torch.distributed.run --nproc-per-node 2 tests/live/zero_record.py FILE`` writes FILE:
models, settings, and the (kind, bytes, type) of each collective of the fourth step, when stage 3 knows the order of
use. Once stage 3 has run in a process, linear layers have gradients in another order, which is recorded too.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

KINDS = {"all_reduce": 0, "all_gather_into_tensor": 0, "reduce_scatter_tensor": 1}
"""Collectives of torch.distributed, and the argument whose bytes count."""
STAGE_3 = (
    {},
    {"param_persistence_threshold": 0},
    {"param_persistence_threshold": 50, "prefetch_bucket_size": 400, "bucket": 700},
    {"param_persistence_threshold": 50, "prefetch_bucket_size": 400, "bucket": 700, "max_reuse_distance": 0},
    {"param_persistence_threshold": 0, "prefetch_bucket_size": 1000, "bucket": 1500, "max_reuse_distance": 1500},
    {"param_persistence_threshold": 0, "prefetch_bucket_size": 0, "bucket": 1500, "max_reuse_distance": 0},
    {"param_persistence_threshold": 0, "prefetch_bucket_size": 2000, "max_live_parameters": 2500, "bucket": 1500,
     "max_reuse_distance": 0},
    {"param_persistence_threshold": 20, "model_persistence_threshold": 60, "prefetch_bucket_size": 300,
     "bucket": 1500, "max_reuse_distance": 100},
)  # fmt: skip
"""Settings of stage 3: names behind ``stage3_``, and ``bucket`` for ``reduce_bucket_size``."""
LAST = {
    "param_persistence_threshold": 20, "prefetch_bucket_size": 300, "bucket": 1500, "max_reuse_distance": 100
}  # fmt: skip
BF16 = {"bf16": {"enabled": True}}


def cases() -> list[dict[str, Any]]:
    """Settings of each run."""
    found = []
    for model in ("chain", "decoder"):
        whole = {"reduce_bucket_size": 700, "reduce_scatter": False}
        found += [
            {"model": model, "zero": {"stage": stage, **whole, "overlap_comm": overlap}}
            for stage in (1, 2)
            for overlap in (False, True)
        ]
        found.append({"model": model, "zero": {"stage": 1, "reduce_bucket_size": 1500, "overlap_comm": True}})
        overlapping = {**whole, "overlap_comm": True}
        found += [{"model": model, "zero": {"stage": stage, **overlapping}, "micro_batches": 2} for stage in (2, 1)]
        found += [{"model": model, "zero": _third(given)} for given in STAGE_3]
        found.append({"model": model, "zero": _third(LAST), "micro_batches": 2})
        found.append({"model": model, "zero": _third(LAST), "more": BF16})
        found.append({"model": model, "zero": {"stage": 2, **whole}, "more": BF16})
        more = {**BF16, "communication_data_type": "fp32"}
        found.append({"model": model, "zero": {"stage": 2, **whole}, "more": more})
    return [{"micro_batches": 1, "more": {}, **case} for case in found]


def _third(given: dict[str, int]) -> dict[str, int]:
    named = {f"stage3_{name}": value for name, value in given.items() if name != "bucket"}
    return {"stage": 3, **named, **({"reduce_bucket_size": given["bucket"]} if "bucket" in given else {})}


def models(torch: Any) -> dict[str, Any]:
    """(model, batch) makers: a chain of linear layers of odd sizes, and a small decoder with an embedding."""
    nn = torch.nn

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (7, 33, 20, 64, 5, 90, 11)
            self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))

        def forward(self, given: Any) -> Any:
            for layer in self.layers:
                given = torch.tanh(layer(given))
            return given.sum()

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.norm2, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width, bias=False)
            self.down = nn.Linear(4 * width, width)

        def forward(self, given: Any) -> Any:
            query, key, value = self.qkv(self.norm1(given)).chunk(3, -1)
            given = given + self.out(torch.softmax(query @ key.transpose(-1, -2), -1) @ value)
            return given + self.down(torch.relu(self.up(self.norm2(given))))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(53, 12)
            self.blocks = nn.ModuleList(Block(12) for _ in range(3))
            self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 53, bias=False)

        def forward(self, given: Any) -> Any:
            given = self.embed(given)
            for block in self.blocks:
                given = block(given)
            return self.head(self.norm(given)).sum()

    return {
        "chain": (Chain, lambda: torch.ones(3, 7)),
        "decoder": (Decoder, lambda: torch.zeros(2, 5, dtype=torch.long)),
    }


class Recorder:
    """Notes of the collectives that torch.distributed is asked for."""

    def __init__(self, distributed: Any) -> None:
        self.sent: list[list[Any]] = []
        self.on = False
        for name, place in KINDS.items():
            setattr(distributed, name, self._noting(name, place, getattr(distributed, name)))

    def _noting(self, name: str, place: int, real: Any) -> Any:
        def noted(*given: Any, **named: Any) -> Any:
            tensor = given[place] if len(given) > place else next(iter(named.values()))
            if self.on:
                self.sent.append([name, tensor.numel() * tensor.element_size(), str(tensor.dtype)[6:]])
            return real(*given, **named)

        return noted


def ready_order(torch: Any, model: Any, batch: Any) -> list[list[Any]]:
    """Names and shapes of parameters, in the reverse of the order in which gradients become ready."""
    ready: list[list[Any]] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda one, name=name: ready.append([name, list(one.shape)]))
    model(batch).backward()
    return ready[::-1]


def record(path: Path) -> None:
    """Run all cases; rank 0 writes them."""
    import torch
    import torch.distributed

    recorder = Recorder(torch.distributed)
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
    known, orders, runs = models(torch), [], []
    for case in cases():
        build, batch = known[case["model"]]
        rows = ready_order(torch, build(), batch())
        if rows not in orders:
            orders.append(rows)
        model = build()
        own = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True}
        own |= {"gradient_accumulation_steps": case["micro_batches"], "zero_optimization": case["zero"], **case["more"]}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=own)
        for step in range(4):
            recorder.on = step == 3
            for _ in range(case["micro_batches"]):
                given = batch()
                given = given.bfloat16() if case["more"] and given.is_floating_point() else given
                engine.backward(engine(given))
                engine.step()
        recorder.on = False
        runs.append({**case, "parameters": orders.index(rows), "sent": list(recorder.sent)})
        recorder.sent.clear()
        engine.destroy()
    if torch.distributed.get_rank() == 0:
        versions = {"deepspeed": deepspeed.__version__, "torch": torch.__version__}
        lines = [",\n  ".join(json.dumps(row, separators=(",", ":")) for row in rows) for rows in (orders, runs)]
        head = json.dumps({"versions": versions, "ranks": 2})[:-1]
        path.write_text(f'{head},\n "parameters": [\n  {lines[0]}\n ],\n "runs": [\n  {lines[1]}\n ]\n}}\n')
    torch.distributed.barrier()
    os._exit(0)  # what DeepSpeed still holds keeps gloo's threads alive, which at times abort an interpreter that ends


if __name__ == "__main__":
    record(Path(sys.argv[1]))
