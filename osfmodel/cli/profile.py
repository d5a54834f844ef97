"""The command ``osf profile``."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from osfmodel.cli.app import print_text, require_writable, save_or_print, warn, watched
from osfmodel.cli.groups import OUTPUT, WRITTEN, GroupedCommand, OptionGroup, is_given, require_inputs_kept
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import AffineCost
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of
from osfmodel.entities.display import how_many, show_bytes
from osfmodel.entities.errors import UsageError
from osfmodel.entities.executors import LOCAL
from osfmodel.entities.files import documents
from osfmodel.entities.gpus import gpu_called
from osfmodel.entities.plan import in_one
from osfmodel.entities.workload import Workload
from osfmodel.runtime.profiler import WARM_UP
from osfmodel.runtime.profiler.driving import (
    DTYPES,
    META,
    Driving,
    Measured,
    count,
    default_device,
    measure,
)
from osfmodel.runtime.profiler.steps import batch_fit, with_fit
from osfmodel.runtime.training.factories import SEQUENCE, Maker, from_factory, from_torchvision, from_transformers
from osfmodel.show.profiles import summary

MODEL = OptionGroup("Model")


@click.command(name="profile", cls=GroupedCommand)
@click.argument("factory", metavar="PACKAGE.MODULE:FACTORY", required=False)
@MODEL.option("--torchvision", metavar="NAME", help="A classification model of torchvision, with random weights.")
@MODEL.option(
    "--transformers", metavar="NAME", help="A model type (bert, gpt2 ...), folder or hub name; random weights."
)
@MODEL.option("--sequence", type=click.IntRange(1), metavar="N", help=f"Tokens for --transformers; default {SEQUENCE}.")
@click.option("--batch-size", "sizes", metavar="A[,B,C]", help="Samples per iteration; one profile each, and a fit.")
@click.option("--steps", type=click.IntRange(1), default=20, metavar="N", help="Steps with hooks (20), and without.")
@click.option("--warm-up", type=click.IntRange(0), default=WARM_UP, metavar="N", help=f"Warm-up steps ({WARM_UP}).")
@MODEL.option("--dtype", type=click.Choice(DTYPES), default="float32", help="Type of parameters, inputs and gradients.")
@MODEL.option("--autocast", is_flag=True, help="Only compute in --dtype; parameters and gradients stay as they are.")
@click.option("--device", metavar="NAME", help="cpu, cuda, cuda:1 ... Default: cuda where there is a GPU, else cpu.")
@click.option("--gpu", metavar="NAME", help="With --device meta: the GPU to count for (osf list gpus); no GPU is used.")
@OUTPUT.option("--name", help="Name of the workload; default: the model's.")
@OUTPUT.option("-o", "--output", metavar="FILE|FOLDER", type=WRITTEN, help="Write FILE (.json), or several to FOLDER.")
def profile_command(
    factory: str | None,
    torchvision: str | None,
    transformers: str | None,
    sequence: int | None,
    sizes: str | None,
    steps: int,
    warm_up: int,
    dtype: str,
    autocast: bool,
    device: str | None,
    gpu: str | None,
    name: str | None,
    output: str | None,
) -> None:
    """Measure a PyTorch model: forward time by layer, when each gradient is ready, the update.

    FACTORY() returns (model, batch, loss), and an optimizer to use instead of SGD. A batch
    that is a tensor or a dict is the model's input, and the loss is loss(output); a pair is inputs and targets, and
    the loss is loss(output, targets). Given the parameter batch_size, FACTORY makes the batch; else its batch is
    repeated or cut. Your own training loop is profiled with osfmodel.profile. Steps run by turns with hooks and
    without; if the layers do not add up to the steps without, stderr and the file say so. What the host takes
    for each collective grows with the ranks that share its cores: osf bench measures it, on all of them.

    With --device meta nothing is measured: one step runs on tensors without data, its operations are counted, and their
    time is learned from published runs on such GPUs.

    \b
    Example:
      osf profile my_training:make -o my-model.json
      osf profile my_training:make --batch-size 8,16,32 --device cuda -o .
      osf profile --torchvision resnet50 --batch-size 32 -o resnet50.json
      osf profile my_training:make --device meta --gpu h100 --dtype bfloat16 --autocast -o my-model.json
    """
    _require_together(click.get_current_context(), device, gpu)
    maker, default_name = _maker(factory, torchvision, transformers, sequence)
    counts = _sizes(sizes)
    _check_output(output, counts, name or default_name)
    driving = Driving(steps, warm_up, dtype, device or default_device(), autocast)
    with _interruptible() as check:

        def one(full_name: str, size: int | None) -> Measured:
            if gpu is not None:
                return count(full_name, maker, size, driving, gpu.lower())
            return measure(full_name, maker, size, driving, _progress(full_name, check))

        _measure_all(one, name or default_name, counts, output)


def _require_together(ctx: click.Context, device: str | None, gpu: str | None) -> None:
    """Raise UsageError for --gpu without --device meta or the other way round, and for what neither uses."""
    if gpu is None and device == META:
        raise UsageError("--device meta counts for a GPU: add --gpu NAME, one of osf list gpus")
    if gpu is None:
        return
    if device != META:
        raise UsageError("--gpu works only with --device meta: elsewhere the device is measured")
    gpu_called(gpu)
    for name in ("steps", "warm_up"):
        if is_given(ctx, name):
            raise UsageError(f"--{name.replace('_', '-')} does not work with --device meta: it counts one step")


def _maker(
    factory: str | None, torchvision: str | None, transformers: str | None, sequence: int | None
) -> tuple[Maker, str]:
    given = [text for text in (factory, torchvision, transformers) if text is not None]
    if len(given) != 1:
        raise UsageError("give one model: PACKAGE.MODULE:FACTORY, --torchvision NAME or --transformers NAME")
    if sequence is not None and transformers is None:
        raise UsageError("--sequence is for --transformers: a factory makes its own batch")
    _require_torch()
    if transformers is not None:
        return from_transformers(transformers, sequence or SEQUENCE), Path(transformers).name
    if torchvision is not None:
        return from_torchvision(torchvision), torchvision
    return from_factory(given[0]), given[0].partition(":")[2]


def _require_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise UsageError("osf profile needs PyTorch: pip install torch")


def _sizes(text: str | None) -> list[int | None]:
    if text is None:
        return [None]
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and len(part) < 8 and int(part) for part in parts):
        raise UsageError(f"--batch-size {text!r}: write sizes of 1 or more such as 32 or 8,16,32")
    return [int(part) for part in dict.fromkeys(parts)]


def _check_output(output: str | None, sizes: Sequence[int | None], name: str) -> None:
    """Raise UsageError before the measurement if its output could not be written."""
    if output in (None, "-"):
        return
    target, count = Path(str(output)), len(sizes)
    if count > 1 and not target.is_dir():
        raise UsageError(f"-o {output}: {count} batch sizes become {count} files: give a folder that exists")
    if target.is_dir():
        names = [f"{name}-b{size}" for size in sizes] if count > 1 else [name]
        require_inputs_kept([target / f"{one}.json" for one in names])
        return
    if target.suffix != ".json":
        raise UsageError(f"-o {output}: osf profile writes JSON: name it .json, or give a folder that exists")
    require_writable(target)


def _measure_all(
    measured: Callable[[str, int | None], Measured], name: str, sizes: Sequence[int | None], output: str | None
) -> None:
    """Measure each batch size and write it at once; at the end write all with the fit of time against batch size.

    ``measured`` makes the profile of a name and a batch size.
    """
    found: list[Measured] = []
    several = len(sizes) > 1
    for size in sizes:
        full_name = f"{name}-b{size}" if several else name
        one = measured(full_name, size)
        found.append(one)
        for warning in one.warnings:
            warn(f"{full_name}: {warning}")
        if several and output not in (None, "-"):
            _write(one.workload, output)
        if one.interrupted:
            break
    fit = batch_fit([one.workload for one in found])
    for one in found:
        _emit(with_fit(one.workload, fit) if fit else one.workload, output)
    if fit:
        click.echo(f"osf: {name}: {fit}", err=True)
    if found[-1].interrupted:
        raise KeyboardInterrupt


def _emit(workload: Workload, output: str | None) -> None:
    if output is None:
        print_text("\n".join([summary(workload), *_memory(workload)]) + "\n")
    elif output == "-":
        print_text(documents.encode(documents.document_of(workload)))
    else:
        click.echo(f"osf: wrote {_write(workload, output)}: {summary(workload)}", err=True)
        for line in _memory(workload):
            click.echo(f"osf: {line}", err=True)


def _memory(workload: Workload) -> list[str]:
    """Peak memory of one worker in a line; empty if the profile has no memory sizes."""
    if workload.state_bytes is None or not any(layer.peak_bytes for layer in workload.layers):
        return []
    plan, free = in_one(workload), Pricing.of(AffineCost(((0.0, 0.0),)))
    peak = memory_of(workload, plan, predict_timeline(workload, plan, free), 1, LOCAL.name).peak
    parts = ", ".join(f"{owner} {show_bytes(size)}" for owner, size in peak.held.items() if size)
    count = len(workload.segments)
    again = f"; {how_many(count, 'block')} could use activation checkpointing" if count else ""
    return [f"memory: {show_bytes(peak.bytes)} at most, in {peak.during}: {parts}{again}"]


def _write(workload: Workload, output: str | None) -> Path:
    target = Path(str(output))
    path = target / f"{workload.name}.json" if target.is_dir() else target
    save_or_print(workload, path)
    return path


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """A context in which SIGTERM, as batch systems send it, acts as Ctrl-C, so that finished steps are kept.

    Signals that were ignored stay ignored. Yields a function that raises KeyboardInterrupt if one was lost: inside
    some callbacks, such as of a weak reference to a tensor, the interpreter only prints it.
    """
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    heard = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _progress(name: str, check: Callable[[], None]) -> Callable[[int, int], None]:
    """Call ``check`` before each step, and on a terminal count the steps on one line."""
    shown = watched()

    def tell(number: int, count: int) -> None:
        check()
        if shown:
            click.echo(f"\r{name}: step {number} of {count}", nl=number == count, err=True)

    return tell
