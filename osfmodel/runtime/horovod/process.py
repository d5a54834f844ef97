"""One turn under Horovod: ``python -m osfmodel.runtime.horovod.process``, started by ``osfmodel.runtime.horovod``.

It is told what to do by a line of JSON, says by lines of JSON that it goes on and what came of it, and ends when
whoever started it does. Horovod reads its settings from the environment when it starts, and starts once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from osfmodel.counting import load_workload
from osfmodel.entities.batches import Variation
from osfmodel.entities.compression import FP16
from osfmodel.entities.errors import DataError, OsfError
from osfmodel.runtime.bench import FLOAT, WARM_UPS, repeats, train_length
from osfmodel.runtime.job.measuring import Meter
from osfmodel.runtime.training.replayed_model import await_handles

BESIDE = 4
"""Minimum number of messages that are queued behind the first, to tell the time of one from that of its negotiation."""
PIECES = 8
"""Tensors in a fused message when its copies are measured."""
IDLE = 1.0
"""Seconds for which the loop runs idle."""

Tell = Callable[..., None]


def main() -> None:
    """Run the first line of the standard input."""
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a model prints is not an answer

    def tell(**words: Any) -> None:
        said.write(json.dumps(words) + "\n")
        said.flush()

    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        import horovod.torch as hvd

        hvd.init()
        tell(result=TASKS[task.pop("task")](hvd, tell, **task))
        hvd.shutdown()
    except Exception as error:
        if isinstance(error, OsfError):
            tell(error=str(error), kind=type(error).__name__)
        else:
            tell(error=f"{type(error).__name__}: {error}")
        os._exit(1)
    os._exit(0)  # tearing down what Horovod left of its threads is not worth a crash


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def train(
    hvd: Any,
    tell: Tell,
    subject: Mapping[str, Any],
    groups: Sequence[Sequence[str]],
    warm_ups: int,
    iterations: int,
) -> dict[str, Any]:
    """Seconds of each iteration, the rank's use of the processor, and the losses, those of ``warm_ups`` included."""
    import torch

    compression = subject.get("compression")
    found = _subject(**{name: value for name, value in subject.items() if name != "compression"})
    model = found.model
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    tensors = [tensor for tensor in model.parameters() if tensor.requires_grad]
    named = list(zip(found.names, tensors, strict=True))  # by the workload's names, so that a timeline has them too
    optimizer = found.optimizer if found.real else torch.optim.SGD(model.parameters(), lr=0.0)
    behind = dict(named)
    strange = next((name for group in groups for name in group if name not in behind), None)
    if strange is not None:
        raise DataError(
            f"the model has no tensor {strange!r}, which the plan sends: use a plan made for this model's profile"
        )
    grouped = {"groups": [[behind[name] for name in group] for group in groups]} if groups else {}
    sent = hvd.Compression.fp16 if compression == FP16 else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named, compression=sent, **grouped)
    step = found.begin(None, optimizer)
    samples, losses = [], []
    _meet(hvd)
    for number in range(warm_ups + iterations):
        if number == warm_ups:
            meter = Meter()
        begin = time.perf_counter()
        loss = step(model)
        spent = time.perf_counter() - begin
        losses.append(float(loss))
        if number >= warm_ups:
            samples.append(spent)
        tell(iteration=number)
    return {"samples": samples, "losses": losses, "use": meter.use()}


def _subject(name: str, variation: Sequence[Any] | None, workload: str | None, device: str) -> Any:
    from osfmodel.runtime.training.factories import is_factory
    from osfmodel.runtime.training.subjects import replayed, trained

    if is_factory(name):
        return trained(name, device, None if workload is None else load_workload(workload))
    return replayed(Variation(*variation or ()).of(load_workload(name)), device)


def _meet(hvd: Any) -> None:
    """Wait for all ranks, by an all-reduce that Horovod's response cache keeps."""
    import torch

    handle = hvd.allreduce_async_(torch.zeros(1), name="osf.meet")
    await_handles([handle])
    hvd.synchronize(handle)


def exchange(hvd: Any, tell: Tell, sizes: Sequence[int], repeat: int) -> list[dict[str, Any]]:
    """Seconds of one all-reduce of each size, and of several submitted at once; to be run with threshold 0."""
    return [
        _in_turns(hvd, tell, size, repeat, alone=_tensors(1, size), queued=_tensors(1 + beside(size), size))
        for size in sizes
    ]


def beside(size: int) -> int:
    """Messages of ``size`` bytes that are queued behind the first: a train, so that no buffer holds them all."""
    return max(train_length(size), BESIDE)


def copies(hvd: Any, tell: Tell, sizes: Sequence[int], repeat: int) -> list[dict[str, Any]]:
    """Seconds of a message of one tensor, and of an equally large fused one; to be run with a large threshold."""
    return [
        _in_turns(hvd, tell, size, repeat, alone=_tensors(1, size), fused=_tensors(PIECES, size // PIECES))
        for size in sizes
    ]


def _in_turns(hvd: Any, tell: Tell, size: int, repeat: int, **kinds: Sequence[Any]) -> dict[str, Any]:
    """Seconds of each kind of submission, in turn, ``repeat`` times or as often as time allows."""

    def once(kind: str) -> float:
        spent = _once(hvd, kinds[kind])
        tell(size=size)  # each may take seconds
        return spent

    longest = max(sum(map(once, kinds)) for _ in range(WARM_UPS))
    rows = [[once(kind) for kind in kinds] for _ in range(_least(hvd, repeats(longest, repeat)))]
    return {"bytes": size, **{kind: list(times) for kind, times in zip(kinds, zip(*rows, strict=True), strict=True)}}


def _least(hvd: Any, count: int) -> int:
    """The smallest of the ranks' numbers."""
    import torch

    return int(hvd.allgather(torch.tensor([count]), name="osf.count").min())


def idle(hvd: Any, tell: Tell) -> None:
    """Do nothing, while the timeline notes each cycle."""
    _meet(hvd)
    time.sleep(IDLE)


def _tensors(count: int, size: int) -> list[Any]:
    import torch

    return [torch.zeros(max(1, -(-size // FLOAT)), dtype=torch.float32) for _ in range(count)]


def _once(hvd: Any, tensors: Sequence[Any]) -> float:
    """Seconds from the submission of all, in one piece, to the end of the last."""
    _meet(hvd)
    time.sleep(1e-3)  # the loop of each rank is where it happens to be
    begin = time.perf_counter()
    handle = hvd.grouped_allreduce_async_(list(tensors), name=f"osf.{len(tensors)}.{tensors[0].numel()}")
    await_handles([handle])
    spent = time.perf_counter() - begin
    hvd.synchronize(handle)
    return spent


TASKS: Mapping[str, Callable[..., Any]] = {"train": train, "exchange": exchange, "copies": copies, "idle": idle}

if __name__ == "__main__":
    main()
