"""Files to damage, and ways to damage them: bytes, lines, numbers, texts and fields of JSON, packed or not."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from osfmodel.formats import format_of
from tests.formats import chakra_traces, flight_dumps, nsight_reports, samples, traces

ROOT = Path(__file__).resolve().parents[2]  # not of conftest, which loads pytest and hypothesis
LARGEST = 30_000
"""Bytes of a file before it is damaged; longer ones are cut to a head that is still valid."""
MOST_RUNS = 2
STORED = ROOT / "tests/formats/data"
PUBLISHED = ("comm_tables/**/*.csv", "layer_profiles/**/*.csv")
"""Files of the folder of published figures, of which those are taken that a format knows."""
PLAN = """{"schema_version": 1, "workload": "mine", "channels": 2, "buckets": [
 {"blocks": [{"layer": "c", "bytes": 400, "offset": 0}]},
 {"blocks": [{"layer": "b", "bytes": 100, "offset": 0}], "release_time_s": 0.5},
 {"blocks": [{"layer": "b", "bytes": 100, "offset": 100}, {"layer": "a", "bytes": 400, "offset": 0}]}]}"""
WORKLOAD = """{"schema_version": 1, "kind": "workload", "name": "mine", "batch_size": 8, "update_time_s": 0.01,
 "layers": [
  {"name": "a", "forward_time_s": 0.01, "backward_time_s": 0.03, "gradient_bytes": 400, "dtype": "float32",
   "activation_bytes": 64, "peak_bytes": 2048, "steady_bytes": 0},
  {"name": "b", "forward_time_s": 0.01, "backward_time_s": 0.02, "gradient_bytes": 200,
   "activation_bytes": 32, "peak_bytes": 1024, "steady_bytes": 16},
  {"name": "c", "forward_time_s": 0.02, "backward_time_s": 0.02, "gradient_bytes": 400, "activation_bytes": 0,
   "peak_bytes": 512}],
 "source": {"origin": "made up", "conditions": "none", "licence": "facts"}}"""
RUNS = """{"schema_version": 1, "kind": "measurements", "name": "runs", "warm_ups": 3, "runs": [
 {"workload": "workload.json", "cluster": "cluster.json", "plan": "plan.json", "workers": 4, "iteration_time_s": [0.11]},
 {"workload": "workload.json", "cluster": "ring:50us,10Gbps", "plan": "ddp", "workers": 4, "deviation_s": 0.01,
  "iteration_time_s": [0.1, 0.12, 0.11], "conditions": {"batch_size": "8", "sent": "1 channel: 0-1 2"}}]}"""  # noqa: E501
CLUSTERS = ("v100-10gbe", "nccl-a100-hdr", "emulated-4x1gbit", "emulated-horovod-4x1gbit", "v100-56gib-fits")
WORKLOADS = ("alexnet-pipedream", "resnet50-memory", "gpt2-cpu", "googlenet-k80-tensors")
MEASURED = ("bcaffe", "emulated-horovod")
CHAKRA = (
    chakra_traces.Traced(repeats=1),
    chakra_traces.Traced(kinds=("AllGather", "ReduceScatter", "Broadcast"), repeats=1, computing=1),
)
RECORDED = ("healthy-0", "healthy-1", "find-unused-0", "tiny-buckets-0")


class Sample(NamedTuple):
    """A good file; ``kind`` is a format, or a kind of our own files."""

    kind: str
    name: str
    content: bytes


def all_samples(published: Path | None = None) -> list[Sample]:
    """Samples of every format and of our own files; also of the folder of published figures if it is given."""
    found = [
        Sample(form, f"{form}-{number}", text.encode())
        for form, texts in samples.SAMPLES.items()
        if form not in samples.BINARY
        for number, text in enumerate(texts)
    ]
    found.append(Sample("nsight-systems", "report", report()))
    found += [Sample("chakra", f"trace-{place}", chakra_traces.content(job)) for place, job in enumerate(CHAKRA)]
    found += [Sample("kineto", name, headed(STORED / f"explained/{name}.json.gz")) for name in RECORDED]
    found += [Sample("kineto", f"made-{number}", text.encode()) for number, text in enumerate(made())]
    found += [Sample("flight-recorder", "pickle", flight_dumps.pickled(flight_dumps.Dumped(repeats=2)))]
    found += own()
    if published is not None:
        paths = sorted({path for pattern in PUBLISHED for path in published.glob(pattern)})
        found += [Sample("csv", path.name, headed(path)) for path in paths if format_of(path) is not None]
        traced = sorted((published / "traces" / "kineto").glob("*.json.gz"))
        found += [Sample("kineto", path.name, headed(path)) for path in traced]
    return found


def made() -> list[str]:
    """Traces of jobs that never ran."""
    jobs = (
        traces.Job(steps=2, sizes="host", metric=40),
        traces.Job(steps=1, sizes="dims", annotated=False),
        traces.Job(steps=2, sizes="nowhere", shapes=False, micro_batches=2),
        traces.Job(steps=2, late=(0, 30), clocks=(0, 500), sequence=True),
    )
    return [traces.text(job, job.ranks - 1) for job in jobs]


def report() -> bytes:
    """An SQLite export of Nsight Systems."""
    with tempfile.TemporaryDirectory() as folder:
        return nsight_reports.write(
            Path(folder) / "a.sqlite", traces.Job(late=(0, 30), clocks=(0, 0)), (0, 1)
        ).read_bytes()


def own() -> list[Sample]:
    """Our own files."""
    found = [Sample("workload", "mine", WORKLOAD.encode()), Sample("plan", "mine", PLAN.encode())]
    found += [Sample("cluster", "wires", samples.OWN_CLUSTER.encode()), Sample("measurements", "runs", RUNS.encode())]
    for kind, names in (("workload", WORKLOADS), ("cluster", CLUSTERS), ("measurements", MEASURED)):
        folder = ROOT / "profiles" / (kind if kind == "measurements" else f"{kind}s")
        found += [Sample(kind, name, headed(folder / f"{name}.json")) for name in names]
    return [*found, Sample("bands", "bands", (ROOT / "profiles/bands.json").read_bytes())]


def headed(path: Path) -> bytes:
    """A file unpacked, or a head of it that is as valid: of CSV lines, of JSON the first of its longest list.

    Of a trace these are the events from the end of its first step on.
    """
    content = path.read_bytes()
    content = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    if not content.lstrip().startswith(b"{"):
        return content if len(content) <= LARGEST else content[: content.rindex(b"\n", 0, LARGEST) + 1]
    document = json.loads(content.decode(errors="replace"), strict=False)
    if "runs" in document:
        return json.dumps(document | {"runs": document["runs"][:MOST_RUNS]}).encode()
    if len(content) <= LARGEST:
        return content
    field = max(document, key=lambda name: len(document[name]) if isinstance(document[name], list) else 0)
    rows = document[field]
    if field == "traceEvents":
        rows = sorted((row for row in rows if "ts" in row), key=lambda row: float(row["ts"]))
        ends = [place for place, row in enumerate(rows) if str(row.get("name")).startswith("Optimizer.step")]
        rows = rows[ends[0] :] if ends else rows
    kept = len(document[field]) * LARGEST // len(content)
    if field == "layers":
        document.pop("segments", None)  # whose layers may be cut off
    return json.dumps(document | {field: rows[:kept]}).encode()


VALUES = [
    b"0", b"-1", b"1", b"7", b"2.5", b"1e308", b"-1e308", b"1e-320", b"5e-324", b"1e15", b"1e-9", b"9" * 30,
    b"9007199254740993", b"4294967296", b"1000000", b"18446744073709551616", b"1" + b"0" * 400, b"null", b"true",
    b"[]", b"{}", b'""', b'"x"', b'"7"', b'"a\xc3"', b'"\\u0000"', b'"\x1b[2J"', b'"\\n"', b'"\\u2028\\u202e"',
    b'"' + b"x" * 3000 + b'"',
]  # fmt: skip
"""Values of JSON in the place of others."""
RAW = [
    *VALUES, *VALUES, b"nan", b"NaN", b"Infinity", b"-inf", b"-0.0", b"1e400", b"-9223372036854775809",
    b"1" + b"0" * 5000, b"0.1e-9999", b"false", b"[null]", b'[["a"]]', b'{"a": 1}', b'"nan"', b'"\xff\xfe"',
    b'"\xed\xa0\x80"', b'"\\ud800"', b'"\x00"', b'"\\u001b[31m"', b'"' + b"x" * 70_000 + b'"',
    b'"' + b"\\u00e9" * 3000 + b'"', b"[" * 600 + b"]" * 600, b"[" * 100_000, b'{"a":' * 2000 + b"1" + b"}" * 2000,
    b"[" + b"0," * 5000 + b"0]",
]  # fmt: skip
"""The same, and what is none."""
PIECES = [
    b"", b"\x00", b"\xff", b"\xc3", b"\r", b"\n", b"\n\n", b",", b";", b"\t", b'"', b"'", b"\\", b"{", b"}", b"[",
    b"]", b":", b"#", b"-", b".", b"e", b"\xef\xbb\xbf", "é".encode(), "٣".encode(), "²".encode(), "\u2028".encode(),
    "\u202e".encode(), b"\x1b[2J", b"\x85", b"\x1c", b" " * 500, b"9" * 400, b"N/A", b"nan", b"inf", b"1e999", b"1_0",
    b"0x10", b"../", b"\x1f\x8b",
]  # fmt: skip
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
TEXT = re.compile(rb'"[^"\\]{0,200}"')
HOLE = re.compile(rb'"@raw(\d+)"')


def _spot(content: bytes, random: Random) -> int:
    return random.randrange(len(content) + 1)


def _flip(content: bytes, random: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 8))):
        if changed:
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _insert(content: bytes, random: Random) -> bytes:
    place = _spot(content, random)
    piece = random.choice(PIECES) if random.random() < 0.7 else random.randbytes(random.randrange(1, 9))
    return content[:place] + piece + content[place:]


def _delete(content: bytes, random: Random) -> bytes:
    place = _spot(content, random)
    return content[:place] + content[place + random.choice((1, 1, 2, 10, 300)) :]


def _truncate(content: bytes, random: Random) -> bytes:
    return content[: _spot(content, random)] if random.random() < 0.8 else content[: random.randrange(20)]


def _lines(content: bytes, random: Random) -> bytes:
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    how = random.randrange(4)
    if how == 0:
        lines.insert(other, lines[one])
    elif how == 1:
        del lines[one]
    elif how == 2:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        lines[one] = lines[one] * random.choice((2, 50))
    return b"".join(lines)


def _replaced(pattern: re.Pattern[bytes], content: bytes, random: Random) -> bytes:
    """Replace a random value behind a random place."""
    for _ in range(random.choice((1, 1, 1, 3))):
        found = pattern.search(content, _spot(content, random)) or pattern.search(content)
        if found is not None:
            raw = random.choice(RAW)
            raw = raw if content.lstrip()[:1] in b"{[" else raw.strip(b'"')
            content = content[: found.start()] + raw + content[found.end() :]
    return content


def _number(content: bytes, random: Random) -> bytes:
    return _replaced(NUMBER, content, random)


def _text(content: bytes, random: Random) -> bytes:
    return _replaced(TEXT, content, random)


def _fields(content: bytes, random: Random) -> bytes:
    """JSON with fields removed, repeated, swapped, misspelt, of another type or in another place."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return _number(content, random)
    for _ in range(random.choice((1, 1, 2, 4))):
        document = _changed(document, random)
    text = json.dumps(document).replace('"@twice', '"').encode()
    return HOLE.sub(lambda hole: RAW[int(hole[1])], text)


def _changed(node: Any, random: Random) -> Any:
    """The node with a change in a random place."""
    if isinstance(node, (dict, list)) and node and random.random() < 0.85:
        return _inside(node, random)
    how = random.randrange(4)
    if how == 0 and isinstance(node, list):
        return [*node, *node]
    if how == 1:
        return [node]
    return f"@raw{random.randrange(len(RAW))}"


def _inside(node: Any, random: Random) -> Any:
    copy = dict(node) if isinstance(node, dict) else list(node)
    keys = list(copy) if isinstance(copy, dict) else range(len(copy))
    key, other = random.choice(keys), random.choice(keys)
    how = random.random()
    if how < 0.7:
        copy[key] = _changed(copy[key], random)
    elif how < 0.78:
        del copy[key]
    elif how < 0.86:
        copy[key], copy[other] = copy[other], copy[key]
    elif isinstance(copy, list):
        copy.insert(random.randrange(len(copy) + 1), copy[key])
    else:
        name = random.choice(
            (key[:-1], key + "s", key.upper(), f"@twice{key}", random.choice(PIECES).decode("latin-1"))
        )
        copy[name] = copy[key] if random.random() < 0.5 else _changed(copy[key], random)
    return copy


DAMAGE: Mapping[str, Callable[[bytes, Random], bytes]] = {
    "bits": _flip,
    "insert": _insert,
    "delete": _delete,
    "cut": _truncate,
    "lines": _lines,
    "number": _number,
    "text": _text,
    "fields": _fields,
}


def damaged(content: bytes, random: Random) -> bytes:
    """``content`` with one to four damages; sometimes none, and sometimes it is empty."""
    if random.random() < 0.005:
        return random.choice((b"", b"\n", b"\0" * 600, b"{}", b"[]", b"null", random.randbytes(300)))
    names = list(DAMAGE) + (["fields"] * 4 if content.lstrip()[:1] in (b"{", b"[") else [])
    for _ in range(random.choice((0, 1, 1, 1, 1, 1, 2, 2, 3, 4)) or (random.random() < 0.9)):
        content = DAMAGE[random.choice(names)](content, random)
    return content


def battered(content: bytes, random: Random) -> bytes:
    """The bytes of an archive with one or two damages."""
    for _ in range(random.choice((1, 1, 2))):
        content = random.choice((_flip, _insert, _delete, _truncate))(content, random)
    return content


def gzipped(content: bytes) -> bytes:
    """The content packed by gzip."""
    return gzip.compress(content, 1, mtime=0)


def tarred(members: Mapping[str, bytes]) -> bytes:
    """The members packed by tar."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def zipped(members: Mapping[str, bytes]) -> bytes:
    """The members packed by zip."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return packed.getvalue()


@contextmanager
def memory() -> Iterator[list[int]]:
    """The most bytes that Python holds at once inside, in a list once it is left."""
    found: list[int] = []
    tracemalloc.start()
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
