"""Files that stand for the reader's own, under the names in the docs, for the commands shown on such files."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path

import osfmodel as osf
from tests.conftest import ROOT
from tests.formats import memory_snapshots, samples, traces

WORKLOADS = ("my-model.json", "model.json", "profile.json")
CLUSTERS = ("my-cluster.json", "cluster.json", "c.json", "my-wires.json", "horovod-wires.json")
MEASURED = (
    "all-hosts.json", "hosts-0-1.json", "hosts-2-3.json", "hosts-a-b.json", "hosts-c-d.json", "this-month.json",
    "last-month.json",
)  # fmt: skip
LOGS = {"all.log": 4, "a-b.log": 2, "c-d.log": 2}
"""Logs of nccl-tests, and their hosts of 8 GPUs."""
RUNS = ("run.json", "runs.json", "r.json")
TIMELINES = ("timeline.json", "alone.json", "all.json")
STEP_TIMES = ("before.csv", "after.csv", "before-2.csv", "after-2.csv")
JOB = traces.Job(late=(0, 0), clocks=(0, 0), steps=10)
PREDICTED = {"workers": 8, "strategy": "fsdp2", "step_time_s": 0.5}
SIZES = [4 * sum(bucket) for bucket in JOB.buckets]


def place(folder: Path) -> None:
    """Write all of them to ``folder``."""
    for name in WORKLOADS:
        osf.save(osf.load_workload("resnet50-memory"), folder / name)
    for name in CLUSTERS:
        osf.save(osf.load_cluster("v100-10gbe"), folder / name)
    for name in MEASURED:
        osf.save(
            osf.load_cluster("emulated-2x1gbit" if name.startswith("hosts") else "emulated-4x1gbit"), folder / name
        )
    for name, content in _texts().items():
        (folder / name).write_text(content, encoding="utf-8")
    (folder / "snapshot.pickle").write_bytes(memory_snapshots.pickled(memory_snapshots.trained()))
    shutil.copy(ROOT / "tests/formats/data/jobs/titan-8b.toml", folder / "train.toml")
    (folder / "traces").mkdir()
    with tarfile.open(folder / "traces.tar.gz", "w:gz") as archive:
        for rank in (0, 1):
            content = traces.text(JOB, rank).encode()
            for name in (f"rank{rank}.json.gz", f"rank{rank}.pt.trace.json.gz"):
                (folder / name).write_bytes(gzip.compress(content))
            (folder / "traces" / f"rank{rank}.json").write_bytes(content)
            entry = tarfile.TarInfo(f"traces/rank{rank}.json")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def _texts() -> dict[str, str]:
    log = {"rebuilt_bucket_sizes": ", ".join(map(str, SIZES)), "has_rebuilt_buckets": 1, "bucket_cap_bytes": 1200}
    return {
        **{f"rank{rank}.json": traces.text(JOB, rank) for rank in (0, 1)},
        **dict.fromkeys(TIMELINES, samples.HOROVOD_FUSED),
        **dict.fromkeys(RUNS, _runs()),
        **dict.fromkeys(STEP_TIMES, "step_time_ms\n100.1\n100.3\n100.2\n"),
        "nccl-tests.log": samples.NEW_TEXT,
        **{name: samples.log(hosts=hosts, gpus=8) for name, hosts in LOGS.items()},
        **{f"n{8 * hosts}.log": samples.log(hosts=hosts, gpus=8) for hosts in (1, 2)},
        "ddp.json": json.dumps(log),
        "train.log": "elapsed time per iteration (ms): 510.0 |\n" * 12,
        "predicted.json": json.dumps({"schema_version": 1, "points": [PREDICTED]}),
        "my-gpu.json": (ROOT / "profiles/kernels/h100.json").read_text(encoding="utf-8"),
        "grid.yaml": "{workloads: resnet50-v100, clusters: v100-10gbe, workers: [8, 16], plans: [ddp, wfbp]}\n",
    }


def _runs() -> str:
    """A few runs that were measured."""
    document = json.loads((ROOT / "profiles/measurements/emulated-ddp.json").read_text(encoding="utf-8"))
    return json.dumps({**document, "name": "runs", "runs": document["runs"][:12]})
