"""``osf doctor`` judged: percentiles with each machine left out, and faults planted on emulated hosts.

    python benchmarks/doctor.py peers
    python benchmarks/doctor.py record FOLDER [--only FAULT] [--repeats 3] [--seed 1]
    python benchmarks/doctor.py judge FOLDER

``peers`` needs nothing else: every bundled machine is compared with all others, the uniformity of its places is tested
(Kolmogorov-Smirnov; a place is a range, in which one point is drawn with a fixed seed), and so is the expected curve
that faults are told by. ``record`` needs root, iproute2, /dev/net/tun and PyTorch: three or four hosts are measured
with ``osf bench`` under each fault, all together and in pairs, at rates drawn by the seed. ``judge`` reads what it
wrote, and prints a confusion matrix for all files of a case and for that of all hosts alone.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import kstest
from scipy.stats import t as student

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import osfmodel as osf
from osfmodel.diagnosis.doctor import CANNOT_TELL, HEALTHY, check_up
from osfmodel.diagnosis.doctor.curves import (
    CLASSES,
    FREEDOM,
    KINDS,
    KNOWN_MACHINES,
    Curve,
    expected,
    known_curves,
    over,
    peers_of,
    percentile,
    ratios_of,
)
from osfmodel.diagnosis.doctor.faults import NETWORK_FAULTS, MeasuredMachine
from osfmodel.diagnosis.doctor.reading import examine
from tests.live.cluster import Hosts, emulated
from tests.live.far_hosts import far

# ------------------------------------------------------------------------------------------------------- peers


def places(seed: int = 1) -> dict[str, list[float]]:
    """A point in the place of each machine among the others, by part of the curve."""
    chance = np.random.default_rng(seed)
    found: dict[str, list[float]] = defaultdict(list)
    machines = sorted({(machine, curve.kind) for machine, curve in known_curves()})
    for machine, kind in machines:
        own = ratios_of(curve for name, curve in known_curves() if (name, curve.kind) == (machine, kind))
        others = [ratios_of(curves) for curves in peers_of(kind, machine).values()]
        for part, (low, high) in CLASSES.items():
            ratio = over(own, low, high)
            beside = [one for one in (over(other, low, high) for other in others) if one is not None]
            place = None if ratio is None else percentile(ratio, beside)
            if place is not None:
                found[part].append(place.low + chance.random() * (place.high - place.low))
    return found


def deviations() -> dict[str, list[float]]:
    """The probability, by the expected curve, of a machine as fast as each one left out, at one size of each part."""
    found: dict[str, list[float]] = defaultdict(list)
    for machine, kind in sorted({(machine, curve.kind) for machine, curve in known_curves()}):
        curves = [curve for name, curve in known_curves() if (name, curve.kind) == (machine, kind)]
        curve = max(curves, key=lambda one: one.place.workers)
        against = osf.load_cluster(KNOWN_MACHINES[curve.label].words)
        mean, spread = expected(curve, against, peers_of(kind, machine))
        scores = student.cdf((curve.ratios - mean) / spread, FREEDOM)
        for part, (low, high) in CLASSES.items():
            inside = [score for octave, score in zip(curve.octaves, scores, strict=True) if low <= octave < high]
            if inside:
                found[part].append(float(inside[len(inside) // 2]))
    return found


def peers() -> Iterator[str]:
    """The report on bundled machines."""
    yield "| part of the curve | machines | places uniform: p | expected curve uniform: p |"
    yield "|---|---|---|---|"
    ranks, scores = places(), deviations()
    for part in CLASSES:
        yield (
            f"| {part} | {len(ranks[part])} | {kstest(ranks[part], 'uniform').pvalue:.2f} "
            f"| {kstest(scores[part], 'uniform').pvalue:.2f} |"
        )
    yield ""
    found = Counter()
    for name in KNOWN_MACHINES:
        one = examine([name])
        found[one.cause] += 1
        if one.cause != HEALTHY:
            yield f"* {name}: {one.verdict}"
    yield ""
    yield ", ".join(f"{cause} {count}" for cause, count in found.most_common()) + f", of {len(KNOWN_MACHINES)}"
    yield f"kinds: {', '.join(KINDS[kind] for kind in sorted({curve.kind for _, curve in known_curves()}))}\n"
    yield from published()
    yield ""
    yield from multiplied()


PUBLISHED = (
    ("rtx-6000d-nics", "nccl:rtx-pro-6000x8,400Gbps,ib", "peer-access"),
    ("aws-10g-pair", "nccl:a10gx1,100Gbps,ib", "sockets"),
    ("aws-10g-pair", "nccl:a10gx1,25Gbps,efa", "sockets"),
)
"""Bundled tables of machines with a fault that their authors state, beside the machine that they would be without it:
peer access off, so that all copies go over NICs; sockets, beside InfiniBand and beside the EFA of the same cloud."""


def published() -> Iterator[str]:
    """The answers to published tables of known faults."""
    yield "| table | against | fault | answer | probability |"
    yield "|---|---|---|---|---|"
    for name, words, fault in PUBLISHED:
        one = examine([name], osf.load_cluster(words))
        chance = {hypothesis.name: hypothesis.probability for hypothesis in one.hypotheses}
        yield f"| {name} | `{words}` | {fault} | {one.cause} | {chance[fault]:.0%} |"


def multiplied() -> Iterator[str]:
    """Answers where each fault's shift is put on the measured curves of each bundled machine, itself no peer."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for machine in sorted({machine for machine, _ in known_curves()}):
        curves = [curve for name, curve in known_curves() if name == machine]
        against = osf.load_cluster(KNOWN_MACHINES[curves[0].label].words)
        measured = MeasuredMachine(against, tuple(curves))
        plain = check_up(machine, curves, against, machine).cause
        found["nothing"][plain] += 1
        for name, fault in NETWORK_FAULTS.items():
            for variant in fault.variants(measured):
                if name != "cliff" and not variant.noise and np.abs(variant.shift).max() > LARGE_SHIFT:
                    found[name][check_up(machine, shifted(curves, variant.shift), against, machine).cause] += 1
    yield from matrix("put on measured curves", found)


LARGE_SHIFT = np.log(2.5)
"""Minimum ln(time with a fault / time without) at some size of faults that are put on measured curves."""


def shifted(curves: Sequence[Curve], shift: np.ndarray) -> list[Curve]:
    """The curves with times exp(shift) as long."""
    ends = np.cumsum([len(curve.sizes) for curve in curves])[:-1]
    parts = np.split(np.exp(shift), ends)
    return [replace(c, times=tuple((np.array(c.times) * part).tolist())) for c, part in zip(curves, parts, strict=True)]


def matrix(title: str, found: Mapping[str, Counter[str]]) -> Iterator[str]:
    """A confusion matrix in Markdown."""
    answers = [
        answer for answer in (HEALTHY, *NETWORK_FAULTS, CANNOT_TELL) if any(row[answer] for row in found.values())
    ]
    yield f"| planted ({title}) | {' | '.join(answers)} |"
    yield f"|---|{'---|' * len(answers)}"
    for name, row in found.items():
        yield f"| {name} | {' | '.join(str(row[answer] or '') for answer in answers)} |"


# -------------------------------------------------------------------------------------------------- planted faults


class Case(NamedTuple):
    """A recording: the fault, and the hosts with their rate in Mbit/s."""

    name: str
    hosts: int
    rate: int

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.hosts}x{self.rate}mbit"

    @property
    def shaping(self) -> str:
        """The rate in tc's words."""
        return f"{self.rate}mbit"

    @property
    def groups(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """First host and number of hosts of each measurement, in turns: pairs at once where no host is in both."""
        pairs = ((0, 2), (self.hosts - 2, 2))
        return (((0, self.hosts),), pairs) if self.hosts > 3 else (((0, self.hosts),), *((pair,) for pair in pairs))

    def file(self, first: int, count: int) -> str:
        """The file of a measurement."""
        return f"hosts-{first}-{first + 1}.json" if count < self.hosts else "all-hosts.json"

    @property
    def largest(self) -> str:
        """The largest size, which takes some 0.2 s without a fault."""
        return f"{self.rate // 50}MiB"


class Planted(NamedTuple):
    """A fault to plant: the fault that it is, its hosts, and what is done to them while they are measured."""

    fault: str
    hosts: Callable[[Case], contextlib.AbstractContextManager[Hosts]]
    during: Callable[[Hosts, Case], contextlib.AbstractContextManager[None]] = lambda hosts, case: (
        contextlib.nullcontext()
    )
    fastest: int = 500


def plain(case: Case, part: float = 1.0) -> contextlib.AbstractContextManager[Hosts]:
    """Hosts that send at a part of the rate."""
    return emulated(case.hosts, f"{case.rate * part:.0f}mbit")


@contextlib.contextmanager
def slowed(hosts: Hosts, case: Case) -> Iterator[None]:
    """The last host sends at a quarter of the rate."""
    shape = ["root", "tbf", "rate", f"{case.rate / 4:.0f}mbit", "burst", "128kb", "latency", "100ms"]
    subprocess.run(["tc", "-n", hosts.namespaces[-1], "qdisc", "replace", "dev", "eth0", *shape], check=True)
    yield


@contextlib.contextmanager
def with_large_packets(hosts: Hosts, case: Case) -> Iterator[None]:
    """Packets of 9,000 bytes instead of 1,500."""
    switch = hosts.namespaces[0].rpartition("-")[0] + "-switch"
    for number, host in enumerate(hosts.namespaces):
        for namespace, device in ((switch, f"port{number}"), (host, "eth0")):
            subprocess.run(["ip", "-n", namespace, "link", "set", device, "mtu", "9000"], check=True)
    yield


SEND = "import socket,sys\ns = socket.create_connection((sys.argv[1], 5999))\nwhile True: s.sendall(bytes(65536))"
TAKE = "import socket\ns = socket.create_server(('', 5999))\nc, _ = s.accept()\nwhile c.recv(1 << 20): pass"


@contextlib.contextmanager
def streamed(hosts: Hosts, case: Case) -> Iterator[None]:
    """A second stream from the first host to the last one, and from the one before the last to another."""
    processes = []
    try:
        for sender, taker in ((0, case.hosts - 1), (case.hosts - 2, int(case.hosts > 3))):
            for host, words in ((taker, [TAKE]), (sender, [SEND, f"10.77.0.{taker + 1}"])):
                command = ["ip", "netns", "exec", hosts.namespaces[host], sys.executable, "-c", *words]
                processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
                time.sleep(0.5)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


PLANTED = {
    "healthy": Planted(HEALTHY, plain),
    "half": Planted("bandwidth", lambda case: plain(case, 0.5)),
    "slow-host": Planted("slow-host", plain, slowed),
    "delay": Planted("latency", lambda case: far(case.hosts, case.shaping, delay=0.0025), fastest=250),
    "loss": Planted("loss", lambda case: far(case.hosts, case.shaping, loss=0.01), fastest=250),
    "stream": Planted("contention", plain, streamed),
    "healthy-switch": Planted(HEALTHY, lambda case: far(case.hosts, case.shaping), fastest=250),
    "large-mtu": Planted(HEALTHY, plain, with_large_packets),
}
"""Faults by name. A switch in Python carries some 250 Mbit/s."""
MEASUREMENTS = 3
"""Measurements of a case: all hosts, and two pairs."""
DRAWN = ("healthy", "half", "slow-host", "delay", "loss", "stream")
"""Faults that are recorded by default."""


def drawn(repeats: int, seed: int, names: Sequence[str]) -> list[Case]:
    """``repeats`` cases of each fault, in turns: 3 or 4 hosts, and a rate from 100 Mbit/s on, by chance."""
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(repeats):
        for name, fault in PLANTED.items():
            case = Case(name, int(chance.integers(3, 5)), int(chance.integers(100, fault.fastest + 1)))
            found += [case] * (name in names)
    return found


def record(folder: Path, cases: Sequence[Case]) -> None:
    """Measure each case: all hosts, and two pairs. Those that are recorded already are left out."""
    for case in cases:
        place = folder / case.folder
        place.mkdir(parents=True, exist_ok=True)
        if len(list(place.glob("*.json"))) == MEASUREMENTS:
            continue
        began = time.monotonic()
        fault = PLANTED[case.name]
        with fault.hosts(case) as hosts, fault.during(hosts, case):
            for together in case.groups:
                files = [place / case.file(*some) for some in together]
                with ThreadPoolExecutor() as pool:
                    started = [
                        pool.submit(measure, group(hosts, *some), file, case.largest)
                        for some, file in zip(together, files, strict=True)
                        if not file.exists()
                    ]
                for one in started:
                    one.result()
        print(f"{place.name}: {time.monotonic() - began:.0f} s", flush=True)


def group(hosts: Hosts, first: int, count: int) -> Hosts:
    """``count`` of the hosts, from ``first`` on."""
    address = hosts.address.rpartition(".")[0] + f".{first + 1}"
    return replace(
        hosts, prefixes=hosts.prefixes[first : first + count], address=address,
        namespaces=hosts.namespaces[first : first + count],
    )  # fmt: skip


def measure(hosts: Hosts, target: Path, largest: str) -> None:
    """Run osf bench with its default repeats."""
    options = "--quick --backend gloo --timeout 200s"
    command = [sys.executable, "-m", "osfmodel", "bench", "-o", str(target), "--max-size", largest, *options.split()]
    for ended in hosts.run(command, timeout=400):
        if ended.status:
            raise SystemExit(f"{target}: rank {ended.rank} ended with {ended.status}: {ended.stderr[-500:]}")


def judge(folder: Path) -> Iterator[str]:
    """Confusion matrices of what was recorded."""
    for title, pattern in (("all hosts and pairs", "*.json"), ("all hosts alone", "all-hosts.json")):
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for case in sorted(path for path in folder.iterdir() if path.is_dir()):
            name, _, rate = case.name.rpartition("-")
            files = sorted(map(str, case.glob(pattern)))
            one = examine(files, osf.load_cluster(f"ring:50us,{rate.partition('x')[2].replace('mbit', 'Mbps')}"))
            found[name][one.cause] += 1
            told = ", ".join(f"{s.name} {s.probability:.0%} {s.words}".strip() for s in one.hypotheses[:3])
            print(f"{case.name}, {title}: {told}", file=sys.stderr)
        yield from matrix(title, found)
        total = sum(sum(row.values()) for row in found.values())
        unsure = sum(row[CANNOT_TELL] for row in found.values())
        right = sum(row[right_of(name, pattern)] for name, row in found.items())
        wrong = total - right - unsure
        yield f"\nright {right} of {total} ({right / total:.0%}), cannot tell {unsure}, wrong {wrong}\n"


def right_of(name: str, pattern: str) -> str:
    """The right answer: of all hosts alone, a slow one is part of ``bandwidth``, whose words name it."""
    fault = PLANTED[name].fault
    return "bandwidth" if fault == "slow-host" and pattern != "*.json" else fault


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["peers", "record", "judge"])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("doctored"))
    parser.add_argument("--only", choices=list(PLANTED), action="append", help="faults to record; default: six")
    parser.add_argument("--repeats", type=int, default=3, help="recordings of each fault")
    parser.add_argument("--seed", type=int, default=1, help="of the rates and numbers of hosts")
    asked = parser.parse_args()
    if asked.what == "record":
        record(asked.folder, drawn(asked.repeats, asked.seed, asked.only or DRAWN))
    else:
        print("\n".join(peers() if asked.what == "peers" else judge(asked.folder)))


if __name__ == "__main__":
    main()
