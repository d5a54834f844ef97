"""The runs in a log of nccl-tests: start and end, devices and rows of each; remarks on what went wrong."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from osfmodel.formats.collectives.naming import PROGRAM
from osfmodel.formats.source_text import Text

BEFORE = r"[ \t>]{0,40}(?:(?:\[\d{1,9},\d{1,9}\]<std(?:out|err)>|\d{1,6}):)?[ \t]{0,40}"
"""Pattern of what precedes a line: an indentation or a quote on a page, and the rank, as mpirun or srun writes it."""
PREFIX = re.compile(f"^{BEFORE}")
HEADER = re.compile(r"^#[ \t]+size[ \t]+count[ \t]+type[ \t]")
RANK = re.compile(
    r"^#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s)?.*\bon\s+(\S+)\s+device(?:\s+\d+\s+\[[0-9a-fx:.]+\]\s+(\S.*?)\s*$)?"
)
"""The number of a rank, its group, its host, and the name of its device."""
LARGEST = re.compile(r"^# nThread\b.*\bmaxBytes (\d{1,18})\b")
FAILED = re.compile(r"^#\s*(?:Out of bounds values|Bitwise mismatches)\s*:.*\bFAILED\b")
FAILURE = re.compile(r"\bTest (?:NCCL|CUDA|OS )?\s?failure\b", re.IGNORECASE)


@dataclass(slots=True)
class LoggedTest:
    """One test. ``line`` is where it begins; ``names`` are the columns of its table; ``devices`` names of its GPUs."""

    line: int
    stated: str = ""
    mentioned: str = ""
    largest: int = 0
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
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
    """The runs with rows, in the order of the log. Raises DataError for a row that is cut or garbled."""
    log = Log(text)
    for number, raw in text.lines():
        line = PREFIX.sub("", raw)
        if line.startswith("#"):
            _comment(log, number, line)
        elif FAILURE.search(line):
            if len(log.runs) not in log.failed:  # every rank says it, and says whence it was called
                text.remark(number, line, "the test failed")
            log.failed.add(len(log.runs))
        elif log.runs and _is_row(log.runs[-1], line):
            _add_row(log, number, line)
        elif program := PROGRAM.search(line):
            log.mentioned = program[1]
    for run in log.runs:
        run.mend_hosts(text)
        _tell_how_it_ended(text, run)
    return [run for run in log.runs if run.rows]


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


def _is_row(run: LoggedTest, line: str) -> bool:
    """Whether a line is a row of the table: it begins with a digit and is not a sentence ("2 processes killed")."""
    if not run.names or run.ended or not line.lstrip()[:1].isdigit() or "NCCL" in line:
        return False
    return not line.split(None, 2)[1:2] or not line.split(None, 2)[1].isalpha()


def _add_row(log: Log, number: int, line: str) -> None:
    run = log.runs[-1]
    fields = line.split()
    expected = len(run.names) + ("timestamp" in run.names)  # a date and a time of day
    if len(fields) != expected:
        raise log.text.fault(number, line, f"has {len(fields)} fields where the header has {expected}")
    run.rows.append((number, fields))
    log.rows += 1
    log.text.limit(number, log.rows * expected)


def _tell_how_it_ended(text: Text, run: LoggedTest) -> None:
    """Remark that a test did not end: it has no closing line and did not reach the largest size."""
    if not run.rows:
        if run.ranks or run.names:
            text.tell(f"line {run.line}: a test began here and printed no rows")
        return
    number, fields = run.rows[-1]
    if not run.ended and not (run.largest and fields[0].isdigit() and int(fields[0]) >= run.largest):
        reached = f"after {fields[0]} of {run.largest} bytes" if run.largest else f"after {fields[0]} bytes"
        text.tell(f"line {number}: the test was cut off {reached}: no '# Avg bus bandwidth' follows")
