"""Make the bundled profiles from the published figures, so that each can be traced.

    OSFMODEL_DATA=FOLDER python profiles/make.py [OUTPUT_FOLDER]

FOLDER holds the figures as their authors published them (layer_profiles/, comm_tables/, papers/, and sources.json with
the origin and licence of each file). Every profile says in its ``source`` which file it was made from and what was done
to it; clusters called nccl-* are made from data sheets. Nothing here is fitted or tuned, save the four constants of the
reconstructed workloads (reconstruct.py) and the gains of simultaneous collectives. Run twice, it writes the same bytes.
"""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from osfmodel import AlphaBeta, Cluster, Layer, Link, Source, Table, Workload, load_cluster, save
from osfmodel.cost.pricing import fit_gain
from osfmodel.cost.textbook import FORMULAS
from osfmodel.entities.cluster import Contention
from osfmodel.entities.files.measurements import save_measurements

sys.path.insert(0, str(Path(__file__).parent))
import reconstruct
import runs

DATA = Path(os.environ.get("OSFMODEL_DATA", ""))
FLOAT32 = 4
US = 1e-6
MS = 1e-3


def rows(path: str) -> list[dict[str, str]]:
    with open(DATA / path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


ORIGINS = {
    "layer_profiles/from_traces/resnet50_v100sxm2_ddp_world1.csv": "facebookresearch/HolisticTraceAnalysis: "
    "trace of ResNet-50 under DDP on one V100 (ns_resolution), reduced to gradient-ready times",
    "layer_profiles/from_traces/resnet50_v100dgxs_bs32.csv": "pytorch/kineto: "
    "tb_plugin/samples/resnet50_num_workers_4, reduced to gradient-ready times",
    "targets.csv": "MG-WFBP, IEEE TPDS 2021, Fig. 9 (arXiv 1912.09268), and ASC-WFBP, IEEE INFOCOM 2021: plot scripts",
}


def source(path: str, conditions: str, gpu: str = "not stated") -> Source:
    """Origin and licence as recorded beside the data; conditions = hardware, then what was done here."""
    entry = json.loads((DATA / "sources.json").read_text(encoding="utf-8")).get(path)
    if entry is None:
        raise SystemExit(f"{DATA / 'sources.json'} has no entry for {path}: add its repository, licence and hardware")
    commit = entry.get("commit", "")
    repository = entry.get("repo", "own measurement")
    place = entry.get("path", "")
    hardware = entry.get("hardware", "not stated")
    at = f" @ {commit[:12]}" if len(commit) >= 40 else ""
    return Source(
        origin=ORIGINS.get(path) or (f"{repository}{at}: {place}" if place else repository),
        conditions=conditions if path in ORIGINS or hardware == "-" else f"{hardware}; {conditions}",
        licence=entry["licence"],
        gpu=gpu,
    )


def exact(value: float) -> float:
    """Drop the rounding noise of a unit conversion: 12 significant digits, far beyond any measurement."""
    return float(f"{value:.12g}")


# ---------------------------------------------------------------------------------------------------- workloads


def googlenet_k80() -> Workload:
    path = "papers/googlenet_k80_b64.csv"
    layers = []
    for row in rows(path):
        backward = exact(float(row["t_backward_us"]) * US)
        layers.append(
            Layer(f"layer{row['layer_index_from_input']}", backward / 2, backward, FLOAT32 * int(row["params"]))
        )
    note = "batch 64; one layer per row, backward as measured, forward taken as half of backward, update as 0"
    return Workload("googlenet-k80", tuple(layers), 64, 0.0, source(path, note, "K80"))


BCAFFE_LOG = "layer_profiles/bcaffe/googlenet_k80_backward_and_comm.csv"
BCAFFE_BLOCKS = {2: ("tmp2comm", "1"), 4: ("tmp4comm", "1"), 8: ("tmp8comm", "1")}
"""Nodes -> (log, block) of the runs that send every tensor by itself; block 0 of these logs is still empty."""


def googlenet_k80_tensors() -> Workload:
    """Weight and bias apart, as the log of the measured runs has them; the bias goes first."""
    logged: dict[int, list[float]] = {}
    sizes = {int(row["param_id"]): FLOAT32 * int(row["elements"]) for row in rows(BCAFFE_LOG)}
    for row in rows(BCAFFE_LOG):
        if (row["log"], row["block"]) in BCAFFE_BLOCKS.values():
            logged.setdefault(int(row["param_id"]), []).append(float(row["layer_backward_us"]) * US)
    layers = []
    for index in range(0, len(sizes), 2):
        backward = exact(median(logged[index]))
        layers.append(Layer(f"layer{index // 2 + 1}.weight", backward / 2, 0.0, sizes[index]))
        layers.append(Layer(f"layer{index // 2 + 1}.bias", 0.0, backward, sizes[index + 1]))
    note = (
        "64 images per node (32 on each of 2 GPUs) and iteration; backward = median of the logs of the runs on 2, 4 "
        "and 8 nodes, forward taken as half of backward, update as 0"
    )
    return Workload("googlenet-k80-tensors", tuple(layers), 64, 0.0, source(BCAFFE_LOG, note, "K80"))


def resnet50_v100() -> Workload:
    return _from_trace(
        "resnet50-v100",
        "layer_profiles/from_traces/resnet50_v100sxm2_ddp_world1.csv",
        step=95.6 * MS,
        conditions="V100-SXM2-32GB, one GPU, batch 32 (inferred), PyTorch DDP of world size 1; "
        "median of 3 steps of 95.6 ms; forward = step - backward, spread by share of backward, update as 0",
    )


def resnet50_v100_dgxs() -> Workload:
    return _from_trace(
        "resnet50-v100-dgxs",
        "layer_profiles/from_traces/resnet50_v100dgxs_bs32.csv",
        step=None,
        conditions="V100-DGXS-32GB, one GPU, batch 32, PyTorch; median over the profiled steps; "
        "the step itself waits for input, so forward is taken as half of backward, and update as 0",
    )


def _from_trace(name: str, path: str, step: float | None, conditions: str) -> Workload:
    ready: dict[int, list[float]] = {}
    tensors: dict[int, tuple[str, int]] = {}
    totals: dict[str, float] = {}
    for row in rows(path):
        order = int(row["order"])
        ready.setdefault(order, []).append(float(row["grad_ready_us"]) * US)
        tensors[order] = (row["tensor"], FLOAT32 * int(row["elements"]))
        totals[row["step"]] = float(row["backward_gpu_total_us"]) * US
    backward = median(totals.values())
    forward = backward / 2 if step is None else step - backward
    clock, layers = 0.0, []
    for order in sorted(tensors):
        now = max(median(ready[order]), clock)
        if order == max(tensors):
            now = max(now, backward)
        tensor, size = tensors[order]
        layers.append((tensor, now - clock, size))
        clock = now
    built = [Layer(t, exact(forward * time / clock), exact(time), size) for t, time, size in reversed(layers)]
    return Workload(name, tuple(built), 32, 0.0, source(path, conditions, conditions.partition(",")[0]))


def pipedream(model: str) -> Workload:
    path = f"layer_profiles/pipedream/{model}.csv"
    stated = json.loads((DATA / "sources.json").read_text(encoding="utf-8"))[path]["measured"].rsplit(":", 1)[1].strip()
    layers = []
    for row in rows(path):
        if row["op"].startswith("Input"):
            continue
        layers.append(
            Layer(
                f"node{row['node']}",
                exact(float(row["forward_ms"]) * MS),
                exact(float(row["backward_ms"]) * MS),
                int(float(row["parameter_bytes"])),
                activation_bytes=_activation_bytes(row["activation_bytes"]),
            )
        )
    note = "one GPU of a kind not named; layer times by wall clock with hooks; data loading (the input rows) left out"
    if stated:
        note += f"; batch {int(float(stated))} inferred from the last linear layer"
    batch = int(float(stated)) if stated else None
    return Workload(f"{model.replace('_', '-')}-pipedream", tuple(layers), batch, 0.0, source(path, note))


def _activation_bytes(text: str) -> int:
    return int(sum(float(part) for part in text.strip("[]").split(";")))


def triosim(model: str) -> Workload:
    """One layer per operator with parameters; other operators' time counts towards the gradient that waits for it."""
    path = f"layer_profiles/triosim/h100_bs128_{model}_trace.csv"
    forward: list[tuple[str, float, int]] = []
    backward: list[float] = []
    update, head, tail = 0.0, 0.0, 0.0
    for row in rows(path):
        time = float(row["Operator_cudatime"]) * US
        operator = row["OperatorName"].rsplit(" ", 1)[-1]
        if row["stage"] == "optimizer":
            update += time
        elif row["stage"] == "forward":
            if operator in PARAMETERS:
                sizes = [int(part) for part in row["InputSize"].strip("[]").split(";")]
                forward.append((operator, time + head, FLOAT32 * sum(sizes[1 : 1 + PARAMETERS[operator]])))
                head = 0.0
            elif forward:
                forward[-1] = (forward[-1][0], forward[-1][1] + time, forward[-1][2])
            else:
                head += time
        elif operator in ("ConvolutionBackward0", "CudnnBatchNormBackward0", "AddmmBackward0"):
            backward.append(time + tail)
            tail = 0.0
        else:
            tail += time
    layers = [
        Layer(f"{index}.{operator.removeprefix('aten::')}", exact(ahead), exact(back), size)
        for index, ((operator, ahead, size), back) in enumerate(zip(forward, reversed(backward), strict=True))
    ]
    note = "PyTorch profiler; weight and bias of an operator are one layer; optimizer operators are the update"
    return Workload(f"{model}-h100", tuple(layers), 128, exact(update), source(path, note, "H100"))


PARAMETERS = {"aten::conv2d": 2, "aten::batch_norm": 2, "aten::linear": 2}
"""Operators with parameters, and how many of their inputs after the first are weight and bias, where present."""

# ----------------------------------------------------------------------------------------------------- clusters


def gains() -> tuple[Contention, ...]:
    """Gain of several all-reduces at once, fitted per node count to one up to eight at once; two decimals."""
    times: dict[int, dict[int, float]] = {}
    for row in rows("papers/simultaneous_allreduce_100MiB_10GbE.csv"):
        times.setdefault(int(row["node_num"]), {})[int(row["job_num"])] = float(row["avg_latency"]) * US
    return tuple(Contention(nodes, round(fit_gain(several), 2)) for nodes, several in sorted(times.items()))


def k80_ring() -> Cluster:
    return Cluster(
        "k80-10gbe-ring",
        "ring",
        between_nodes=Link(45.25e-6, 1.2 / (9 * 2**30 / 8), 2.5e-9),
        contention=gains(),
        source=Source(
            "shyhuai/B-Caffe: scripts/gmwfbp.py (constants of the simulation in MG-WFBP); contention: "
            "shyhuai/dl_scheduling: network_contention/results.csv",
            "K80 nodes, 10 GbE, MPI; ring all-reduce a = 2(n-1) 45.25 us, b = (2 beta + gamma)(n-1)/n with "
            "beta = 1.2/(9 2^30/8) s/B, gamma = 2.5e-9 s/B; any worker count is a formula, not a measurement; "
            "contention fitted to 1 to 8 simultaneous all-reduces of 100 MiB on 2 to 8 nodes of the same group's "
            "10 GbE (facts only), where one alone was 1.5 to 1.9 times as fast as this formula says",
            "BSD-2-Clause (Caffe LICENSE)",
            "K80",
        ),
    )


def k80_log() -> Cluster:
    """Time of each message inside training; the median of several of one size."""
    messages: dict[int, dict[int, list[float]]] = {nodes: {} for nodes in BCAFFE_BLOCKS}
    for nodes, block in BCAFFE_BLOCKS.items():
        pending = 0
        for row in sorted(rows(BCAFFE_LOG), key=lambda row: -int(row["param_id"])):
            if (row["log"], row["block"]) == block:
                pending += FLOAT32 * int(row["elements"])
                if float(row["comm_us"]):  # 0 marks a bias that went with its weight
                    messages[nodes].setdefault(pending, []).append(float(row["comm_us"]) * US)
                    pending = 0
    tables = [
        Table(nodes, tuple(sorted(found)), tuple(exact(median(found[size])) for size in sorted(found)))
        for nodes, found in messages.items()
    ]
    note = (
        "all-reduce times inside training (GoogLeNet, one message per tensor, at 8 nodes per weight with its bias), "
        "waiting for the slowest node included; one worker per node, which first adds up its 2 GPUs"
    )
    return Cluster("k80-10gbe-log", "tabulated", nodes=8, tables=tuple(tables), source=source(BCAFFE_LOG, note, "K80"))


def merge_rule(name: str, table: str) -> Cluster:
    """Constants that MG-WFBP was given, whatever the network really did."""
    path = "scaling/ddl-benchmarks/mgwfbp_grouping_alpha_beta.csv"
    fits = [
        AlphaBeta(int(row["n_gpus"]), float(row["alpha_s"]), float(row["beta_s_per_byte"]))
        for row in rows(path)
        if row["table"].startswith(table)
    ]
    note = (
        f"{table}: constants written into the authors' code, from which MG-WFBP decides what to merge; "
        "no measurement of the clusters on which it ran"
    )
    return Cluster(name, "hockney", gpus_per_node=4, fits=tuple(fits), source=source(path, note))


NETWORKS = {"10GbE": 10, "56GbIB": 56}
"""Gbps of the networks by name."""


def v100_published(name: str, network: str) -> Cluster:
    """The link that makes the ring formula give the published line at 16 workers."""
    path = "comm_tables/mgwfbp/alpha_beta.csv"
    published = next(row for row in rows(path) if row["network"] == network and row["n_gpus"] == "16")
    load = FORMULAS["ring"]["all_reduce"](16)
    link = Link(float(published["alpha_s"]) / load.rounds, float(published["beta_s_per_byte"]) / load.sent)
    note = (
        f"V100, {network}, Horovod over NCCL; published a + b bytes for 16 workers, "
        "scaled to other counts by the ring formula"
    )
    rate, named = 8 / link.seconds_per_byte / 1e9, NETWORKS[network]
    if rate > 1.5 * named:
        note += f"; its line has {rate:.3g} Gbps per GPU, {rate / named:.0f} times those of {network}"
    return Cluster(name, "ring", gpus_per_node=4, between_nodes=link, source=source(path, note, "V100"))


def published_fits(name: str, network: str) -> Cluster:
    """All published lines as they are."""
    path = "comm_tables/mgwfbp/alpha_beta.csv"
    fits = [
        AlphaBeta(int(row["n_gpus"]), float(row["alpha_s"]), float(row["beta_s_per_byte"]))
        for row in rows(path)
        if row["network"] == network
    ]
    note = f"{network}, Horovod over NCCL; the authors' own a + b bytes for each count; 2 and 4 workers are one node"
    return Cluster(name, "hockney", gpus_per_node=4, fits=tuple(fits), source=source(path, note, "V100"))


def measured(
    name: str,
    path: str,
    note: str,
    gpus_per_node: int,
    gpu: str,
    workers: str = "n_gpus",
    keep: Callable[[dict[str, str]], bool] = lambda row: True,
    columns: tuple[str, ...] = ("time_us", "inplace_time_us"),
    drop_warm_up: bool = False,
    octaves: bool = False,
) -> Cluster:
    """Tables as measured: the smaller of the given columns at each size.

    ``drop_warm_up`` leaves out the first row of a table where it takes more than twice as long as the second.
    ``octaves`` keeps the size nearest to each power of two.
    """
    points: dict[int, dict[int, float]] = {}
    for row in rows(path):
        if keep(row):
            time = min(float(row[column]) for column in columns) * US
            points.setdefault(int(row[workers]), {})[int(row.get("bytes") or row["bytes_pow2"])] = exact(time)
    tables = []
    for count, table in sorted(points.items()):
        sizes = sorted(_nearest(table)) if octaves else sorted(table)
        if drop_warm_up and table[sizes[0]] > 2 * table[sizes[1]]:
            sizes = sizes[1:]
        tables.append(Table(count, tuple(sizes), tuple(table[size] for size in sizes)))
    largest = max(points)
    return Cluster(
        name,
        "tabulated",
        gpus_per_node=gpus_per_node,
        nodes=-(-largest // gpus_per_node),
        tables=tuple(tables),
        source=source(path, note, gpu),
    )


def _nearest(sizes: Iterable[int]) -> Iterable[int]:
    """The size nearest to each power of two."""
    kept: dict[int, int] = {}
    for size in sizes:
        octave = round(math.log2(size))
        kept[octave] = min((size, kept.get(octave, size)), key=lambda one: abs(math.log2(one) - octave))
    return kept.values()


PIPEDREAM = (
    "alexnet", "densenet121", "gnmt", "gnmt_large", "inception_v3", "nasnetalarge", "nasnetamobile", "resnet101",
    "resnet18", "resnet50", "resnext101", "resnext50", "squeezenet1_0", "vgg16",
)  # fmt: skip
"""Models of layer_profiles/pipedream."""
BOTH = "nccl-tests all-reduce, the faster of out of place and in place at each size"


def aiconfigurator(name: str, system: str, nccl: str, gpus: int) -> Cluster:
    return measured(
        name,
        "comm_tables/aiconfigurator/nccl_all_reduce_half.csv",
        f"one node of {system.replace('_', ' ').upper()}, NCCL {nccl}, half precision; out of place, median of repeats",
        gpus,
        system.upper().replace("_", " ").removesuffix(" SERVER"),
        keep=lambda row: (row["system"], row["nccl"]) == (system, nccl),
        columns=("time_us",),
    )


def described(name: str, words: str, nodes: int | None, machines: str) -> Cluster:
    """A cluster of the NCCL model: what data sheets say, nothing measured."""
    cluster = load_cluster(f"nccl:{words}")
    return replace(
        cluster,
        name=name,
        nodes=nodes,
        source=Source(
            "NVIDIA's data sheets, in the bandwidths of NCCL 2.28.3's topo.h and tuning.cc (docs/reference/nccl.md)",
            f"{machines}; described as nccl:{words}, no collective measured",
            "facts only",
            words.partition("x")[0].upper(),
        ),
    )


def workloads() -> Iterator[Workload]:
    yield googlenet_k80()
    yield googlenet_k80_tensors()
    yield resnet50_v100()
    yield resnet50_v100_dgxs()
    for name in PIPEDREAM:
        yield pipedream(name)
    yield triosim("resnet50")
    yield triosim("vgg13")
    yield from reconstruct.reconstructed(runs.Published(rows, source, exact), resnet50_v100())


def clusters() -> Iterator[Cluster]:
    yield k80_ring()
    yield measured(
        "k80-10gbe-osu", "comm_tables/bcaffe/osu_allreduce_2_4_8.csv",
        "OSU all-reduce latency over MPI, host memory; one worker per node", 1, "K80",
        workers="n_nodes", columns=("time_us",),
    )  # fmt: skip
    yield k80_log()
    yield merge_rule("mg-wfbp-rule-10gbe", "10GbE")
    yield merge_rule("mg-wfbp-rule-56gib", "56GbIB")
    yield v100_published("v100-10gbe", "10GbE")
    yield v100_published("v100-56gib", "56GbIB")
    yield published_fits("v100-10gbe-fits", "10GbE")
    yield published_fits("v100-56gib-fits", "56GbIB")
    yield measured(
        "azure-a100-hdr", "comm_tables/echo-azure-nda100v4/nccl_all_reduce_2to128.csv",
        f"{BOTH}; the first row of the 64-GPU table, four times as slow as the second (warm-up), left out", 8,
        "A100 SXM",
        drop_warm_up=True,
    )  # fmt: skip
    yield aiconfigurator("a100-node", "a100_sxm", "2.27.3", 8)
    yield aiconfigurator("h100-node", "h100_sxm", "2.29.2", 8)
    yield aiconfigurator("b200-node", "b200_sxm", "2.29.2", 8)
    yield aiconfigurator("b300-node", "b300_sxm", "2.29.2", 8)
    yield aiconfigurator("gb200-node", "gb200", "2.29.2", 4)
    yield aiconfigurator("rtx-pro-6000-node", "rtx_pro_6000_server", "2.29.2", 8)
    yield measured(
        "h200-node", "comm_tables/azure/nd_allreduce_busbw.csv",
        "time from the printed in-place bus bandwidth, which has two decimals, so small sizes are coarse", 8, "H200",
        keep=lambda row: row["sku"] == "ND_H200_v5", columns=("time_us_derived",),
    )  # fmt: skip
    yield measured("aws-p4d-efa", "comm_tables/aws-efa/p4d_2nodes_2022.csv", BOTH, 8, "A100 SXM")
    yield measured("aws-g5-25g-pair", "comm_tables/aws-efa/g5_8xlarge_2nodes_25g.csv", BOTH, 1, "A10G")
    yield measured(
        "aws-10g-pair", "comm_tables/aws-hyperpod/2nodes_1gpu_each.csv", f"{BOTH}; small sizes are noisy", 1, "A10G"
    )
    yield measured("oci-a100-rdma", "comm_tables/oci/a100_2nodes.csv", BOTH, 8, "A100 SXM")
    yield measured("dgx-a100-hdr-2nodes", "comm_tables/deepops/dgxa100_2nodes_8xhdr.csv", BOTH, 8, "A100 SXM")
    yield measured("dgx-a100-4nodes", "comm_tables/deepops/dgxa100_4nodes.csv", BOTH, 8, "A100 SXM")
    yield measured(
        "dgx1-v100-roce", "comm_tables/deepops/dgx1_v100_2nodes_roce2x100g.csv",
        "nccl-tests all-reduce in place; small sizes are noisy", 8, "V100", columns=("inplace_time_us",),
    )  # fmt: skip
    yield measured(
        "gcp-a3-mega", "comm_tables/gcp-a3mega/h100_2nodes.csv", BOTH, 8, "H100 SXM",
    )  # fmt: skip
    yield measured(
        "a40-pairs", "comm_tables/vidur/a40_all_reduce_old.csv",
        "of each octave the size nearest to its power of two", 8, "A40", columns=("time_us",), octaves=True,
    )  # fmt: skip
    yield measured(
        "a100-pcie-pairs", "comm_tables/vidur/a100_pairwise_nvlink_all_reduce.csv",
        "median of 3; of each octave the size nearest to its power of two", 4, "A100 PCIe",
        columns=("time_us_median",), octaves=True,
    )  # fmt: skip
    yield measured(
        "rtx-6000d-nics", "comm_tables/issues/6kd_2nodes_ib_p2p_off.csv",
        f"{BOTH}; all copies go over the NICs, also those inside a node; rate of the NICs not stated", 8, "6KD",
    )  # fmt: skip
    yield described("nccl-v100-dgx1", "v100x8,50Gbps,ib", None, "DGX-1 of 8 V100, 4 EDR NICs of 100 Gb/s a node")
    yield described("nccl-a100-hdr", "a100x8,200Gbps,ib", None, "nodes of 8 A100 SXM, one 200 Gb/s HDR NIC per GPU")
    yield described("nccl-h100-node", "h100x8", 1, "one node of 8 H100 SXM with NVSwitch")
    yield described("nccl-h100-ndr", "h100x8,400Gbps,ib", None, "nodes of 8 H100 SXM, one 400 Gb/s NDR NIC per GPU")
    yield described("nccl-b200-node", "b200x8", 1, "one node of 8 B200 SXM with NVSwitch")
    yield described("nccl-gb200-rack", "gb200x72", 1, "one NVL72 rack of 72 GB200 on one NVSwitch fabric")


def main() -> None:
    if not (DATA / "sources.json").is_file():
        sys.exit("set OSFMODEL_DATA to the folder that holds the published figures (with sources.json)")
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    made: list[tuple[str, Iterator[Workload] | Iterator[Cluster]]] = [
        ("workloads", workloads()),
        ("clusters", clusters()),
    ]
    for folder, nouns in made:
        (output / folder).mkdir(parents=True, exist_ok=True)
        for noun in nouns:
            save(noun, output / folder / f"{noun.name}.json")
            print(f"{folder}/{noun.name}.json")
    published = runs.Published(rows, source, exact)
    (output / "measurements").mkdir(parents=True, exist_ok=True)
    for name, measured_runs in runs.SOURCES.items():
        save_measurements(name, list(measured_runs(published)), output / "measurements" / f"{name}.json")
        print(f"measurements/{name}.json")


if __name__ == "__main__":
    main()
