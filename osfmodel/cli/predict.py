"""The command ``osf predict``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from osfmodel.cli.app import OneOf, emit, output_options, warn
from osfmodel.cli.groups import OUTPUT, READ, RULES, GroupedCommand, OptionGroup
from osfmodel.cli.options import (
    Subject,
    load_subject,
    parse_workers,
    plan_files,
    plan_option,
    remedies_command,
    subject_options,
    warn_of_batches,
)
from osfmodel.counting import in_words, load_workload
from osfmodel.engine import AUTO, ENGINES
from osfmodel.entities.display import how_many
from osfmodel.entities.errors import UsageError
from osfmodel.entities.files.documents import PlanFile
from osfmodel.entities.modules import SHARDING
from osfmodel.entities.plan import PLAIN, SPLIT
from osfmodel.entities.units import parse_amount
from osfmodel.entities.workload import Workload
from osfmodel.planning.predictions import TrainingCosts, compare, economics
from osfmodel.planning.results import Comparison
from osfmodel.planning.what_if import BOTH, WhatIf
from osfmodel.show.predicted import Predicted
from osfmodel.solve.verdicts import NO, need
from osfmodel.targets.named_plans import plans_for

BATCH = OptionGroup("Batch and scaling")
WHOLE = OptionGroup("Training as a whole")


@click.command(name="predict", cls=GroupedCommand)
@subject_options()
@click.option("--workers", required=True, metavar="N[,N...|A..B]", help="Worker counts; A..B: see above.")
@plan_option("Named plan or plan file; repeatable. Default: those that fit the rules asked for.")
@click.option(
    "--engine",
    type=OneOf(ENGINES),
    default=AUTO,
    metavar="ENGINE",
    help="Predict with this model: ours (auto), or OSF's as reconstructed (osf); 'osf list engines'.",
)
@RULES.option(
    "--channels",
    type=click.IntRange(1, 64),
    metavar="K",
    help="Collectives in flight.",
)
@RULES.option("--forward-overlap", is_flag=True, help="A layer's forward waits for its own gradient only.")
@RULES.option("--split", is_flag=True, help="Reduce-scatter in backward, all-gather before the forward.")
@OUTPUT.option("--buckets", is_flag=True, help="Also list the sizes of each plan's buckets, as they are sent.")
@WHOLE.option("--samples", metavar="N", help="Also show the time for training on N samples (115e6, 1.28M).")
@WHOLE.option("--price-per-gpu-hour", type=float, metavar="PRICE", help="Also show the cost of that training.")
@BATCH.option("--batch-size", type=int, metavar="B", help="Predict for B samples per worker.")
@BATCH.option("--also", metavar="FILE", type=READ, help="A second profile of the model, at another batch size.")
@BATCH.option(
    "--scaling",
    type=OneOf(["weak", "strong"]),
    help="Add workers with the same batch for each (weak), or one batch shared by all (strong).",
)
@BATCH.option("--global-batch", type=int, metavar="B", help="Strong scaling: samples of all workers together.")
@output_options
def predict_command(
    subject: Subject,
    workers: str,
    plan_names: tuple[str, ...],
    engine: str,
    channels: int | None,
    forward_overlap: bool,
    split: bool,
    buckets: bool,
    samples: str | None,
    price_per_gpu_hour: float | None,
    batch_size: int | None,
    also: str | None,
    scaling: str | None,
    global_batch: int | None,
    style: str | None,
    as_json: bool,
    output: str | None,
) -> None:
    """Predict the iteration time of WORKLOAD on CLUSTER under each plan.

    WORKLOAD is a bundled name, a file, or words, for which nothing has to be measured:
    MODEL:GPU[,seqN][,batchN][,bf16|fp16|fp32|tf32|fp8|fp8=rowwise|mxfp8|nvfp4]
    [,ac=none|selective|full|budget:B][,stack=eager|compile|te|nanotron|composer]. MODEL is an architecture
    ('osf list architectures'), a Hugging Face config.json or its folder, or a cached one's name.
    It may also be timm/NAME, diffusers/CLASS, or a module:function that returns a torch.nn.Module (its inputs by
    ,input=FILE). GPU is a name of 'osf list gpus', or a file of osf bench --kernels.
    Fine-tuning is ,lora=16 or ,qlora=16 (rank; :all-linear behind it) and ,frozen=embeddings+tower+MODULE.

    A range of worker counts, A..B, is A, 2A, 4A ... and B, or those of the counts between A and B that the cluster was
    measured with. Training on --samples keeps the batch per worker, so more workers mean fewer iterations; with
    --global-batch they share it.

    \b
    Example:
      osf predict resnet50-v100 --cluster v100-10gbe --workers 16
      osf predict resnet50-v100 --cluster v100-10gbe --workers 4..64 --plan ddp --plan optimal
      osf predict resnet50-v100 --cluster v100-10gbe --workers 16 --plan ddp --buckets
      osf predict resnet50-v100 --cluster v100-10gbe --workers 16 --bandwidth x2 --accumulate 4
      osf predict resnet50-v100 --cluster v100-10gbe --workers 4..64 --plan ddp --global-batch 2048
      osf predict resnet50-v100 --cluster v100-10gbe --workers 16 --engine osf --plan osf:64MiB,5ms
      osf predict resnet50-v100 --cluster ring:50us,10Gbps --workers 8,32 --samples 115e6 --price-per-gpu-hour 2.5
      osf predict llama3-8b:h100,seq8192,bf16,ac=full --cluster nccl:h100x8,400Gbps --workers 8..64 --plan fsdp2
    """
    _require_scaling(scaling, global_batch, batch_size)
    asked = {"channels": channels, "forward_overlap": forward_overlap or None, "strategy": SPLIT if split else None}
    rules: dict[str, Any] = {field: value for field, value in asked.items() if value is not None}
    shown = dict.fromkeys(plan_names or ENGINES[engine].plans or plans_for(replace(PLAIN, **rules)))
    files = plan_files(shown)
    _require_ruled(files, rules)
    own: dict[str, Any] = {"batch_size": batch_size, "also": also} if global_batch is None else {}
    subject, own = subject.as_tuned(files, own)
    batch_size, also = own.get("batch_size", batch_size), own.get("also", also)
    what_if = replace(subject.what_if, batch_size=batch_size, global_batch=global_batch)
    workload, cluster = load_subject(subject)
    counts = parse_workers(workers, cluster)
    other = _profile_beside(also, what_if)
    warn_of_batches(workload, what_if, counts, other)
    given = {count: [(name, files[name].at(count)) if name in files else name for name in shown] for count in counts}
    comparisons = [
        compare(what_if.of_workload(workload, count, other), cluster, count, given[count], rules, engine).under(
            what_if, what_if.alone(workload, count, other)
        )
        for count in counts
    ]
    if in_words(subject.workload_name) and engine == AUTO:
        _warn_of_memory(comparisons[-1], subject, {"--batch-size": batch_size, "--global-batch": global_batch})
    costs = _costs(comparisons, samples, price_per_gpu_hour)
    scales = scaling is not None or global_batch is not None
    emit(style, as_json, output, Predicted(comparisons, costs, scales, buckets))


def _warn_of_memory(last: Comparison, subject: Subject, options: Mapping[str, int | None]) -> None:
    """Warn of plans whose steps do not fit into the GPU that words name, where there are most workers."""
    from osfmodel.planning.scaling.strategies import room_of  # not loaded for profiles
    from osfmodel.planning.tuning.choosing import strategy_row

    if (room := room_of(last.workload)) is None:
        return
    rows = [strategy_row(one, last.workers, room, sized=True) for one in last.predictions]
    lacking = [(row.name, row.peak) for row in rows if row.fits == NO and row.peak is not None]
    if not lacking:
        return
    name, peak = min(lacking, key=lambda one: one[1].bytes)
    others = [other for other, _ in lacking if other != name]
    also = f"; {', '.join(others[:4])}{' and others' * (len(others) > 4)} need as much or more" if others else ""
    said = f"{name} {need(peak, room.bytes)}{also}"
    command = remedies_command(subject, last.workers, options)
    warn(f"on {how_many(last.workers, 'GPU')} {said}; to search for what fits: {command}")


def _require_ruled(files: Mapping[str, PlanFile], rules: Mapping[str, Any]) -> None:
    """Warn of plans that are predicted under other rules than their own. Raises UsageError for those that shard."""
    for name, file in files.items() if rules else ():
        if file.plan.strategy in SHARDING:
            raise UsageError(f"{name} shards the model: leave out --channels, --forward-overlap and --split")
        if replace(file.plan.objective, **rules) != file.plan.objective:
            warn(f"{name} is predicted under the rules given here, not under its own")


def _require_scaling(scaling: str | None, global_batch: int | None, batch_size: int | None) -> None:
    if batch_size is not None and global_batch is not None:
        raise UsageError(f"{BOTH}, which is shared by the workers: give one of them")
    if scaling == "strong" and global_batch is None:
        raise UsageError("--scaling strong needs --global-batch: give the samples that all workers share")
    if scaling == "weak" and global_batch is not None:
        raise UsageError("--scaling weak keeps the batch of each worker: it contradicts --global-batch")


def _profile_beside(path: str | None, what_if: WhatIf) -> Workload | None:
    if path is None:
        return None
    if what_if.batch_size is None and what_if.global_batch is None:
        raise UsageError("--also is for --batch-size or --global-batch: give one, or leave --also out")
    return load_workload(path)


def _costs(comparisons: Sequence[Comparison], samples: str | None, price: float | None) -> TrainingCosts | None:
    """Cost of the whole training with each plan of each comparison; None without --samples."""
    if samples is None:
        if price is not None:
            raise UsageError("--price-per-gpu-hour needs --samples: give the length of the training")
        return None
    if price is not None and not 0 < price < 1e9:
        raise UsageError(f"--price-per-gpu-hour {price}: it must be above 0 and below a billion")
    total = parse_amount("--samples", samples)
    rows = [
        tuple(
            economics(comparison.workload, comparison.workers, prediction.iteration_time, total, price)
            for prediction in comparison.predictions
        )
        for comparison in comparisons
    ]
    return TrainingCosts.of([prediction.name for prediction in comparisons[0].predictions], rows)
