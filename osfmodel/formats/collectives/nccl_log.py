"""The runs in a log of nccl-tests: start and end, devices and rows of each; remarks on what went wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from osfmodel.formats.collectives import PROGRAM
from osfmodel.formats.source_text import LONGEST_QUOTE, Text

TAGS = re.compile(r"\[(?!0x)[^\s\[\]:]{1,120}\](?:<std\w{3,4}>)?:?")
"""A tag of mpirun, torchrun or kubectl: ``[1,0]<stdout>:``, ``[0]``, ``[rank0]:``, ``[pod/a/b]``; not a PCI bus."""
SENDER = re.compile(
    r"[ \t>]{0,40}(?:([\w.-]{1,100}(?::(?=\s)|[ \t]{1,20}\|))|(?:[^#\[]|\[[\d:,.TZ/ +-]{8,40}\]){0,80}?"
    rf"((?:{TAGS.pattern}[ \t]?){{1,8}}))"
)
"""The writer of a line, by its beginning: a rank or host before a colon or bar, else its tags, maybe after a time."""
COMMENT = re.compile(r"#[ \t]{0,40}(?=(?:size|Rank|nThread|Bitwise)\b|Avg bus|Out of bounds|Collective test|error:)")
FIGURE = r"\d{1,12}(?:\.\d{0,20})?(?:e[+-]?\d{1,3})?"
START = re.compile(r"(?:.*[\]:>|])?(\d{1,18}) (\d{1,18}) ([A-Za-z]\w{0,30})")
"""Size, count and type at the start of a row, with a prefix that touches them or none."""
TIMED = re.compile(rf"{FIGURE}|N/A|-?nan|inf")
WIDTHS = {"half": 2, "bfloat16": 2, "float": 4, "int32": 4, "uint32": 4, "double": 8, "int64": 8, "uint64": 8}
"""Bytes of an element by nccl-tests' names of types; 1 for others."""
BEGUN = re.compile(r"\d{1,18}[ \t]{1,40}\d{1,18}[ \t]{1,40}(?:u?int|half|float|double|bfloat|fp?8)")
"""The start of a row: size, count and type."""
HEADER = re.compile(r"#[ \t]+size[ \t]+count[ \t]+type[ \t]")
RANK = re.compile(
    r"^#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s)?.*\bon\s+(\S+)\s+device(?:\s+\d+\s+\[[0-9a-fx:.]+\]\s+(\S.*?)\s*$)?"
)
"""The number of a rank, its group, its host, and the name of its device."""
LARGEST = re.compile(r"^# nThread\b.*\bmaxBytes (\d{1,18})\b")
FAILED = re.compile(r"^#\s*(?:Out of bounds values|Bitwise mismatches)\s*:.*\bFAILED\b")
FAILURE = re.compile(r"\bTest (?:NCCL|CUDA|OS )?\s?failure\b", re.IGNORECASE)


@dataclass(slots=True)
class LoggedTest:
    """One test. ``line`` is where it begins; ``names`` are the columns of its table; ``devices`` names of its GPUs.

    ``lost`` are the lines of its table that cannot be told: cut, mixed with those of another rank, or contradictory.
    """

    line: int
    stated: str = ""
    mentioned: str = ""
    largest: int = 0
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    lost: list[tuple[int, str]] = field(default_factory=list)
    ended: bool = False

    def hosts(self) -> list[str]:
        """Hosts of the workers of one communicator: those of one group, if nccl-tests split them."""
        groups = [group for group, _ in self.ranks.values()]
        return [host for group, host in self.ranks.values() if group == groups[0]]

    def mend_hosts(self, text: Text) -> None:
        """Give ranks whose line is missing or names a host of its own between two of one host that host, and tell.

        Where more lines are missing than there are, nothing is mended.
        """
        if not self.ranks or max(self.ranks) >= 2 * len(self.ranks):
            return
        found = [self.ranks.get(rank) for rank in range(max(self.ranks) + 1)]
        often = Counter(self.ranks.values())
        for rank in range(1, len(found) - 1):
            own, before, after = found[rank], found[rank - 1], found[rank + 1]
            alone = own is None or often[own] == 1
            if alone and before is not None and before == after and often[before] > 2:
                said = "is missing" if own is None else f"names the host {own[1]!r}, which no other does"
                text.tell(
                    f"line {self.line}: the line of rank {rank} {said}: taken as on {before[1]!r}, like its neighbours"
                )
                found[rank] = before
        self.ranks = {rank: place for rank, place in enumerate(found) if place is not None}


@dataclass(slots=True)
class Log:
    """The runs found so far, the run that is being read, and the program last named on a command line."""

    text: Text
    runs: list[LoggedTest] = field(default_factory=list)
    mentioned: str = ""
    rows: int = 0
    failed: set[int] = field(default_factory=set)

    def fresh(self, line: int) -> LoggedTest:
        """The run whose preamble is being read; after a table it is a new one."""
        return self.begun(line) if not self.runs or self.runs[-1].names else self.runs[-1]

    def begun(self, line: int) -> LoggedTest:
        """Start a new run."""
        self.runs.append(LoggedTest(line, mentioned=self.mentioned))
        return self.runs[-1]


def runs_of(text: Text) -> list[LoggedTest]:
    """The runs with rows, in the order of the log; those of ranks that each printed a table are told apart.

    Raises DataError if no row can be told.
    """
    senders = {_sender(raw): Log(text) for _, raw in text.lines() if HEADER.search(TAGS.sub("", raw))}
    log = senders.get("") or next(iter(senders.values()), Log(text))
    if "" in senders:  # tags may begin below a header
        senders = {"": log}
    for number, raw in text.lines():
        log = senders.get(_sender(raw), log)
        line = _untagged(raw)
        if comment := COMMENT.search(line):
            _comment(log, number, line[comment.start() :])
        elif FAILURE.search(line):
            if len(log.runs) not in log.failed:  # every rank says it, and says whence it was called
                text.remark(number, raw, "the test failed")
            log.failed.add(len(log.runs))
        elif log.runs and log.runs[-1].names and not log.runs[-1].ended and _add_row(log, number, line):
            continue
        elif program := PROGRAM.search(line):
            for one in senders.values():
                one.mentioned = program[1]
    runs = sorted((run for one in senders.values() for run in one.runs), key=lambda run: run.line)
    lost = [line for run in runs for line in run.lost]
    if lost and not any(run.rows for run in runs):
        raise text.fault(*lost[0], "is not a row of the table, and no other line is")
    for run in runs:
        run.mend_hosts(text)
        _tell_how_it_ended(text, run)
    return [run for run in runs if run.rows]


def _written_by(line: str) -> re.Match[str] | None:
    """The beginning of a line that names its writer; None where a row begins before the first tag."""
    found = SENDER.match(line)
    return None if found is None or BEGUN.search(line[: found.start(2)] if found[2] else "") else found


def _sender(line: str) -> str:
    found = _written_by(line)
    return "" if found is None else found[1] or "".join(dict.fromkeys(TAGS.findall(found[2])))


def _untagged(line: str) -> str:
    """The line without tags of its writer, also within it, where mpirun flushed; as it is with those of others."""
    found = _written_by(line)
    start, rest = (line[: found.end()], line[found.end() :]) if found else ("", line)
    own, inside = set(TAGS.findall(start)), set(TAGS.findall(rest))
    return TAGS.sub("", rest) if inside <= own or (not own and len(inside) == 1) else line


def _comment(log: Log, number: int, line: str) -> None:
    """Read a line that begins with #."""
    if HEADER.match(line):
        _header(log, number, line)
    elif match := RANK.match(line):
        run = log.fresh(number)
        if int(match[1]) in run.ranks:
            run = log.begun(number)
        run.ranks[int(match[1])] = (match[2] or "", match[3])
        run.devices |= {match[4]} if match[4] else set()
    elif match := LARGEST.match(line):
        log.fresh(number).largest = int(match[1])
    elif "Avg bus bandwidth" in line and log.runs:
        log.runs[-1].ended = True
    elif FAILED.match(line):
        log.text.remark(number, line, "the results of the test are wrong")
    elif line.startswith("# error:") and line[8:].strip():
        log.text.remark(number, line, "the test ended with an error")
    elif program := PROGRAM.search(line):
        _named(log, number, line, program[1])


def _named(log: Log, number: int, line: str, program: str) -> None:
    if "test starting" in line:
        log.fresh(number).stated = program
    elif "test concluded" in line and log.runs:
        log.runs[-1].stated = program
    else:
        log.mentioned = program


def _header(log: Log, number: int, line: str) -> None:
    """Start a table; a second one below the same devices starts a run of its own."""
    if log.runs and log.runs[-1].names:
        before = log.runs[-1]
        run = log.begun(number)
        run.stated, run.ranks, run.largest = before.stated, before.ranks, before.largest
        run.devices = before.devices
    else:
        run = log.fresh(number)
    run.names = line.split()[1:]
    if "cputime" in run.names:
        raise log.text.fault(number, line, "has times of the CPU, not of the collective: run it without -C")


def _add_row(log: Log, number: int, line: str) -> bool:
    """Add a line to the table's rows, or to those that are lost; False if it is of something else."""
    run = log.runs[-1]
    fields = line.split()
    row = _row(run.names, fields[-len(run.names) - ("timestamp" in run.names) :])  # a date and a time of day
    figures = sum(TIMED.fullmatch(word) is not None for word in fields)
    if row:
        run.rows.append((number, row))
    elif BEGUN.search(line) or ("NCCL" not in line and figures >= max(3, len(fields) / 2)):
        run.lost.append((number, line[:LONGEST_QUOTE]))
    else:
        return False
    log.rows += 1
    log.text.limit(number, log.rows * len(run.names))
    return True


def _row(names: Sequence[str], fields: Sequence[str]) -> list[str]:
    """The last fields of a line if they are those of a row, whatever precedes them; else none."""
    start = START.fullmatch(" ".join(fields[:3]))
    measured = [word for name, word in zip(names, fields, strict=False) if name in ("time", "algbw", "busbw")]
    if start is None or not all(map(TIMED.fullmatch, measured)) or len(fields) != len(names) + ("timestamp" in names):
        return []
    unit = int(start[2]) * WIDTHS.get(start[3], 1)
    # a size whose first digits are on another line is no multiple of the count
    return [start[1], *fields[1:]] if int(start[1]) % max(1, unit) == 0 else []


def _tell_how_it_ended(text: Text, run: LoggedTest) -> None:
    """Remark that a test did not end: it has no closing line and did not reach the largest size."""
    if not run.rows:
        if run.ranks or run.names:
            text.tell(f"line {run.line}: a test began here and printed no rows{' that can be told' * bool(run.lost)}")
        return
    number, fields = run.rows[-1]
    if not run.ended and not (run.largest and fields[0].isdigit() and int(fields[0]) >= run.largest):
        reached = f"after {fields[0]} of {run.largest} bytes" if run.largest else f"after {fields[0]} bytes"
        text.tell(f"line {number}: the test was cut off {reached}: no '# Avg bus bandwidth' follows")
