"""Memory snapshots as PyTorch writes them, of the segments of a simulated caching allocator."""

from __future__ import annotations

import pickle
from typing import Any

from osfmodel.engine.caching import CachedPart, CachingAllocator

Frames = list[dict[str, Any]]
BASE = 0x7F0000000000
TORCH = "/usr/lib/python3.12/site-packages/torch"


def frames(*words: str) -> Frames:
    """A stack, the innermost frame first, of words such as ``torch/optim/adam.py:_init_group``."""
    found = []
    for word in words:
        file, _, name = word.partition(":")
        found.append({"filename": file.replace("torch/", f"{TORCH}/", 1), "line": 7, "name": name})
    return found


STACKS = {
    "weights": frames("??:c10::cuda", "torch/nn/modules/module.py:convert", "/job/train.py:main"),
    "activations and scratch": frames("torch/nn/modules/linear.py:forward", "/job/model.py:forward"),
    "all-gather buffers": frames(
        "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:all_gather_copy_in_cuda",
        "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:foreach_all_gather",
        "torch/nn/modules/module.py:_call_impl",
    ),
    "unsharded groups": frames("torch/distributed/fsdp/_fully_shard/_fsdp_param.py:alloc_all_gather_outputs"),
    "reduce-scatter inputs": frames("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:foreach_reduce"),
    "buckets": frames("torch/nn/parallel/distributed.py:_ddp_init_helper", "/job/train.py:main"),
    "optimizer state": frames("torch/optim/adamw.py:_init_group", "/job/train.py:main"),
    "update scratch": frames("torch/optim/adamw.py:_multi_tensor_adamw", "/job/train.py:main"),
    "other": frames("/job/train.py:load_batch"),
    "gradients": [],
}  # fmt: skip
"""A stack for each owner; autograd's thread has none."""
FREED = {"update scratch": STACKS["update scratch"], "gradients": frames("torch/optim/optimizer.py:zero_grad")}


class Recorded:
    """A simulated allocator of a GPU that records what it does, as ``_record_memory_history`` has it."""

    def __init__(self, expandable: bool = False, device: int = 0) -> None:
        self.allocator, self.expandable, self.device = CachingAllocator(expandable=expandable), expandable, device
        self.there: dict[int, tuple[CachedPart, int, Frames, int]] = {}
        self.events: list[dict[str, Any]] = []
        self.peak = 0

    def _note(self, action: str, size: int, stack: Frames, **where: int) -> None:
        self.events.append({
            "action": action, **where, "size": size, "stream": 0, "time_us": 1795628272260278 + len(self.events),
            "compile_context": "N/A", "user_metadata": "", "frames": stack, "pool_id": (0, 0),
        })  # fmt: skip

    def take(self, size: int, owner: str, stream: int = 0) -> int:
        """Allocate bytes as ``owner`` does; the address."""
        before = self.allocator.reserved
        block = self.allocator.take(size, stream)
        assert block is not None
        self.peak = max(self.peak, self.allocator.allocated)
        address, grown = BASE + block.start, self.allocator.reserved - before
        if grown:
            self._note("segment_map" if self.expandable else "segment_alloc", grown, STACKS[owner], addr=address)
        self._note("alloc", size, STACKS[owner], addr=address)
        self.there[address] = (block, size, STACKS[owner], stream)
        return address

    def give(self, address: int, owner: str) -> None:
        """Free an allocation as ``owner`` does."""
        block, size, _, _ = self.there.pop(address)
        for action in ("free_requested", "free_completed"):
            self._note(action, size, FREED.get(owner, STACKS["other"]), addr=address)
        self.allocator.give(block)

    def fail(self, size: int, free: int) -> None:
        """Run out of memory."""
        self._note("oom", size, STACKS["activations and scratch"], device_free=free)

    def segments(self) -> list[dict[str, Any]]:
        """The segments with their blocks."""
        live = {id(block): (size, stack, stream) for block, size, stack, stream in self.there.values()}
        free = [block for pool in self.allocator._free.values() for _, _, block in pool]
        firsts: dict[int, CachedPart] = {}
        for one in [*free, *(block for block, *_ in self.there.values())]:
            part = one
            while part.before is not None:
                part = part.before
            firsts[part.start] = part
        return [self._segment(firsts[start], live) for start in sorted(firsts)]

    def _segment(self, first: CachedPart, live: dict[int, tuple[int, Frames, int]]) -> dict[str, Any]:
        blocks, part = [], first
        while part is not None:
            size, stack, _ = live.get(id(part), (0, [], 0))
            state = "active_allocated" if id(part) in live else "inactive"
            blocks.append({"address": BASE + part.start, "size": part.size, "requested_size": size, "state": state,
                           "frames": stack})  # fmt: skip
            part = part.after
        used = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        return {
            "device": self.device, "address": BASE + first.start, "total_size": sum(one["size"] for one in blocks),
            "allocated_size": used, "active_size": used, "requested_size": used, "stream": first.pool[0],
            "segment_type": "small" if first.pool[1] else "large", "segment_pool_id": (0, 0),
            "is_expandable": self.expandable, "frames": [], "blocks": blocks,
        }  # fmt: skip


def snapshot(*recorded: Recorded) -> dict[str, Any]:
    """The snapshot of the GPUs of one process."""
    traces: list[list[dict[str, Any]]] = [[] for _ in range(max(one.device for one in recorded) + 1)]
    for one in recorded:
        traces[one.device] = one.events
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": recorded[0].expandable}
    segments = [segment for one in recorded for segment in one.segments()]
    return {"segments": segments, "device_traces": traces, "allocator_settings": settings, "external_annotations": []}


def trained(expandable: bool = False, device: int = 0) -> Recorded:
    """Two steps of a job whose owners are known: 3 tensors of 24 MiB and what their training takes."""
    one, size = Recorded(expandable, device), 24 << 20
    for _ in range(3):
        one.take(size, "weights")
    for step in range(2):
        batch = one.take(1 << 20, "other")
        kept = [one.take(size, "activations and scratch") for _ in range(4)]
        grads = []
        for address in reversed(kept):
            grads += [one.take(size, "gradients")] if len(grads) < 3 else []
            one.give(address, "activations and scratch")
        if step == 0:
            for _ in range(6):
                one.take(size, "optimizer state")
        scratch = one.take(size, "update scratch")
        one.give(scratch, "update scratch")
        for address in [batch, *grads]:
            one.give(address, "gradients")
    return one


def pickled(*recorded: Recorded, protocol: int = 4) -> bytes:
    """The file that ``_dump_snapshot`` writes."""
    return pickle.dumps(snapshot(*recorded), protocol=protocol)
