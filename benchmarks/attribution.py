"""Places where measured steps differ from predicted ones: spans of collectives on all ranks, beside those predicted.

    python benchmarks/attribution.py           # measure, print: five minutes
    python benchmarks/attribution.py --page    # also write docs/ledger/attribution.md

One setting of DDP (kept in benchmarks/live_random) and one of FSDP2 (benchmarks/attribution), under the default and
the tuned plan by turns, as replays between emulated hosts. The ranks note when each step begins, and each collective is
launched and ends, on the clock of the machine that they share. A collective begins when the last rank has launched it
and ends on the last rank. Parts of a step: until the first begins, time in between with none under way, with one or
more under way, and after the last. They add up to the step, measured and predicted. DDP's collectives are launched by a
hook, since its own leave no trace. Needs what ``live_random.py`` needs.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch.distributed as dist  # noqa: E402

from osfmodel import load_cluster, load_workload  # noqa: E402
from osfmodel.cli import run  # noqa: E402
from osfmodel.cost.clusters import pricing_of  # noqa: E402
from osfmodel.engine import predict_timeline  # noqa: E402
from osfmodel.entities.effects import REPLAYED_ON_CPU  # noqa: E402
from osfmodel.entities.executors import FSDP  # noqa: E402
from osfmodel.runtime import training  # noqa: E402
from osfmodel.runtime.sharded import communication  # noqa: E402
from osfmodel.runtime.training.pace import SleepingPace  # noqa: E402
from osfmodel.runtime.training.run import plan_called  # noqa: E402
from tests.live.cluster import emulated  # noqa: E402

SPANS = "OSFMODEL_SPANS"
"""Variable: the beginning of the names of the files of spans."""
PAGE = ROOT / "docs/ledger/attribution.md"
TURNS, ITERATIONS = 2, 6
DDP_SETTING, DDP_NETWORK = "densenet121-pipedream-x1.4-4x800mbit", (4, "800mbit")
FSDP_SETTING, FSDP_NETWORK = "3x800mbit-even-replay-x0.58", (3, "800mbit")
PARTS = ("before the first", "none under way", "under way", "after the last")


class Case(NamedTuple):
    """A plan on a network: workload, plan and cluster, a factor on computation, and further words of ``osf run``."""

    name: str
    network: tuple[int, str]
    workload: str
    plan: str
    cluster: Path
    scale: float = 1
    words: tuple[str, ...] = ()


def cases() -> list[Case]:
    """Default and tuned, of DDP and of FSDP2."""
    first, second = (
        ROOT / f"benchmarks/{place}" for place in (f"live_random/{DDP_SETTING}", f"attribution/{FSDP_SETTING}")
    )
    name, _, rest = DDP_SETTING.partition("-x")
    scale, sharded = float(rest.partition("-")[0]), second.with_name("3x800mbit-replay.json")
    return [
        Case(f"DDP, {label}", DDP_NETWORK, name, plan, Path(f"{first}-cluster.json"), scale)
        for label, plan in (("default", "ddp"), ("tuned", f"{first}-tuned.json"))
    ] + [
        Case(
            f"FSDP2, {label}",
            FSDP_NETWORK,
            f"{second}-workload.json",
            f"{second}-{plan}.json",
            sharded,
            words=("--executor", "fsdp2"),
        )
        for label, plan in (("a group per block", "per-block-overlapping"), ("planned", "planned-overlapping"))
    ]


def traced(words: Sequence[str]) -> None:
    """``osf`` with these words, with spans of a rank in a file."""
    now = time.perf_counter
    starts: list[float] = []
    sent: list[list[float]] = []
    works: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def follow() -> None:
        while True:
            work, span = works.get()
            work.wait()
            span.append(now())

    def noted(call: Any) -> Any:
        def launch(*given: Any, **named: Any) -> Any:
            span = [now()]
            work = call(*given, **named)
            if named.get("async_op"):
                sent.append(span)
                works.put((work, span))
            return work

        return launch

    begin, wrap, find = SleepingPace.start, training.wrapped, communication._call

    def start(pace: SleepingPace) -> None:
        starts.append(now())
        begin(pace)

    def wrapped(*given: Any) -> Any:
        made, messages = wrap(*given)
        if messages is None:

            def hook(state, bucket):  # type: ignore[no-untyped-def]
                buffer = bucket.buffer().div_(dist.get_world_size())
                return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])

            made.register_comm_hook(None, hook)
        return made, messages

    threading.Thread(target=follow, daemon=True).start()
    SleepingPace.start, training.wrapped = start, wrapped  # type: ignore[method-assign]
    communication._call = lambda kind: noted(find(kind))
    dist.all_reduce = noted(dist.all_reduce)
    sys.argv[1:] = words
    try:
        run()
    finally:
        path = Path(f"{os.environ[SPANS]}.{os.environ.get('RANK', '0')}")
        path.write_text(json.dumps([starts, [span for span in sent if len(span) > 1]]))


def parts(begin: float, spans: Sequence[tuple[float, float]], end: float) -> list[float]:
    """Seconds of PARTS of a step with collectives (begin, end)."""
    under_way, reached = 0.0, min(one[0] for one in spans)
    first, last = reached, max(one[1] for one in spans)
    for since, until in sorted(spans):
        under_way += max(until - max(since, reached), 0)
        reached = max(reached, until)
    return [first - begin, last - first - under_way, under_way, end - last]


def measured(ranks: Sequence[tuple[list[float], list[list[float]]]]) -> Iterator[list[float]]:
    """PARTS of each of the last steps; every step starts its timetable twice, for its update as well."""
    for number in range(-2 * ITERATIONS, -2, 2):
        begin, end = (max(starts[place] for starts, _ in ranks) for place in (number, number + 2))
        inside = [
            [(one, other) for one, other in sent if starts[number] <= one < starts[number + 2]]
            for starts, sent in ranks
        ]
        together = [(max(one for one, _ in row), max(end for _, end in row)) for row in zip(*inside, strict=True)]
        yield parts(begin, together, end)


def run_case(case: Case, folder: Path) -> list[list[float]]:
    """PARTS of the steps of one turn."""
    with emulated(*case.network) as hosts:
        words = [
            "run",
            case.workload,
            "--scale",
            f"{case.scale:g}",
            "--cluster",
            str(case.cluster),
            "--plan",
            case.plan,
            *case.words,
        ]
        words += ["--iterations", str(ITERATIONS), "--repeat", "1", "-o", str(folder / "run.json")]
        own = {rank: {SPANS: str(folder / "spans")} for rank in range(case.network[0])}
        for one in hosts.run([sys.executable, __file__, "--rank", *words], timeout=600, extra=own):
            if one.status:
                sys.exit(f"rank {one.rank}: {one.stderr.strip()[-500:]}")
    return list(measured([json.loads((folder / f"spans.{rank}").read_text()) for rank in range(case.network[0])]))


def predicted(case: Case) -> list[float]:
    """PARTS of the predicted step."""
    workload, own = load_workload(case.workload).scaled(case.scale), FSDP.conditions if case.words else {}
    pricing = pricing_of(load_cluster(case.cluster), case.network[0]).under(own | REPLAYED_ON_CPU)
    timeline = predict_timeline(workload, plan_called(case.plan, workload, pricing), pricing)
    sent = [(span.start, span.end) for span in timeline.spans
            if span.kind in ("all_reduce", "all_gather", "reduce_scatter")]  # fmt: skip
    return parts(0.0, sent, timeline.iteration_time)


def table() -> Iterator[str]:
    """Measured and predicted parts of each case, in ms."""
    found: dict[str, list[list[float]]] = {}
    with TemporaryDirectory() as folder:
        for case in cases() * TURNS:
            found.setdefault(case.name, []).extend(run_case(case, Path(folder)))
    yield f"| plan | step | {' | '.join(PARTS)} |"
    yield "|---|--:|--:|--:|--:|--:|"
    for case in cases():
        steps, expected = found[case.name], predicted(case)
        middle = [median(step[place] for step in steps) for place in range(len(PARTS))]
        for label, row in (("measured", middle), ("predicted", expected)):
            whole = median(map(sum, steps)) if row is middle else sum(row)
            cells = " | ".join(f"{1e3 * one:.1f}" for one in (whole, *row))
            yield f"| {case.name}, {label} | {cells} |"


HEAD = f"""\
# Where steps differ from predictions

`python benchmarks/attribution.py --page` runs default and tuned plan by turns between emulated hosts, DDP
({DDP_SETTING}) and FSDP2 in the background
({FSDP_SETTING}), and writes this page. Milliseconds of a step, medians of {TURNS * (ITERATIONS - 1)}: until the first
collective begins, with none under way in between, with one or more, and after the last. A collective begins when the
last rank has launched it, and ends on the last rank.

"""
TAIL = """
The missing time lies in that with collectives under way: they take longer than alone. Under DDP they do so more with
the tuned plan, so that its gain falls short of its promise. A likely reason: ranks launch them apart, and work of other
ranks' hosts, here of other programs too, takes the cores meanwhile. DDP runs with a hook that
notes the spans. Copies, the host and the shaper are not told apart.
"""


def main(words: Sequence[str] | None = None) -> None:
    if sys.argv[1:2] == ["--rank"]:
        traced(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args(words)
    lines = list(table())
    if arguments.page:
        PAGE.write_text(HEAD + "\n".join(lines) + "\n" + TAIL)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
