"""Samples of each format, written from what is known of it, small and with its oddities; else the one of its docs."""

import re
from pathlib import Path

from tests.formats import chakra_traces, flight_dumps, inspector_logs, memory_snapshots, traces

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"
"""Files of Horovod 0.28.1 with gloo: two ranks on one host, six tensors, every 5 ms; its tuner, cut short."""
HOROVOD_FUSED, HOROVOD_UNFUSED, HOROVOD_AUTOTUNE = (
    (DATA / f"horovod-{name}").read_text(encoding="utf-8") for name in ("fused.json", "unfused.json", "autotune.csv")
)

NEW_TEXT = """\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 0 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid  20471 on     node-a device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid  20472 on     node-a device  1 [0x0f] NVIDIA A100-SXM4-40GB
#  Rank  2 Group  0 Pid  11320 on     node-b device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  3 Group  0 Pid  11321 on     node-b device  1 [0x0f] NVIDIA A100-SXM4-40GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     0.10    0.00    0.00      0     0.10    0.00    0.00      0
     1048576        262144     float     sum      -1    61.50   17.05   25.57      0    60.25   17.40   26.11      0
     2097152        524288     float     sum      -1    84.10   24.94   37.40      0    86.00   24.39   36.58    N/A
     4194304       1048576     float     sum      -1    130.4   32.16   48.25      0    129.9   32.29   48.43      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 37.0567
#
"""

OLD_TEXT = """\
[1,0]<stdout>:# nThread 1 nGpus 2 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
[1,0]<stdout>:#
[1,0]<stdout>:# Using devices
[1,0]<stdout>:#   Rank  0 Pid   6841 on   worker-0 device  0 [0x00] Tesla V100-SXM2-16GB
[1,0]<stdout>:#   Rank  1 Pid   6841 on   worker-0 device  1 [0x00] Tesla V100-SXM2-16GB
[1,0]<stdout>:#                                                     out-of-place                    in-place
[1,0]<stdout>:#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
[1,0]<stdout>:#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
[1,0]<stdout>:worker-0:6841:6841 [0] NCCL INFO Launch mode Group/CGMD
[1,1]<stderr>:worker-0:6841:6900 [1] NCCL INFO Channel 00/02 : 0 1
[1,0]<stdout>:        1024           256   float     sum    20.31    0.05    0.05  1e-07    19.88    0.05    0.05  1e-07
[1,0]<stdout>:6841:6900 [1] NCCL INFO comm 0x7f rank 1 nranks 2
[1,0]<stdout>:        2048           512   float     sum    21.07    0.10    0.10  1e-07    21.40    0.10    0.10  1e-07
[1,0]<stdout>:        4096          1024   float     sum    22.90    0.18    0.18  1e-07    22.11    0.19    0.19  1e-07
[1,0]<stdout>:# Avg bus bandwidth    : 0.11
"""

JSON_TEXT = """\
{"version": "2.17.6", "start_time": "2026-01-05 10:11:12", "args": ["all_reduce_perf", "-b", "1M"], "env": {},
 "nccl_version": "2.29.2",
 "config": {"nthreads": 1, "devices": [{"rank": 0, "host": "n1"}, {"rank": 1, "host": "n1"},
                                       {"rank": 2, "host": "n2"}, {"rank": 3, "host": "n2"}]},
 "results": [
  {"size": 1048576, "count": 262144, "type": "float", "redop": "sum", "root": -1,
   "out_of_place": {"time": 61.5, "alg_bw": 17.05, "bus_bw": 25.57, "nwrong": "0"},
   "in_place": {"time": 60.25, "alg_bw": 17.4, "bus_bw": 26.1, "nwrong": "nan"}},
  {"size": 2097152, "count": 524288, "type": "float", "redop": "sum", "root": -1,
   "out_of_place": {"time": 84.1, "alg_bw": 24.94, "bus_bw": 37.4, "nwrong": "0"},
   "in_place": {"time": "nan", "alg_bw": "nan", "bus_bw": "nan", "nwrong": "nan"}}
 ],
 "out_of_bounds": {"count": 0, "okay": "true"},
 "average_bus_bandwidth": {"bandwidth": 31.5, "okay": "unchecked"}}
"""

RCCL_LISTED = """\
[
{"numCycle":0, "name":"AllGather", "nodes":2, "ranks":16, "ranksPerNode":8, "gpusPerRank":1, "size":1048576, \
"type":"float", "redop":"none", "inPlace":0, "time":61.500000, "algBw":17.050016, "busBw":15.984390, "wrong":"0"},
{"numCycle":0, "name":"AllGather", "nodes":2, "ranks":16, "ranksPerNode":8, "gpusPerRank":1, "size":1048576, \
"type":"float", "redop":"none", "inPlace":1, "time":60.250000, "algBw":17.403751, "busBw":16.316017, "wrong":"N/A"},
{"numCycle":0, "name":"AllGather", "nodes":2, "ranks":16, "ranksPerNode":8, "gpusPerRank":1, "size":2097152, \
"type":"float", "redop":"none", "inPlace":0, "time":84.100000, "algBw":24.936409, "busBw":23.377883, "wrong":"0"},
{"numCycle":0, "name":"AllGather", "nodes":2, "ranks":16, "ranksPerNode":8, "gpusPerRank":1, "size":4194304, \
"type":"float", "redop":"none", "inPlace":0, "time":129.900000, "algBw":32.288714, "busBw":30.270670, "wrong":"0"}
]
"""

RCCL_SPACED = """\
name, gpus, size, type, redop, inPlace, time, algBw, busBw, #wrong
"ReduceScatter", 4, 1024, "float", "sum", 0, 19.034, 0.0537984, 0.0403488, "0"
"ReduceScatter", 4, 1024, "float", "sum", 1, 19.5, 0.0525128, 0.0393846, "0"
"ReduceScatter", 4, 2097152, "float", "sum", 0, 88.905, 23.588685, 17.691514, "0"
"""

OSU_TEXT = """\
# OSU MPI Allreduce Latency Test v5.4.0
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                      31.92             30.10             33.70        1000
8192                   67.49             66.00             70.20        1000
1048576              1905.11           1890.00           1990.00         100
"""

TABLE_CSV = """\
n_gpus,n_nodes,bytes,dtype,time_us,algbw_GBps,inplace_time_us
8,1,1024,float,20.0,0.05,19.0
8,1,2048,float,22.0,0.09,23.0
16,2,1024,float,40.0,0.03,41.0
16,2,2048,float,44.0,0.05,43.0
"""

GROUPED_CSV = """\
device,gpus_per_node,n_gpus,bytes,time_us
A,4,4,1024,10
A,4,4,2048,12
A,1,4,1024,30
A,1,4,2048,36
B,4,4,1024,8
B,4,4,2048,9
B,4,4,2048,11
"""

FITS_CSV = """\
source,network,n_gpus,alpha_s,beta_s_per_byte
paper,10GbE,8,5.2e-4,8.5e-10
paper,10GbE,16,9.0e-4,7.4e-10
paper,56Gb,16,2.3e-4,4.0e-10
"""

LAYERS_CSV = """\
name,bytes,fwd_ms,bwd_ms,dtype
conv,37632,0.5,1.5,float32
relu,0,0.1,0.2,float32
fc,8192000,0.2,0.4,bfloat16
"""

LAYERS_JSON = """\
[{"name": "conv", "bytes": 37632, "fwd_ms": 0.5, "bwd_ms": 1.5},
 {"name": "relu", "bytes": 0, "fwd_ms": 0.1, "bwd_ms": 0.2, "dtype": null},
 {"name": "fc", "bytes": 8192000, "fwd_ms": 0.2, "bwd_ms": 0.4, "dtype": "bfloat16"}]
"""

OWN_WORKLOAD = """\
{"schema_version": 1, "name": "two", "layers": [
  {"name": "a", "forward_time_s": 0.1, "backward_time_s": 0.2, "gradient_bytes": 400},
  {"name": "b", "forward_time_s": 0.1, "backward_time_s": 0.2, "gradient_bytes": 800}]}
"""

OWN_CLUSTER = """\
{"schema_version": 1, "name": "wires", "kind": "cluster", "cost_model": "ring",
 "between_nodes": {"latency_s": 1e-5, "seconds_per_byte": 1e-9}}
"""

GRAPH_TEXT = """\
node1 -- Input0 -- forward_compute_time=635.902, backward_compute_time=0.000, activation_size=154.0, parameter_size=0.000
node2 -- Conv2d(3, 64, kernel_size=(11, 11)) -- forward_compute_time=22.316, backward_compute_time=6.405, activation_size=198246400.0, parameter_size=93184.000
node3 -- LSTM(2048, 1024) -- forward_compute_time=3.190, backward_compute_time=5.348, activation_size=[6291456.0; 131072.0; 131072.0], parameter_size=50364416.000
\tnode1 -- node2
\tnode2 -- node3
"""  # noqa: E501

DDP_JSON = """\
{"rebuilt_bucket_sizes": "4000, 12000", "has_rebuilt_buckets": 1, "bucket_cap_bytes": 26214400,
 "avg_forward_compute_time": 4000000, "avg_backward_compute_time": 8000000, "num_parameter_tensors": 4}
"""

SECTION = re.compile(r"^## (\S+)\n(?:(?!^## ).)*?^```\w+ title=\"[^\"]+\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A format in docs/reference/formats.md, and the file that it shows."""
SHOWN = {name: [file] for name, file in SECTION.findall((ROOT / "docs/reference/formats.md").read_text("utf-8"))}
SAMPLES = SHOWN | {
    "nccl-tests": [NEW_TEXT, OLD_TEXT],
    "nccl-tests-json": [JSON_TEXT],
    "rccl-tests": [
        RCCL_LISTED,
        RCCL_SPACED,
        *((DATA / f"rccl-tests{end}").read_text("utf-8") for end in ("-lines.json", ".csv")),
    ],
    "nccl-inspector": [
        inspector_logs.text(inspector_logs.Logged(version="v4.0", repeats=1)),
        inspector_logs.text(inspector_logs.Logged(version="v4.3", kinds=("AllGather", "ReduceScatter"), nodes=2)),
    ],
    "flight-recorder": [
        flight_dumps.text(flight_dumps.Dumped(repeats=1)),
        flight_dumps.text(flight_dumps.Dumped(kinds=("all_gather", "reduce_scatter"), repeats=1, hung=1)),
    ],
    "osu": [OSU_TEXT],
    "csv-table": [TABLE_CSV, GROUPED_CSV, FITS_CSV],
    "csv-layers": [LAYERS_CSV],
    "json-layers": [LAYERS_JSON],
    "osfmodel": [OWN_WORKLOAD, OWN_CLUSTER],
    "pipedream": [GRAPH_TEXT],
    "ddp-logging": [DDP_JSON],
    "horovod-timeline": [HOROVOD_FUSED, HOROVOD_UNFUSED],
    "horovod-autotune": [HOROVOD_AUTOTUNE],
    "nsight-systems": ["SQLite format 3\0"],
    "chakra": [
        chakra_traces.start(chakra_traces.Traced()).decode("utf-8", "replace"),
        "\x14\n\x121.0.2-chakra.0.0.4",
        "\x07\n\x050.0.4",
    ],
    "memory-snapshot": [memory_snapshots.pickled(memory_snapshots.trained()).decode("utf-8", "replace")],
    "kineto": [traces.text(traces.Job(late=(0, 0), clocks=(0, 0), steps=2))],
}

BINARY = ("nsight-systems", "chakra", "memory-snapshot")
"""Formats that no text is of: their samples here are a beginning only."""

FACTORS = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0, "alltoall": 1.0}
OPERATIONS = {"all_gather": "none", "alltoall": "none", "broadcast": "none"}


def log(program="all_reduce", hosts=1, gpus=4, *, named=True, scale=1.0, ended=True, wrong=0):
    """One run of nccl-tests as it prints it: 1, 2 and 4 MiB; its bandwidths are those of the collective."""
    workers = hosts * gpus
    part = FACTORS[program] * (workers - 1) / workers if program in FACTORS else 1.0
    lines = [f"# Collective test starting: {program}_perf"] if named else []
    lines += ["# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20"]
    lines += ["#", "# Using devices"]
    for rank in range(workers):
        place = f"node-{rank // gpus} device {rank % gpus:2d} [0x07] NVIDIA H100"
        lines += [f"#  Rank {rank:2d} Group  0 Pid {rank + 700:6d} on {place}"]
    columns = "time   algbw   busbw #wrong"
    lines += [f"#       size         count      type   redop    root     {columns}     {columns}"]
    root = 0 if program in ("reduce", "broadcast") else -1
    for size in (2**20, 2**21, 2**22) if ended else (2**20, 2**21):
        time = scale * (20 + size / 2e4)
        side = f"{time:.2f} {size / time / 1e3:.2f} {part * size / time / 1e3:.2f} {wrong if size == 2**21 else 0}"
        lines += [f"  {size}  {size // 4}  float  {OPERATIONS.get(program, 'sum')}  {root}  {side}  {side}"]
    if ended:
        lines += [
            "# Out of bounds values : " + (f"{wrong} FAILED" if wrong else "0 OK"),
            "# Avg bus bandwidth    : 9.1",
        ]
    return "\n".join(lines) + "\n"
