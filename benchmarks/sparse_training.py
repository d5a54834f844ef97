"""Whether sparse buckets with error feedback train as well as dense ones: small real problems, four ranks.

    python benchmarks/sparse_training.py            # docs/ledger/sparse-training.md, from the runs that are kept
    python benchmarks/sparse_training.py --train    # train what is not kept yet, and write that page

Training needs PyTorch and scikit-learn (for its images of digits; nothing is downloaded). Runs are kept in
sparse_training.json beside this file as they end, so that an interrupted training goes on; remove it to train anew.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics
from statistics import mean, median, stdev
from typing import ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.functional import cross_entropy

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from osfmodel.entities.errors import UsageError  # noqa: E402
from osfmodel.entities.plan import Block, Bucket, Plan  # noqa: E402
from osfmodel.runtime.executor import Executor, execute  # noqa: E402
from osfmodel.runtime.executor.error_feedback import Residual, flat_of  # noqa: E402
from osfmodel.runtime.executor.messages import SparseMessage  # noqa: E402
from tests.live.launching import free_port  # noqa: E402

RANKS, SEEDS = 4, (0, 1, 2)
KEPT, PAGE = Path(__file__).with_suffix(".json"), ROOT / "docs/ledger/sparse-training.md"
TINY = 1000
"""Tensors of fewer elements travel densely, together: biases, norms, the first convolution."""
MOMENTUM, WARM_UP, LAST = 0.9, 0.1, 0.1
"""The parts of the steps in which the learning rate rises, and over which the final training loss is averaged."""
WITHIN = 0.01
"""Relative distance to the dense run's loss that counts as reached."""


class Problem(ABC):
    """A model to train.

    steps, batch, decay: how many, the examples of all ranks in each, and weight decay
    rates:     the learning rate of each optimizer
    densities: those that it is trained with, None for dense
    """

    name: ClassVar[str]
    steps: int
    batch: int
    decay: float
    rates: ClassVar[dict[str, float]]
    densities: ClassVar[tuple[float | None, ...]] = (None, 0.1, 0.01, 0.001)
    held_out: tuple[torch.Tensor, torch.Tensor]

    @classmethod
    def takes(cls, way: Way) -> bool:
        """Whether it is trained so."""
        return way.optimizer in cls.rates and way.density in cls.densities

    @abstractmethod
    def model(self) -> nn.Module:
        """A new one, by torch's seed."""

    @abstractmethod
    def examples(self, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """The next batch of all ranks."""


class Digits(Problem):
    """1,797 images of 8 x 8 pixels of handwritten digits, moved by up to a pixel and seen through noise.

    Without the noise the loss goes to nothing, and 1 % of it means nothing. Held-out images have noise of their own,
    the same in all runs.
    """

    name = "digits"
    steps, batch, decay = 3000, 32, 5e-4
    rates: ClassVar = {"adamw": 0.03, "momentum": 0.05, "plain": 0.5}
    NOISE, HELD_OUT, VIEWS = 0.3, 397, 8

    def __init__(self) -> None:
        try:
            from sklearn.datasets import load_digits  # noqa: PLC0415  (the text needs none of it)
        except ImportError:
            raise UsageError("the images of digits are scikit-learn's: pip install scikit-learn") from None
        images, labels = load_digits(return_X_y=True)
        self._random = torch.Generator().manual_seed(0)
        order = torch.randperm(len(labels), generator=self._random)
        images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)[order] / 16
        self._images = nn.functional.pad(images, (1, 1, 1, 1))
        self._labels = torch.tensor(labels)[order]
        held = self._images[: self.HELD_OUT].repeat(self.VIEWS, 1, 1, 1), self._labels[: self.HELD_OUT]
        self.held_out = self._seen(held[0], self._random), held[1].repeat(self.VIEWS)

    def model(self) -> nn.Module:
        """Two convolutions with batch normalisation; ten thousand parameters."""
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
            nn.Linear(512, 10),
        )  # fmt: skip

    def examples(self, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """The next batch of all ranks."""
        chosen = torch.randint(self.HELD_OUT, len(self._labels), (self.batch,), generator=random)
        return self._seen(self._images[chosen], random), self._labels[chosen]

    def _seen(self, images: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        """8 x 8 pixels of each 10 x 10, and noise."""
        corners = torch.randint(3, (2, len(images), 1), generator=random) + torch.arange(8)
        pixels = images[torch.arange(len(images))[:, None, None], 0, corners[0][:, :, None], corners[1][:, None]]
        return (pixels + self.NOISE * torch.randn(pixels.shape, generator=random))[:, None]


class Hurried(Digits):
    """The same with half the steps."""

    name = "digits, half the steps"
    steps = 1500
    rates: ClassVar = {"plain": 0.5}
    densities: ClassVar = (None, 0.01)


class Text(Problem):
    """The characters of Python's own help on its language, 460 thousand; every tenth topic is held out."""

    LENGTH: int

    def __init__(self) -> None:
        texts = [topics[key] for key in sorted(topics)]
        texts = list(dict.fromkeys(texts))  # some topics share their text
        self.letters = sorted(set("".join(texts)))
        held = self._numbers("".join(texts[::10]))
        self._text = self._numbers("".join(text for place, text in enumerate(texts) if place % 10))
        self.held_out = self.split(held[: len(held) // (self.LENGTH + 1) * (self.LENGTH + 1)].view(-1, self.LENGTH + 1))

    def _numbers(self, text: str) -> torch.Tensor:
        places = {letter: place for place, letter in enumerate(self.letters)}
        return torch.tensor([places[letter] for letter in text])

    def split(self, windows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets: each next character."""
        return windows[:, :-1], windows[:, 1:]

    def examples(self, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """The next batch of all ranks."""
        starts = torch.randint(len(self._text) - self.LENGTH, (self.batch, 1), generator=random)
        return self.split(self._text[starts + torch.arange(self.LENGTH + 1)])


class Perceptron(Text):
    """The next character of eight, by a network of one hidden layer, as the first neural language models did."""

    name = "text, perceptron"
    steps, batch, decay = 1500, 128, 0.0
    rates: ClassVar = {"adamw": 0.01, "momentum": 0.05, "plain": 0.5}
    LENGTH, WIDTH, HIDDEN = 8, 24, 128

    def split(self, windows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Eight characters and the ninth."""
        return windows[:, :-1], windows[:, -1]

    def model(self) -> nn.Module:
        """40 thousand parameters."""
        letters = len(self.letters)
        return nn.Sequential(
            nn.Embedding(letters, self.WIDTH), nn.Flatten(), nn.Linear(self.LENGTH * self.WIDTH, self.HIDDEN),
            nn.Tanh(), nn.Linear(self.HIDDEN, letters),
        )  # fmt: skip


class Attention(Text):
    """The next character after each of 32, by a transformer."""

    name = "text, transformer"
    steps, batch, decay = 1000, 16, 0.0
    rates: ClassVar = {"adamw": 0.01, "momentum": 0.5}
    densities: ClassVar = (None, 0.1, 0.01)
    LENGTH, WIDTH, LAYERS, HEADS = 32, 64, 2, 4

    def model(self) -> nn.Module:
        """115 thousand parameters."""
        return Transformer(len(self.letters), self.LENGTH, self.WIDTH, self.LAYERS, self.HEADS)


class Transformer(nn.Module):
    """Normalised before each part, without dropout."""

    def __init__(self, letters: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        for table in (self.letters, self.places):
            nn.init.normal_(table.weight, std=0.3)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, letters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.letters(text) + self.places.weight, mask=self.mask, is_causal=True))


PROBLEMS: dict[str, type[Problem]] = {problem.name: problem for problem in (Digits, Hurried, Perceptron, Attention)}


CORRECTED, DENSE_FIRST = "momentum correction", "dense first"


class Way(NamedTuple):
    """How a problem is trained: density None is dense.

    corrections: CORRECTED, where momentum is of what a rank computes, before entries are chosen, and ends where they
                 are sent (Lin and others, Deep Gradient Compression, ICLR 2018); DENSE_FIRST, where the first WARM_UP
                 of the steps is dense
    """

    optimizer: str
    density: float | None
    mirror: bool = False
    corrections: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """As a table says it."""
        if self.density is None:
            return "dense"
        return ", ".join([f"{100 * self.density:g} %", *(["mirror weights"] if self.mirror else []), *self.corrections])


WAYS = (
    Way("plain", None),
    Way("plain", 0.01),
    Way("plain", 0.1),
    Way("momentum", None),
    Way("momentum", 0.01),
    Way("momentum", 0.1),
    Way("plain", 0.01, mirror=True),
    Way("momentum", 0.001),
    Way("adamw", None),
    Way("adamw", 0.01),
    Way("adamw", 0.1),
    Way("momentum", 0.01, corrections=(CORRECTED,)),
    Way("adamw", 0.01, corrections=(DENSE_FIRST,)),
)
"""In the order in which they are trained; the transformer without plain SGD, which does not train it."""


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    train:      loss, over the last part of the steps and all ranks
    validation: loss on what was held out
    accuracy:   on what was held out: of digits, or of the next character
    sent:       bytes that each rank sends in a step, by the ring's all-reduce and all-gather
    elements:   of all parameters, and of those that travel sparsely
    """

    problem: str
    optimizer: str
    density: float | None
    mirror: bool
    seed: int
    train: float
    validation: float
    accuracy: float
    sent: float
    elements: tuple[int, int]
    corrections: tuple[str, ...] = ()

    @property
    def way(self) -> Way:
        """How it was trained."""
        return Way(self.optimizer, self.density, self.mirror, self.corrections)


def plan_of(model: nn.Module, density: float | None, mirror: bool = False) -> Plan:
    """The large tensors in a bucket of that density, the tiny ones in a dense one, the last layer first."""
    tensors = [(name, tensor) for name, tensor in reversed(list(model.named_parameters()))]
    large = [Block(name, 0, 4 * tensor.numel()) for name, tensor in tensors if tensor.numel() >= TINY]
    tiny = [Block(name, 0, 4 * tensor.numel()) for name, tensor in tensors if tensor.numel() < TINY]
    return Plan("model", (Bucket(tuple(large), density=density), Bucket(tuple(tiny))), mirror=mirror)


def optimizer_of(model: nn.Module, problem: Problem, way: Way) -> torch.optim.Optimizer:
    """AdamW, or SGD with momentum or without."""
    rate = problem.rates[way.optimizer]
    if way.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=problem.decay)
    momentum = MOMENTUM if way.optimizer == "momentum" else 0.0
    tensors = list(model.parameters())
    groups = [{"params": tensors}]
    if CORRECTED in way.corrections:
        own = {"momentum": 0.0, "weight_decay": 0.0}  # Corrected has them
        groups = [
            {"params": [one for one in tensors if one.numel() < TINY]},
            {"params": [one for one in tensors if one.numel() >= TINY], **own},
        ]
    return torch.optim.SGD(groups, lr=rate, momentum=momentum, weight_decay=problem.decay)


class Corrected(Residual):
    """An unsent part with momentum before entries are chosen, which ends where they are sent."""

    def __init__(self, parameter: torch.Tensor, like: torch.Tensor, decay: float) -> None:
        super().__init__(parameter, like)
        self.velocity, self.parameter, self.decay = torch.zeros_like(self.kept), parameter.detach(), decay

    def add(self, gradient: torch.Tensor, scale: float) -> None:
        """Add momentum with ``scale`` of a gradient."""
        self.velocity.mul_(MOMENTUM).add_(gradient, alpha=scale).add_(self.parameter, alpha=self.decay * scale)
        self.kept.add_(self.velocity)

    def choose(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest entries; their momentum ends."""
        values, places = super().choose(count)
        flat_of(self.velocity)[places] = 0
        return values, places


def pace(step: int, steps: int) -> float:
    """The part of the learning rate: up in a line while warming up, then down along a cosine to nothing."""
    warm_up = WARM_UP * steps
    if step < warm_up:
        return (step + 1) / warm_up
    return (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up))) / 2


def train(problem: Problem, way: Way, seed: int, forget: bool = False) -> Trained:
    """Train on the ranks of the process group; ``forget`` drops what is not sent instead of keeping it."""
    torch.manual_seed(seed)
    model = problem.model()
    optimizer = optimizer_of(model, problem, way)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: pace(step, problem.steps))
    dense = round(WARM_UP * problem.steps) if DENSE_FIRST in way.corrections else 0
    executor = executor_of(model, optimizer, problem, way._replace(density=None) if dense else way)
    random = torch.Generator().manual_seed(1 + seed)
    rank, world, losses = dist.get_rank(), dist.get_world_size(), []
    for step in range(problem.steps):
        if dense and step == dense:
            executor.close()
            executor = executor_of(model, optimizer, problem, way)
        inputs, targets = problem.examples(random)
        loss = cross_entropy(model(inputs[rank::world]).flatten(0, -2), targets[rank::world].flatten())
        loss.backward()
        if forget:
            for gradient in executor.gradients:
                if gradient.unsent is not None:
                    gradient.unsent.kept.zero_()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.detach() / world)
    executor.close()
    last = torch.stack(losses[-round(LAST * problem.steps) :]).mean()
    dist.all_reduce(last)
    validation, accuracy = judged(model, *problem.held_out)
    sent, elements = traffic(executor, world)
    return Trained(problem.name, *way[:3], seed, float(last), validation, accuracy, sent, elements, way.corrections)


def executor_of(model: nn.Module, optimizer: torch.optim.Optimizer, problem: Problem, way: Way) -> Executor:
    """The executor of a plan of that density, with momentum where the way says."""
    executor = execute(model, optimizer, plan_of(model, way.density, way.mirror))
    for gradient in executor.gradients:
        if gradient.unsent is not None and CORRECTED in way.corrections:
            gradient.unsent = Corrected(gradient.parameter, gradient.like, problem.decay)
    return executor


@torch.no_grad()
def judged(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
    """Loss and accuracy on what was held out."""
    model.eval()
    found = torch.cat([model(part) for part in inputs.split(256)]).flatten(0, -2)
    return float(cross_entropy(found, targets.flatten())), float((found.argmax(1) == targets.flatten()).double().mean())


def traffic(executor: Executor, world: int) -> tuple[float, tuple[int, int]]:
    """Bytes that a rank sends in a step, and the elements of all parameters and of the sparse ones."""
    sent, every, sparsely = 0.0, 0, 0
    for bucket, message in zip(executor.plan.buckets, executor.messages, strict=True):
        every += bucket.size // 4
        if isinstance(message, SparseMessage):
            sent, sparsely = sent + (world - 1) * message.packing.bytes, sparsely + bucket.size // 4
        else:
            sent += 2 * (world - 1) / world * bucket.size
    return sent, (every, sparsely)


def seeds_of(way: Way) -> tuple[int, ...]:
    """The seeds that a way is trained with: corrections are tried with one."""
    return SEEDS[:1] if way.corrections else SEEDS


def jobs(runs: Sequence[Trained]) -> list[tuple[str, Way, int]]:
    """Trainings that are not among the runs yet, all of one seed before the next, so that no row waits for the last;
    those with corrections after all others.
    """
    known = {(run.problem, run.way, run.seed) for run in runs}
    parts = [[way for way in WAYS if bool(way.corrections) == corrected] for corrected in (False, True)]
    every = [
        (name, way, seed)
        for ways in parts
        for seed in SEEDS
        for way in ways
        if seed in seeds_of(way)
        for name in PROBLEMS
    ]
    return [job for job in every if PROBLEMS[job[0]].takes(job[1]) and job not in known]


def work(rank: int, port: int) -> None:
    """One rank, through all trainings; the first keeps what each came to."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    dist.init_process_group("gloo")
    runs = kept()
    problems = {name: PROBLEMS[name]() for name in PROBLEMS}
    for name, way, seed in jobs(runs):
        start = time.perf_counter()
        runs.append(train(problems[name], way, seed))
        if rank == 0:
            keep(runs)
            seconds = time.perf_counter() - start
            print(
                f"{name}, {way.optimizer}, {way.words}, seed {seed}: {runs[-1].train:.4f}, {seconds:.0f} s", flush=True
            )
        dist.barrier()
    dist.destroy_process_group()


def kept() -> list[Trained]:
    """The runs so far."""
    if not KEPT.exists():
        return []
    found = json.loads(KEPT.read_text(encoding="utf-8"))
    tuples = ("elements", "corrections")
    return [Trained(**run | {name: tuple(run.get(name, ())) for name in tuples}) for run in found["runs"]]


def keep(runs: Sequence[Trained]) -> None:
    """Write them, and with which versions they were made."""
    where = {"python": platform.python_version(), "torch": torch.__version__}
    lines = ",\n".join(json.dumps(asdict(run)) for run in runs)
    text = f'{{"versions": {json.dumps(where)}, "runs": [\n{lines}\n]}}\n'
    beside = KEPT.with_suffix(".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(KEPT)


HEAD = "| optimizer | density | held-out loss | against dense | within 1 % |\n|---|---|---|---|---|"


class Against(NamedTuple):
    """A loss beside the dense run's of the same seed, seed by seed: 0.01 is one per cent more."""

    excess: list[float]

    @property
    def reached(self) -> bool:
        """Whether the mean is within what counts."""
        return mean(self.excess) <= WITHIN

    @property
    def cells(self) -> str:
        """Mean, least and greatest, and the verdict."""
        spread = f" ({min(self.excess):+.1%} to {max(self.excess):+.1%})" if len(self.excess) > 1 else ""
        seeds = sum(excess <= WITHIN for excess in self.excess)
        return f"{mean(self.excess):+.1%}{spread} | {'yes' if self.reached else 'no'}, {seeds} of {len(self.excess)}"


def chosen(runs: Sequence[Trained], problem: str, way: Way) -> dict[int, Trained]:
    """The runs of one row by seed."""
    return {run.seed: run for run in runs if (run.problem, run.way) == (problem, way)}


def against(runs: Sequence[Trained], problem: str, way: Way, loss: str) -> Against:
    """A row beside the dense one with the same optimizer."""
    dense = chosen(runs, problem, Way(way.optimizer, None))
    rows = chosen(runs, problem, way)
    return Against([getattr(rows[seed], loss) / getattr(dense[seed], loss) - 1 for seed in rows if seed in dense])


def ordered(runs: Sequence[Trained], problem: str) -> list[Way]:
    """Its ways that were run, by optimizer and from the densest on."""
    ways = {run.way for run in runs if run.problem == problem}
    return sorted(ways, key=lambda way: (way.optimizer, -(way.density or 2), way.mirror, way.corrections))


def table(runs: Sequence[Trained], problem: str) -> Iterator[str]:
    """All rows of a problem."""
    yield HEAD
    for way in ordered(runs, problem):
        rows = list(chosen(runs, problem, way).values())
        cells = [way.optimizer, way.words]
        values = [row.validation for row in rows]
        cells.append(f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else ""))
        cells.append("| " if way.density is None else against(runs, problem, way, "validation").cells)
        yield "| " + " | ".join(cells) + " |"


def shares(runs: Sequence[Trained]) -> Iterator[str]:
    """The bytes that a rank sends at each density, over those of the dense run: the middle of the problems."""
    for density in sorted({run.density for run in runs if run.density is not None}, reverse=True):
        found = [
            run.sent / next(iter(chosen(runs, run.problem, Way(run.optimizer, None)).values())).sent
            for run in runs
            if run.density == density
        ]
        yield f"{median(found):.0%} at {100 * density:g} %"


def summary(runs: Sequence[Trained]) -> Iterator[str]:
    """In how many of the problems a way comes within what counts, by optimizer: a column for each, with all seeds."""
    ways = dict.fromkeys(way.words for way in WAYS if way.density is not None and not way.corrections)
    yield f"| optimizer | {' | '.join(ways)} |\n|---|{'---|' * len(ways)}"
    for optimizer, said in OPTIMIZERS.items():
        cells = []
        for words in ways:
            found = verdicts(runs, words, optimizer)
            cells.append(f"{sum(found)} of {len(found)}" if found else "")
        yield f"| {said} | {' | '.join(cells)} |"


def verdicts(runs: Sequence[Trained], words: str, optimizer: str = "") -> list[bool]:
    """Whether each problem that was trained so with all seeds comes within what counts; with any optimizer or one."""
    return [
        against(runs, name, way, "validation").reached
        for name in PROBLEMS
        for way in ordered(runs, name)
        if way.words == words and optimizer in ("", way.optimizer) and len(chosen(runs, name, way)) == len(SEEDS)
    ]


OPTIMIZERS = {"adamw": "AdamW", "momentum": "SGD with momentum", "plain": "plain SGD"}
"""As a sentence says them."""


def page() -> Iterator[str]:
    """docs/ledger/sparse-training.md."""
    runs = kept()
    if not runs:
        raise UsageError(f"nothing is kept in {KEPT.name} yet: train with --train")
    found = json.loads(KEPT.read_text(encoding="utf-8"))["versions"]
    some, few = (verdicts(runs, words) for words in ("10 %", "1 %"))
    yield f"""# Does sparse communication train as well?

Mostly not at a density of 1 %: held-out losses are within 1 % of dense in {sum(few)} of {len(few)} cases, at 10 % in
{sum(some)} of {len(some)}.

Small real problems, trained by [the executor](../how-to/train-under-a-plan.md) on {RANKS} ranks of one machine over
gloo, with dense and with [sparse](../reference/sparse.md) buckets, on the CPU (Python {found["python"]}, torch
{found["torch"]}; `python benchmarks/sparse_training.py --train`). Settings are those of the dense run. Tensors of fewer
than {TINY:,} elements travel densely. **Loss** is held-out cross entropy, mean and standard deviation over seeds;
**against dense** compares with the dense run of the same seed: mean (least to greatest); the last column judges that
mean, and counts seeds. Of the dense bytes a rank sends
{", ".join(shares(runs))}."""
    if missing := jobs(runs):
        yield f"{len(missing)} of {len(jobs([]))} trainings are missing: `--train` makes them."
    yield f"\nProblems in which the mean is within 1 % of dense, of those trained so with {len(SEEDS)} seeds:\n"
    yield from summary(runs)
    yield (
        "\nEntries are chosen by layer, as LaySA does, which saves memory with mirror weights and claims to keep "
        "quality: *mirror weights*. Corrections were tried with one seed: momentum correction has momentum before the "
        "choice, and ends it where entries are sent; dense first is a tenth of the steps."
    )
    for name, problem in PROBLEMS.items():
        first = next((run for run in runs if run.problem == name and run.density is not None), None)
        if first is None:
            continue
        rates = ", ".join(f"{rate:g} ({OPTIMIZERS[key]})" for key, rate in sorted(problem.rates.items()))
        said = (problem.__doc__ or "").strip().partition("\n")[0]
        yield f"\n## {name.capitalize()}\n\n{said} {problem.model.__doc__}"
        yield f"{problem.steps:,} steps of {problem.batch} examples, learning rate {rates}.\n"
        yield from table(runs, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", help="train what is not kept yet, and write the page")
    chosen = parser.parse_args()
    try:
        if chosen.train:
            Digits()  # says what is missing before anything starts
            multiprocessing.spawn(work, (free_port(),), nprocs=RANKS)
            PAGE.write_text("\n".join(page()) + "\n", encoding="utf-8")
        else:
            print("\n".join(page()))
    except UsageError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
