"""Conditions under which a profile was measured, in words, and its reliability."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from osfmodel.entities.display import show_time
from osfmodel.entities.measurement import NO_GPU, WIDE
from osfmodel.entities.workload import Workload
from osfmodel.runtime.profiler.steps import UNEVEN, ProfiledIteration, Tensor, middle, spread, uneven

AGREEMENT = 0.03
"""Relative difference between the layers and the step without hooks that counts as a disagreement."""


class Wanted(NamedTuple):
    """The request for a profile."""

    name: str
    batch_size: int | None
    warm_up: int
    steps: int | None
    remark: str = ""


class Finding(NamedTuple):
    """The measurement: all steps, those that the layers come from, and the device."""

    steps: Sequence[ProfiledIteration]
    counted: Sequence[ProfiledIteration]
    tensors: Mapping[str, Tensor]
    device: Any
    optimizers: Sequence[str]

    @property
    def bare(self) -> list[float]:
        """Seconds of the steps without hooks."""
        return [step.total for step in self.steps if not step.hooked]

    @property
    def totals(self) -> list[float]:
        """Seconds of the steps that the layers come from."""
        return [step.total for step in self.counted]

    @property
    def difference(self) -> float:
        """Sum of the layers and the update over the median step without hooks, less 1."""
        return middle(self.totals) / middle(self.bare) - 1


def agreement(finding: Finding) -> str:
    """A sentence if the layers do not add up to the step without hooks; "" if they do."""
    if not finding.bare or abs(finding.difference) <= AGREEMENT:
        return ""
    with_hooks, bare = show_time(middle(finding.totals)), show_time(middle(finding.bare))
    return (
        f"layers and update add up to {with_hooks}, {finding.difference:+.1%} against {bare} of the steps without "
        f"hooks, which is beyond {AGREEMENT:.0%}; nothing was scaled"
    )


def doubts(finding: Finding) -> list[str]:
    """A sentence for each reason not to trust a profile."""
    found = [agreement(finding)]
    width = spread(finding.totals)
    if width > WIDE:
        found.append(f"steps spread by {width:.0%} (quartiles over median): something else was running, measure again")
    return [sentence for sentence in found if sentence]


def doubt(finding: Finding) -> float:
    """The part by which a profile that warns of itself may be off, either way; 0 for one that does not.

    Half of what its steps spread by, or the difference of its layers from the step without hooks.
    """
    width = spread(finding.totals)
    parts = [width / 2 if width > WIDE else 0.0, abs(finding.difference) if agreement(finding) else 0.0]
    return round(max(parts), 3)


def conditions(wanted: Wanted, finding: Finding) -> str:
    """One line on the conditions for the source of the workload."""
    parts = [machine(finding.device), wanted.remark, _optimizer(finding), *_policy(wanted, finding)]
    parts += [_hooks(finding), agreement(finding), *_left_out(finding)]
    return "; ".join(part for part in parts if part)


def machine(device: Any) -> str:
    """The hardware: the GPU and its precision settings, or the processor and its threads; versions."""
    import torch

    if device.type != "cuda":
        return f"{processor()}, {torch.get_num_threads()} threads, {versions()}"
    tf32 = "on" if torch.backends.cuda.matmul.allow_tf32 else "off"
    convolutions = "on" if torch.backends.cudnn.allow_tf32 else "off"
    benchmark = "on" if torch.backends.cudnn.benchmark else "off"
    return (
        f"{torch.cuda.get_device_name(device)}{driver(device)}, tf32 {tf32} in products and {convolutions} in "
        f"convolutions, cudnn benchmark {benchmark}, CUDA {torch.version.cuda}, "
        f"cuDNN {torch.backends.cudnn.version()}, {versions()}"
    )


def gpu_of(device: Any) -> str:
    """The name of the GPU; NO_GPU if the device is a CPU."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else NO_GPU


def other_threads(workload: Workload, device: str) -> str:
    """A sentence if a profile from a CPU was measured with a number of threads different from this machine's."""
    import torch

    found = re.search(r"\bCPU\b.*?, (\d+) threads, torch ", workload.source.conditions)
    here = torch.get_num_threads()
    if found is None or device != "cpu" or int(found[1]) == here:
        return ""
    return (
        f"{workload.name!r} was measured with {found[1]} CPU threads, and a rank has {here}, so that it takes another "
        f"time: set OMP_NUM_THREADS={found[1]} for the ranks, or profile with OMP_NUM_THREADS={here}"
    )


def processor() -> str:
    """The name of the CPU, as far as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"CPU {named or platform.processor() or platform.machine()}"


def driver(device: Any) -> str:
    """Driver and clocks of a GPU from nvidia-smi; "" if it cannot be asked."""
    import torch

    asked = "driver_version,clocks.sm,clocks.max.sm,clocks.mem"
    name = str(getattr(torch.cuda.get_device_properties(device), "uuid", "")).removeprefix("GPU-")
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader", f"--id=GPU-{name}"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    words = [word.strip() for word in found.strip().split(",")]
    if len(words) != len(asked.split(",")):
        return ""
    version, clock, largest, memory = words
    return f", driver {version}, clock {clock} of {largest} and memory {memory} after the steps"


def versions() -> str:
    """Versions of torch and osfmodel."""
    import torch

    from osfmodel.entities.version import __version__

    return f"torch {torch.__version__}, osfmodel {__version__}"


def _optimizer(finding: Finding) -> str:
    return f"optimizer: {', '.join(finding.optimizers)}" if finding.optimizers else "no optimizer seen"


def _policy(wanted: Wanted, finding: Finding) -> list[str]:
    total = finding.totals
    clock = "CUDA events" if finding.device.type == "cuda" else "monotonic clock"
    parts = [
        f"medians of {len(total)} steps with hooks ({clock}) after {wanted.warm_up} warm-ups, spread "
        f"{spread(total):.1%} (quartiles over median); no step removed, {uneven(total)} above {UNEVEN} medians"
    ]
    if wanted.steps is not None and sum(step.hooked for step in finding.steps) < wanted.steps:
        parts.append(f"stopped before the {wanted.steps} steps that were wanted")
    other = sum(step.hooked for step in finding.steps) - len(total)
    if other:
        parts.append(f"{other} steps left out, whose order of execution or readiness differs from most")
    micro_batches = max(step.micro_batches for step in finding.counted)
    if micro_batches > 1:
        parts.append(f"gradients accumulated over {micro_batches} micro-batches, times are of the last")
    return parts


def _hooks(finding: Finding) -> str:
    if not finding.bare:
        return "no step without hooks to compare with"
    bare, count = finding.bare, len(finding.bare)
    return (
        f"by turns {count} steps without, median {show_time(middle(bare))}, spread {spread(bare):.1%}: with hooks "
        f"{show_time(middle(finding.totals))}, {finding.difference:+.1%}"
    )


def _left_out(finding: Finding) -> list[str]:
    came = {ready.name for ready in finding.counted[0].ready}
    missing = [name for name in finding.tensors if name not in came]
    if not missing:
        return []
    shown = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
    return [f"{len(missing)} tensors never had a gradient and are left out ({shown})"]
