"""A workload with the times of one profile and the memory of another: ``python profiles/transplant.py``.

What layers keep does not depend on the device, so a profile made on a CPU says it for a GPU as well, but for the
scratch of its kernels; how long they take does. Both profiles have the same tensors by name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import osfmodel as osf
from osfmodel.entities.batches import at_batch

MADE = {"resnet50-memory": ("resnet50-cpu", "resnet50-reconstructed")}
"""Name of the workload -> where its memory, and where its times and their batch size come from."""
FOLDER = Path(__file__).parent / "workloads"


def transplanted(name: str) -> osf.Workload:
    """The workload of that name in MADE."""
    memory, times = (osf.load_workload(one) for one in MADE[name])
    if times.batch_size is None:
        raise SystemExit(f"{times.name} does not say its batch size")
    held, timed = at_batch(memory, times.batch_size), {layer.name: layer for layer in times.layers}
    missing = sorted(timed.keys() - {layer.name for layer in held.layers})
    if missing:
        raise SystemExit(f"{memory.name} has no layer {missing[0]}")
    layers = tuple(_timed(layer, timed.get(layer.name)) for layer in held.layers)
    source = osf.Source(
        f"times of {times.name}, memory of {memory.name}",
        f"times: {times.source.conditions}; memory in proportion to the batch, from: {memory.source.conditions}",
        "Apache-2.0, as this project",
        times.source.gpu,
    )
    return replace(held, name=name, layers=layers, update_time=times.update_time, source=source)


def _timed(layer: osf.Layer, other: osf.Layer | None) -> osf.Layer:
    if other is None:
        return replace(layer, forward_time=0, backward_time=0, enqueue_time=None)
    if other.gradient_bytes != layer.gradient_bytes:
        raise SystemExit(f"layer {layer.name} has {layer.gradient_bytes} bytes in one and another number in the other")
    return replace(layer, forward_time=other.forward_time, backward_time=other.backward_time, enqueue_time=None)


if __name__ == "__main__":
    for name in MADE:
        osf.save(transplanted(name), FOLDER / f"{name}.json")
        print(f"wrote {name}.json")
