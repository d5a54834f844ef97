"""The text of nccl-tests: old and new column layouts, interleaved log lines, several runs, any prefix of a line.

Lines may be indented, quoted on a page, or tagged by whoever collected them. Rows that cannot be told are left out, in
one counted note.
"""

from __future__ import annotations

import re

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import DataError
from osfmodel.formats.collectives.measured_runs import cluster_of_runs
from osfmodel.formats.collectives.nccl_log import TAGS, runs_of
from osfmodel.formats.source_text import Hints, Text

TABLE = re.compile(r"(?:\A|[\r\n])[^\r\n\"{]{0,200}?#[ \t]+size[ \t]+count[ \t]+type[ \t]")


def sniff(head: str) -> bool:
    """Whether a comment line, after any prefix, names size, count and type."""
    return TABLE.search(TAGS.sub("", head)) is not None


def read(text: Text, hints: Hints) -> list[Cluster]:
    """One cluster with a table per run. Raises DataError for a table of another unit, and for runs that differ."""
    runs = runs_of(text)
    if not runs:
        raise DataError("has the header of nccl-tests but no rows")
    return [cluster_of_runs(text, hints, runs, "nccl-tests")]
