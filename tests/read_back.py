"""Random commands of ``osf tune``, and predictions of the plan files that they write."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import osfmodel as osf
from osfmodel.targets import CONFIG_TARGETS
from tests.commands import invoke

CLUSTERS = (
    "ring:50us,10Gbps", "ring:5us,100Gbps", "hierarchical:4,5us,200GB/s,50us,25Gbps", "nccl:h100x8,400Gbps",
    "nccl:a100x4,200Gbps,roce", "nccl:v100x8,25Gbps", "v100-10gbe", "v100-56gib", "nccl-h100-ndr", "emulated-4x1gbit",
)  # fmt: skip
"""Clusters in words and bundled ones: lines and tables, nodes of one GPU and of several, over NCCL and gloo."""
WHAT_IFS = {
    "--accumulate": ("2", "3", "4"),
    "--compression": ("fp16", "bf16", "powersgd:2"),
    "--bandwidth": ("x2", "x0.3", "40Gbps"),
    "--latency": ("x0.5", "x3"),
    "--compute": ("x1.7", "x0.6"),
    "--effect": (
        "none", "compute-slowdown=0.13", "hook-time=23us", "tensor-time=7us", "node-slowdown=0.06", "negotiation=90us",
        "copy-in=3e-12", "fusion-copy=2e-12", "straggler-deviation=0.03", "launch-latency=11us",
    ),
    "--cost-model": ("ring", "recursive_doubling"),
}  # fmt: skip
RULES = {"--channels": ("2", "3", "4"), "--forward-overlap": (), "--split": ()}
LIMITS = {"--max-bucket": ("1MiB", "4MiB", "16MiB"), "--max-buckets": ("1", "2", "3")}
LEADS = {"--host-lead": ("1", "2.5", "1..4")}
BATCHES = ("4", "16", "33")
SPARING = {"--sparse": (), "--no-release": (), "--optimizer": ("momentum", "adam"), "--communicator": ("1MiB",)}
CHANCE = 0.25
"""Chance of each option that a target may take."""
COMPARED = ("iteration_time_s", "exposed_communication_s", "lower_bound_s", "error_band")
"""Fields of a prediction that must be those of the tuning, which calls the first ``tuned_iteration_time_s``."""


@dataclass(frozen=True)
class Pair:
    """A command of ``osf tune`` that was carried out, and the fields in which the plan read back differs."""

    command: tuple[str, ...]
    target: str
    differences: tuple[str, ...]

    def __str__(self) -> str:
        return f"osf {' '.join(self.command)}: {'; '.join(self.differences)}"


def pairs(seed: int, count: int, folder: Path, targets: Sequence[str] = ()) -> Iterator[Pair]:
    """``count`` pairs over all targets in turn, or over ``targets``; commands that are refused are drawn again."""
    random, named = Random(seed), [*(targets or (*CONFIG_TARGETS, "any"))]
    for number in range(count):
        found = None
        while found is None:
            found = _pair(random, named[number % len(named)], folder)
        yield found


def workload(random: Random) -> osf.Workload:
    """A model of 2 to 5 blocks of two tensors between an embedding and a head, with memory and odd times."""
    names = [f"layers.{block}.{part}.weight" for block in range(random.randint(2, 5)) for part in ("one", "two")]
    dtype = random.choice(("float32", "float32", "bfloat16"))
    layers = tuple(
        osf.Layer(
            name, random.uniform(1e-4, 4e-3), random.uniform(1e-4, 8e-3), 4 * int(2 ** random.uniform(8, 22)), dtype,
            activation_bytes=(kept := random.randint(10**5, 10**7)), peak_bytes=kept + random.randint(0, 10**6),
        )
        for name in ("embed.weight", *names, "head.weight")
    )  # fmt: skip
    segments = tuple(
        osf.Segment(first[: -len(".one.weight")], first, second, random.randint(10**4, 2 * 10**5))
        for first, second in zip(names[::2], names[1::2], strict=True)
    )
    return osf.Workload(
        "drawn", layers, 8, random.uniform(0, 2e-3), segments=segments, state_bytes=10**6, update_bytes=10**5,
        fixed_bytes=10**6,
    )  # fmt: skip


def _pair(random: Random, target: str, folder: Path) -> Pair | None:
    """A random pair; None where the command is refused."""
    profile, larger, plan = folder / "workload.json", folder / "larger.json", folder / "plan.json"
    made = workload(random)
    osf.save(made, profile)
    osf.save(replace(osf.at_batch(made, 20), doubt=0.0), larger)
    subject = [str(profile), "--cluster", random.choice(CLUSTERS), "--workers", random.choice(("4", "8", "16", "8,16"))]
    command = ["tune", *subject, "--for", target, *_options(random, target, made, str(larger))]
    tuned = invoke([*command, "--format", "json", "-o", str(plan)])
    if isinstance(tuned.exception, SystemExit):
        return None
    assert tuned.exception is None, (command, tuned.exception)
    document = json.loads(plan.read_text())
    if document["plan"] is None:  # nothing fits
        return None
    if target == "any":
        subject[-1] = str(document["workers"])
    read = invoke(["predict", *subject, "--plan", str(plan), "--format", "json"])
    if read.exit_code:
        return Pair(tuple(command), target, (read.output or repr(read.exception),))
    found = json.loads(read.stdout)
    return Pair(tuple(command), target, tuple(_differences(document, found.get("sweep", [found]))))


def _options(random: Random, target: str, made: osf.Workload, also: str) -> Iterator[str]:
    """Options that ``target`` may take, each now and then."""
    limited = {"--memory", *LIMITS} if target == "any" else {*CONFIG_TARGETS[target].limits}
    limited |= {"--memory"} if target == "runtime" else set()
    known = {**WHAT_IFS, **(RULES if target == "runtime" else {}), **(LEADS if target == "horovod" else {})}
    known |= {option: values for option, values in LIMITS.items() if option in limited}
    if "--memory" in limited and random.random() < CHANCE:
        yield from ("--memory", f"{int(made.gradient_bytes * random.uniform(2, 6) + 5e7)}B")
        if random.random() < CHANCE * 2:
            yield from ("--batch-size", random.choice(BATCHES), *(["--also", also] if random.random() < CHANCE else []))
        if target == "runtime":  # without what-ifs
            known = {"--effect": WHAT_IFS["--effect"], **SPARING}
    yield from _chosen(random, known)


def _chosen(random: Random, known: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Each option of ``known`` now and then, with one of its values."""
    for option, values in known.items():
        if random.random() < CHANCE:
            yield from (option, random.choice(values)) if values else (option,)


def _differences(document: dict[str, Any], comparisons: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Fields that are not the same, float by float."""
    for row, comparison in zip(_results(document), comparisons, strict=True):
        (read,) = comparison["predictions"]
        for field, tuned in row.items():
            if tuned != read[field]:
                yield f"{field} {tuned!r} was tuned with {comparison['workers']} workers, {read[field]!r} is read back"


def _results(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Fields of a result of ``osf tune`` for each worker count; --memory and --for any do not have all."""
    if "after" in document:
        return [{"iteration_time_s": document["after"]["iteration_time_s"]}]
    if document["target"] == "any":
        taken = [row for row in document["strategies"] if row["plan"] == document["recommended"]]
        return [{field: (document["tuned"] or taken[0])[field] for field in ("iteration_time_s", "error_band")}]
    rows = [row | {"iteration_time_s": row["tuned_iteration_time_s"]} for row in document.get("sweep", [document])]
    return [{field: row[field] for field in COMPARED} for row in rows]
