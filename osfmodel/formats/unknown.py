"""Explain a file of an unknown format: what it looks like, and what it would need."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from osfmodel.formats import layers
from osfmodel.formats.collectives import tables
from osfmodel.formats.collectives.clusters import PROGRAM
from osfmodel.formats.source_text import columns_of, pick

OSU = re.compile(r"^#\s*OSU\b[^\r\n]{0,80}", re.MULTILINE)
NCCL = re.compile(r"NCCL INFO|NCCL WARN|Test NCCL failure|# nThread |# Rank |# Using devices")
NEEDED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "csv-table": {
        "a size": tables.SIZES,
        "a time": tuple(tables.TIMES),
    },
    "csv-layers": {
        "a name": layers.NAMES,
        "a size": layers.BYTES,
        "a forward time": layers.FORWARD[:3],
        "a backward time": layers.BACKWARD[:3],
    },
}
MOST_COLUMNS = 12
FOREIGN: Sequence[tuple[re.Pattern[bytes], str]] = (
    (
        re.compile(rb'"schema"\s*:\s*"[^"]{0,40}chakra'),
        "is a Chakra execution trace in JSON, which is not read, as PyTorch's has no times: give torch.profiler's "
        "trace of the run, or the protobuf that Chakra's converter made of both",
    ),
    (
        re.compile(rb"/device:(?:TPU|GPU|CPU)|/host:(?:CPU|metadata)"),
        "is a profile of XLA, as JAX and torch_xla write it, which is not read: read are traces of torch.profiler and "
        "exports of Nsight Systems",
    ),
)
"""Kinds of files that are known and not read, by what is in their beginning, with the reason and what to give."""
ZIP = b"PK\x03\x04"


def unlike(content: bytes) -> str:
    """The reason why this content, unpacked, is not text; "" if it may be."""
    if content.startswith(ZIP):
        return "is a zip archive, which is not read: unpack it, and give the files in it, a folder or a tar of them"
    if not content.strip(b"\0"):
        return "holds nothing but zeros, as a tar archive of nothing does" if content else "is empty"
    return ""


def foreign(start: bytes) -> str:
    """The reason why a file that begins so is not read, if its kind is known; else ""."""
    return next((said for sign, said in FOREIGN if sign.search(start)), "")


def explained(head: str, known: Sequence[str]) -> str:
    """A clause on the file's likely kind, and on what is missing or should be done."""
    start = head.strip()
    if not start:
        return "is empty"
    if said := foreign(head.encode("utf-8", "replace")):
        return said
    if osu := OSU.search(head):
        title = osu[0].lstrip("# ").strip()
        return (
            f"is {title!r}, not a collective that is read: osu_allreduce, osu_reduce_scatter or osu_allgather is needed"
        )
    if NCCL.search(head) or PROGRAM.search(head):
        return (
            "is a log of nccl-tests or NCCL without the table of results (the line '#  size  count  type ...'): "
            "give the output of a test that ended"
        )
    columns = [name for name in columns_of(start) if name]
    if len(columns) > 1 and start[0] not in "{[<" and start.isprintable() | ("\n" in start):
        shown = ", ".join(columns[:MOST_COLUMNS])[:200] + (" ..." if len(columns) > MOST_COLUMNS else "")
        return f"has the columns {shown}: {'; '.join(_missing(columns, form) for form in NEEDED)}"
    return f"has no format that osfmodel reads ({', '.join(known)}); it begins {start[:60]!r}"


def _missing(columns: Sequence[str], form: str) -> str:
    present = dict.fromkeys(columns)
    missing = [
        f"{what} ({' or '.join(names[:3])})" for what, names in NEEDED[form].items() if pick(present, *names) is None
    ]
    return f"{form} needs {' and '.join(missing)}"
