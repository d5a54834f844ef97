"""Feed damaged files to every reader, and say what came of it:

    python benchmarks/fuzz.py [--seed 1] [--count 100000] [--jobs 2] [--keep FOLDER] [--only NUMBER]

Good files of every format that ``osf import`` reads, of traces and their archives, and of our own (workload, cluster,
plan, measurements), out of tests/, profiles/ and, where it is set, OSFMODEL_DATA, are damaged (tests/formats/damage.py)
and given to the commands that read them, inside of this process. Each must be read, so that what is written is valid
and can be read again, or refused: an error of osfmodel's on one line of less than 1000 characters that names the file,
with nothing left behind and a file that was there as it was. Anything else is a finding: another exception, a Python
warning, more than 10 s of processor time, more than 60 s without an answer, more memory than MOST_MIB, a dead process.

Prints how many files each reader took and refused, the longest time, the most memory, and the findings; ends with 1
where there are any. --keep takes their files and command lines. The input of a number is the same for a seed, however
many jobs there are; --only repeats one, with its traceback. Ctrl-C ends it with what it has. 100,000 take some ten
minutes of two cores; TMPDIR=/dev/shm spares the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import pickle
import re
import resource
import shlex
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click  # noqa: E402

from osfmodel.cli import app  # noqa: E402
from osfmodel.cost import COST_MODELS  # noqa: E402
from osfmodel.cost.clusters import load_cluster  # noqa: E402
from osfmodel.engine.band_values import decode_bands  # noqa: E402
from osfmodel.entities.batches import Variation  # noqa: E402
from osfmodel.entities.cluster import COLLECTIVES  # noqa: E402
from osfmodel.entities.errors import DataError, OsfError  # noqa: E402
from osfmodel.entities.files import profiles  # noqa: E402
from osfmodel.entities.files.measurements import load_measurements  # noqa: E402
from osfmodel.formats import IMPORT_FORMATS  # noqa: E402
from osfmodel.runtime.training.run import RunRequest, plan_called  # noqa: E402
from tests.formats import damage, samples  # noqa: E402
from tests.formats.damage import Sample, damaged  # noqa: E402

LONGEST_MESSAGE = 1000
SLOW_S, SILENT_S = 10.0, 60.0
MOST_MIB = 512
"""Of a whole process, osfmodel and numpy in it."""
ADDRESSES = 4 * 2**30
"""Bytes of addresses that a worker may have: what asks for more is met with a MemoryError."""
BEFORE = b"what was there before\n"
KEPT = 5
"""Inputs that are kept of each finding."""
LOADERS = {"workload": profiles.load_workload, "cluster": load_cluster, "measurements": load_measurements}
Files = dict[str, bytes]


class Case(NamedTuple):
    """Files and the command line that reads them; damaged files have ``broken`` in their names."""

    reader: str
    files: Files
    arguments: Sequence[str]
    stdin: bytes = b""


class Answer(NamedTuple):
    """The result of a case: ``verdict`` is accepted, refused, or a finding."""

    number: int
    reader: str
    verdict: str
    seconds: float
    mib: float
    detail: str = ""


# What is read


class Pool:
    """The samples by their kind."""

    def __init__(self, found: Sequence[Sample]) -> None:
        self.all = found
        self.by_kind: dict[str, list[Sample]] = defaultdict(list)
        for sample in self.all:
            self.by_kind[sample.kind].append(sample)

    def one(self, kind: str, random: Random) -> bytes:
        """The content of some sample of a kind; one in fifty times of any."""
        found = self.by_kind[kind] if random.random() > 0.02 else self.all
        return random.choice(found or self.all).content


def packed(content: bytes, random: Random, name: str = "broken") -> bytes:
    """Damaged, then packed or not; now and then the packed bytes are damaged instead, or as well."""
    how = random.random()
    if how < 0.65:
        return damaged(content, random)
    if how < 0.8:
        return damage.gzipped(damaged(content, random))
    if how < 0.9:
        return damage.battered(damage.gzipped(content), random)
    if how < 0.94:
        return damage.battered(damage.gzipped(damaged(content, random)), random)
    if how < 0.96:
        return damage.gzipped(damage.gzipped(damaged(content, random)))
    if how < 0.98:
        return damage.gzipped(content) + damage.gzipped(damaged(content, random))
    return damage.zipped({name: damaged(content, random)})


def some(random: Random, options: Mapping[str, Sequence[str]], chance: float = 0.15) -> list[str]:
    """Some options with some of their values."""
    return [
        word for name, values in options.items() if random.random() < chance for word in (name, random.choice(values))
    ]


HINTS = {
    "--workers": ("2", "4", "7", "1000"),
    "--gpus-per-node": ("1", "2", "8"),
    "--batch-size": ("8",),
    "--kind": ("workload", "cluster", "measurements"),
    "--fit": tuple(COST_MODELS),
    "--collective": tuple(COLLECTIVES),
    "--name": ("called",),
}
TRACED = {"--steps": ("5", "5..6", "0..9")}


def imported(form: str) -> Callable[[Pool, Random], Case]:
    """``osf import`` of one format, given its name or not, one file or two."""

    def case(pool: Pool, random: Random) -> Case:
        files = {"broken.json": packed(pool.one(form, random), random)}
        if random.random() < 0.05 and form in TABLES:
            files["good.json"] = pool.one(form, random)
        needs = form == "osu" or (form in IMPORT_FORMATS and IMPORT_FORMATS[form].log is not None)
        options = some(random, HINTS, 0.03) + (["--workers", "2"] if needs and random.random() < 0.8 else [])
        if random.random() < 0.1:
            options += ["--as", random.choice((form, *IMPORT_FORMATS)) if form in IMPORT_FORMATS else "csv-table"]
        if random.random() < 0.02:
            return Case("import -", {}, ["import", "-", "-o", "out.json", *options], files["broken.json"])
        output = "out/" if random.random() < (0.9 if form in SEVERAL else 0.1) else "out.json"
        return Case(f"import {form}", files, ["import", *files, "-o", output, *options])

    return case


TABLES = ("nccl-tests", "nccl-tests-json", "nccl-inspector", "flight-recorder", "osu", "csv-table")
SEVERAL = ("csv-table", "csv", "horovod-timeline", "kineto", "nsight-systems")
"""Formats of which a file may hold several things, which need a folder."""


def job(pool: Pool, random: Random) -> tuple[Files, list[str]]:
    """The traces of some ranks, in files, a folder or an archive, and what is given of them."""
    ranks = {f"rank{rank}.json": pool.one("kineto", random) for rank in range(random.choice((1, 2, 2, 3)))}
    if random.random() < 0.5:
        made = [sample.content for sample in pool.by_kind["kineto"] if sample.name.startswith("made-3")]
        ranks = {"rank0.json": samples.traces.text(samples.traces.Job(late=(0, 30))).encode(), "rank1.json": made[0]}
    hurt = random.choice(list(ranks))
    ranks[hurt] = packed(ranks[hurt], random) if random.random() < 0.7 else ranks[hurt]
    how = random.choice(("files", "folder", "tar", "tar.gz", "tar", "tar.gz", "zip"))
    if how == "files":
        files = {f"broken-{name}": content for name, content in ranks.items()}
        return files, list(files)
    if how == "folder":
        return {f"broken/{name}": content for name, content in ranks.items()}, ["broken"]
    archive = (damage.zipped if how == "zip" else damage.tarred)(ranks)
    archive = damage.battered(archive, random) if random.random() < 0.4 else archive
    archive = damage.gzipped(archive) if how == "tar.gz" else archive
    return {f"broken.{how}": damage.battered(archive, random) if random.random() < 0.1 else archive}, [f"broken.{how}"]


def imported_job(pool: Pool, random: Random) -> Case:
    """``osf import`` of the traces of a job."""
    files, given = job(pool, random)
    return Case("import job", files, ["import", *given, "-o", "out/", *some(random, HINTS | TRACED, 0.05)])


RECORDED = {"nccl-inspector": ".log", "flight-recorder": ".json", "chakra": ".et", "nsight-systems": ".sqlite"}
"""Formats of a job's files beside the profiler's traces, and the endings of their names."""


def recorded_job(pool: Pool, random: Random) -> Case:
    """``osf import`` or ``osf explain`` of the files of some ranks, or of a folder of them, one damaged."""
    form = random.choice(list(RECORDED))
    ranks = [pool.one(form, random) for _ in range(random.choice((1, 2, 3)))]
    hurt = random.randrange(len(ranks))
    ranks[hurt] = packed(ranks[hurt], random)
    inside = random.random() < 0.5
    files = {f"broken{'/' if inside else '-'}{rank}{RECORDED[form]}": one for rank, one in enumerate(ranks)}
    given = ["broken"] if inside else list(files)
    if form == "nsight-systems" and random.random() < 0.5:
        return Case("explain recorded", files, ["explain", *given, *some(random, TRACED, 0.2), "--json"])
    return Case("import recorded", files, ["import", *given, "-o", "out/", *some(random, HINTS, 0.05)])


def explained(pool: Pool, random: Random) -> Case:
    """``osf explain`` of a job or a file, with a log, a workload or a cluster, of which one is damaged."""
    files, given = job(pool, random) if random.random() < 0.4 else ({}, [])
    if not files:
        files, given = {"broken.json": packed(pool.one("kineto", random), random)}, ["broken.json"]
    options = some(random, TRACED, 0.1)
    for option, kind in (("--ddp-logging", "ddp-logging"), ("--model", "workload"), ("--cluster", "cluster")):
        if random.random() < 0.12:
            name = f"broken-{kind}.json"
            files[name], options = packed(pool.one(kind, random), random), [*options, option, name]
    return Case("explain", files, ["explain", *given, *options, "--json"])


def own(command: str, hurt: str) -> Callable[[Pool, Random], Case]:
    """A command that reads a workload, a cluster and a plan, of which ``hurt`` is damaged."""

    def case(pool: Pool, random: Random) -> Case:
        files = {
            "workload.json": damage.WORKLOAD.encode(),
            "cluster.json": samples.OWN_CLUSTER.encode(),
            "plan.json": damage.PLAN.encode(),
        }
        del files[f"{hurt}.json"]
        content = pool.one(hurt, random)
        files[f"broken-{hurt}.json"] = damaged(content, random) if random.random() < 0.97 else packed(content, random)
        named = {name: f"broken-{name}.json" if name == hurt else f"{name}.json" for name in OWN}
        plan = named["plan"] if hurt == "plan" else random.choice(("ddp", "ddp", "wfbp", "single", "optimal"))
        workers = random.choice(("2", "4", "8", "4..64"))
        arguments = [command, named["workload"], "--cluster", named["cluster"], "--plan", plan, "--workers", workers]
        return Case(
            f"{command} {hurt}", files, [*arguments, *([] if command in OTHERS else ["--json", "-o", "out.json"])]
        )

    return case


OWN = ("workload", "cluster", "plan")


def checked(pool: Pool, random: Random) -> Case:
    """``osf check`` of measured runs, and what they name beside them, of which one is damaged."""
    files = {
        "workload.json": damage.WORKLOAD.encode(),
        "cluster.json": samples.OWN_CLUSTER.encode(),
        "plan.json": damage.PLAN.encode(),
        "broken-runs.json": damage.RUNS.encode(),
    }
    if random.random() < 0.7:
        files["broken-runs.json"] = damaged(pool.one("measurements", random), random)
    else:
        hurt = random.choice(OWN)
        files[f"{hurt}.json"] = damaged(files[f"{hurt}.json"], random)
    return Case("check", files, ["check", "broken-runs.json", "--json", "-o", "out.json"])


TIMES = (
    b"step,step_time_ms,run\n1,100.2,a\n2,100.4,a\n3,100.1,b\n",
    b'{"step": 1, "step_time_s": 0.1002}\n{"step": 2, "step_time_s": 0.1004}\n',
    b"0.1002\n0.1004 s\n100.1 ms\n",
)
"""Step times as text, one a line."""
PREDICTED = (
    b'{"schema_version": 1, "workload": "w", "cluster": "c", "workers": 8, "lower_bound_s": 0.1, '
    b'"predictions": [{"plan": "ddp", "iteration_time_s": 0.12}, {"plan": "wfbp", "iteration_time_s": 0.2}]}',
    b'{"schema_version": 1, "workload": "w", "cluster": "c", "points": [{"workers": 8, "strategy": "ddp", '
    b'"step_time_s": 0.3}]}',
)
"""Predictions as JSON."""


def compared(pool: Pool, random: Random) -> Case:
    """``osf compare`` of two files of one kind, of which the second is damaged."""
    kind: Any = random.choice((TIMES, PREDICTED, "measurements", "cluster", "workload"))
    first, second = ((pool.one(kind, random) if isinstance(kind, str) else random.choice(kind)) for _ in range(2))
    files = {"first": first, "broken": packed(second, random)}
    given = list(files) if random.random() < 0.5 else ["broken", "first"]
    return Case("compare", files, ["compare", *given, *some(random, {"--tolerance": ("5%", "0")}, 0.1), "--json"])


def examined(pool: Pool, random: Random) -> Case:
    """``osf doctor`` of a log or a cluster that is damaged."""
    kind = random.choice(("nccl-tests", "cluster"))
    against = {"--against": ("nccl:a100x8,200Gbps,ib", "ring:50us,10Gbps")}
    hints = {name: HINTS[name] for name in ("--workers", "--gpus-per-node", "--collective")}
    files = {"broken": packed(pool.one(kind, random), random)}
    return Case("doctor", files, ["doctor", "broken", *some(random, against, 0.9), *some(random, hints), "--json"])


def bands(pool: Pool, random: Random) -> Case:
    """The error bands that come with osfmodel."""
    return Case("bands", {"broken.json": damaged(pool.one("bands", random), random)}, ["@bands", "broken.json"])


READERS: Mapping[Callable[[Pool, Random], Case], float] = {
    **{imported(form): 2.0 for form in IMPORT_FORMATS},
    imported("csv"): 1.0,
    imported("measurements"): 0.3,
    imported_job: 3.0,
    recorded_job: 6.0,
    explained: 3.0,
    checked: 3.0,
    compared: 3.0,
    examined: 1.0,
    bands: 0.5,
    **{own("predict", hurt): 3.0 for hurt in OWN},
    own("memory", "workload"): 1.0,
    own("memory", "plan"): 0.5,
    **{own("@run", hurt): 0.7 for hurt in OWN},
}
"""Readers, and how often each is chosen."""


def case_of(seed: int, number: int, pool: Pool) -> Case:
    """The case with this number."""
    random = Random(f"{seed} {number}")
    return random.choices(list(READERS), list(READERS.values()))[0](pool, random)


# How it is read


def run_of(arguments: Sequence[str]) -> None:
    """Read workload, cluster and plan as ``osf run`` does before any process trains."""
    workload, cluster, plan = arguments[0], arguments[2], arguments[4]
    asked = RunRequest(workload, (plan,), cluster, None, Variation(2.0), "runs.json", None, verify=False)
    read = asked.variation.of(profiles.load_workload(asked.subject))
    plan_called(plan, read, asked.pricing(4)).require_valid(read)


OTHERS: Mapping[str, Callable[[Sequence[str]], object]] = {
    "@run": run_of,
    "@bands": lambda arguments: profiles.read(Path(arguments[0]), decode_bands),
}
"""Readers that no command calls by themselves."""


def called(arguments: Sequence[str]) -> None:
    """Call ``osf`` with these arguments, without turning errors into exit codes."""
    if arguments[0] in OTHERS:
        OTHERS[arguments[0]](arguments[1:])
    else:
        click.Group.main(app.main, list(arguments), "osf", standalone_mode=False)


def answered(case: Case) -> tuple[str, str]:
    """The verdict on a case in this folder, and details of a finding."""
    before = {**case.files}
    if "out.json" in case.arguments and len(case.files) % 2:
        before["out.json"] = BEFORE
    for name, content in before.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
    said = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    given = io.TextIOWrapper(io.BytesIO(case.stdin), "utf-8")
    try:
        with contextlib.redirect_stdout(said[0]), contextlib.redirect_stderr(said[1]), replaced_stdin(given):
            called(case.arguments)
    except (OsfError, click.ClickException) as error:
        fault = fault_of(error, case) or left_behind(before)
        return fault or "refused", f"{type(error).__name__}: {error}"
    except (Exception, SystemExit) as error:
        return signature(error), traceback.format_exc()
    fault = fault_of_output(before) or fault_of_words(said)
    return (fault, "") if fault else ("accepted", "")


@contextlib.contextmanager
def replaced_stdin(given: io.TextIOWrapper) -> Iterator[None]:
    """``given`` as what stands on standard input."""
    kept, sys.stdin = sys.stdin, given
    try:
        yield
    finally:
        sys.stdin = kept


def signature(error: BaseException) -> str:
    """An exception, and the last place in osfmodel that it came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "osfmodel" in Path(frame.filename).parts]
    place = f"{Path(frames[-1].filename).relative_to(ROOT)}:{frames[-1].lineno}" if frames else "outside"
    return f"{type(error).__name__} at {place}"


def fault_of(error: Exception, case: Case) -> str:
    """The fault of an error message; empty if it is one printable line that names the file."""
    if not isinstance(error, OsfError):
        return f"{type(error).__name__}: {error}"[:90]
    text = app._advised(error)
    if not text.isprintable():
        return f"message of several lines or with control characters: {type(error).__name__}"
    if len(text) >= LONGEST_MESSAGE:
        return f"message of {len(text)} characters: {text[:60]}"
    named = any(name.partition("/")[0] in text for name in (*case.files, "standard input")) or NOUN.search(text)
    if isinstance(error, DataError) and not named:
        return f"message without the file: {text[-60:]}"
    return ""


NOUN = re.compile(r"\b(?:workload|cluster|plan|trace|runs of) '")
"""Begins the name of what was read, where what is wrong is no fault of its file."""


def left_behind(before: Files) -> str:
    """Files that a refusal wrote or changed nevertheless, in words."""
    after = {str(path) for path in Path().rglob("*")}
    given = set(before) | {str(Path(name).parent) for name in before} - {"."}
    if after != given:
        return f"left behind: {sorted(after ^ given)}"
    changed = [name for name, content in before.items() if Path(name).read_bytes() != content]
    return f"changed: {changed}" if changed else ""


def fault_of_output(before: Files) -> str:
    """The fault of the files that were written, each of which must be readable; empty if there is none."""
    for path in sorted(path for path in Path().rglob("*") if path.is_file()):
        if str(path) in before and str(path) != "out.json":
            continue
        if str(path) != "out.json" and path.parts[0] != "out":
            return f"left behind: {path}"
        document = json.loads(path.read_bytes(), parse_constant=lambda word: word)
        if "schema_version" in document and document.get("kind") in LOADERS:
            try:
                LOADERS[document["kind"]](path)
            except OsfError as error:
                return f"what was written cannot be read: {str(error).partition(': ')[2]}"[:120]
        elif not finite(document):
            return "written JSON is invalid: NaN or Infinity in it"
    return ""


def finite(document: Any) -> bool:
    """Whether there are numbers only where a document has numbers."""
    if isinstance(document, dict):
        return all(map(finite, document.values()))
    if isinstance(document, list):
        return all(map(finite, document))
    return document not in ("NaN", "Infinity", "-Infinity")


def fault_of_words(said: Sequence[io.TextIOWrapper]) -> str:
    """The fault of the lines on stderr and stdout; empty if there is none."""
    for text in said:
        text.flush()
    out, told = (text.buffer.getvalue().decode() for text in said)  # type: ignore[attr-defined]
    for line in told.split("\n"):
        if line and not (line.startswith("osf: ") and line.isprintable()):
            return f"a line on stderr: {line[:60]!r}"
    if out and not finite(json.loads(out, parse_constant=lambda word: word)):
        return "stdout is not JSON: NaN or Infinity in it"
    return ""


# Workers


def work(channel: Connection, seed: int, numbers: range, found: Path, keep: Path | None) -> None:
    """Answer for case after case, each in a folder of its own; end where one took too much memory."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    pool = Pool(pickle.loads(found.read_bytes()))
    with tempfile.TemporaryDirectory() as folder:
        warm(Path(folder) / "warm")
        warnings.simplefilter("error")
        for number in numbers:
            answer = answer_of(seed, number, pool, Path(folder) / "case", keep)
            channel.send(answer)
            if answer.mib > MOST_MIB:
                return
    channel.send(None)


def warm(folder: Path) -> None:
    """Load all that is loaded late, so that its memory and its own warnings are no case's."""
    within(folder, Case("", {"broken.csv": samples.TABLE_CSV.encode()}, ["import", "broken.csv", *WRITTEN, *FITTED]))
    within(folder, Case("", dict(OWN_FILES), ["predict", *ASKED, *WRITTEN]))


OWN_FILES = {"workload.json": damage.WORKLOAD.encode(), "cluster.json": samples.OWN_CLUSTER.encode()}
ASKED = ["workload.json", "--cluster", "cluster.json", "--workers", "4", "--plan", "optimal"]
FITTED, WRITTEN = ["--fit", "piecewise"], ["-o", "out.json"]


def within(folder: Path, case: Case) -> tuple[str, str]:
    """The verdict on a case in a new folder of that name, which is removed."""
    folder.mkdir()
    os.chdir(folder)
    try:
        return answered(case)
    finally:
        os.chdir(ROOT)
        shutil.rmtree(folder)


def answer_of(seed: int, number: int, pool: Pool, folder: Path, keep: Path | None) -> Answer:
    """The answer to the case with this number; the files of a finding are kept."""
    case = case_of(seed, number, pool)
    start = time.process_time()
    verdict, detail = within(folder, case)
    seconds, mib = time.process_time() - start, most_memory()
    if verdict in ("accepted", "refused") and seconds > SLOW_S:
        verdict = f"more than {SLOW_S:g} s of processor time"
    if verdict in ("accepted", "refused") and mib > MOST_MIB:
        verdict = f"more than {MOST_MIB} MiB"
    if keep is not None and verdict not in ("accepted", "refused"):
        store(keep, number, case, f"{verdict}\n{detail}")
    return Answer(number, case.reader, verdict, seconds, mib, detail)


def most_memory() -> float:
    """MiB that this process has had at most; where the system says so, without those of whoever started it."""
    try:
        told = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    except OSError:
        told = None
    return (int(told[1]) if told else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024


def store(keep: Path, number: int, case: Case, what: str) -> None:
    """Store the files of a case, with its command line and its result."""
    folder = keep / str(number)
    for name, content in {**case.files, "stdin": case.stdin}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "FOUND.txt").write_text(f"osf {shlex.join(case.arguments)}\n{what}\n", encoding="utf-8")


@dataclass
class Worker:
    """A process that answers for ``numbers``; ``done`` counts its answers, ``heard`` is when the last one came."""

    numbers: range
    settings: tuple[int, Path, Path | None]
    done: int = 0
    heard: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Begin with the first number for which there is no answer."""
        seed, found, keep = self.settings
        context = multiprocessing.get_context("spawn")
        self.channel, other = context.Pipe(duplex=False)
        arguments = (other, seed, self.numbers[self.done :], found, keep)
        self.process = context.Process(target=work, args=arguments, daemon=True)
        self.process.start()
        other.close()
        self.heard = time.monotonic() + SILENT_S  # it takes a while to load

    def answers(self) -> Iterator[Answer | None]:
        """New answers; None at the end. A process that died or is silent for too long is a finding, and starts anew."""
        if self.channel.poll():
            try:
                answer: Answer | None = self.channel.recv()
            except EOFError:
                yield from self._again("the process died")
                return
            self.heard = max(self.heard, time.monotonic())
            self.done += answer is not None
            yield answer
        elif time.monotonic() - self.heard > SILENT_S:
            yield from self._again(f"no answer for {SILENT_S:g} s")

    def _again(self, what: str) -> Iterator[Answer | None]:
        self.process.join(timeout=1)
        self.process.kill()
        self.process.join()
        if self.process.exitcode == 1:
            raise SystemExit("a worker failed, and no reader: its traceback is above")
        if self.done < len(self.numbers) and self.process.exitcode:
            yield Answer(self.numbers[self.done], "?", what, 0.0, 0.0)
            self.done += 1
        if self.done < len(self.numbers):
            self.start()
        else:
            yield None


@dataclass
class Tally:
    """The results of all cases."""

    verdicts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    found: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    mib: float = 0.0
    count: int = 0

    def add(self, answer: Answer) -> None:
        """Count one more answer."""
        good = answer.verdict in ("accepted", "refused")
        self.verdicts[answer.reader][answer.verdict if good else "found"] += 1
        if not good:
            self.found[answer.verdict].append(answer)
        self.seconds[answer.reader] = max(self.seconds[answer.reader], answer.seconds)
        self.mib, self.count = max(self.mib, answer.mib), self.count + 1

    def shown(self) -> str:
        """A row for each reader, all of them, and a line for each finding."""
        rows = ["| reader | files | accepted | refused | findings | longest, s |", "|---|---|---|---|---|---|"]
        for reader, counts in sorted(self.verdicts.items()):
            rows.append(self._row(reader, counts, self.seconds[reader]))
        rows.append(self._row("all", sum(self.verdicts.values(), Counter()), max(self.seconds.values(), default=0.0)))
        rows.append(f"Most memory of a process: {self.mib:.0f} MiB.")
        for what, answers in sorted(self.found.items(), key=lambda item: -len(item[1])):
            numbers = " ".join(str(answer.number) for answer in answers[:KEPT])
            rows.append(f"{len(answers)} times {what} ({answers[0].reader}; --only {numbers})")
        return "\n".join(rows)

    @staticmethod
    def _row(name: str, counts: Counter[str], seconds: float) -> str:
        cells = (name, f"{sum(counts.values()):,}", *(f"{counts[one]:,}" for one in ("accepted", "refused", "found")))
        return f"| {' | '.join(cells)} | {seconds:.2f} |"


def run(seed: int, count: int, jobs: int, found: Path, keep: Path | None) -> Tally:
    """Answers for all numbers, by so many processes at a time; the samples are in the file ``found``."""
    tally = Tally()
    workers = [Worker(range(first, count, jobs), (seed, found, keep)) for first in range(jobs)]
    for worker in workers:
        worker.start()
    with contextlib.suppress(KeyboardInterrupt):
        answers(workers, tally, count)
    return tally


def answers(workers: list[Worker], tally: Tally, count: int) -> None:
    """Take what workers answer until all have ended; so far where somebody stops it."""
    while workers:
        wait([worker.channel for worker in workers], timeout=1)
        for worker in list(workers):
            for answer in worker.answers():
                if answer is None:
                    workers.remove(worker)
                    continue
                tally.add(answer)
                if tally.count % 5000 == 0:
                    print(f"{tally.count:,} of {count:,}", file=sys.stderr, flush=True)


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--only", type=int, metavar="NUMBER", nargs="+")
    asked = parser.parse_args()
    published = os.environ.get("OSFMODEL_DATA")
    found = damage.all_samples(Path(published) if published else None)
    with tempfile.TemporaryDirectory() as folder:
        if asked.only is None:
            path = Path(folder) / "samples"
            path.write_bytes(pickle.dumps(found))
            tally = run(asked.seed, asked.count, asked.jobs, path, asked.keep)
        else:
            tally = again(asked.seed, asked.only, Pool(found), Path(folder), asked.keep)
    print(tally.shown())
    return 1 if tally.found else 0


def again(seed: int, numbers: Sequence[int], pool: Pool, folder: Path, keep: Path | None) -> Tally:
    """The cases of these numbers in this process, each with all that there is to say of it."""
    tally = Tally()
    warm(folder / "warm")
    warnings.simplefilter("error")
    for number in numbers:
        answer = answer_of(seed, number, pool, folder / "case", keep)
        print(f"osf {shlex.join(case_of(seed, number, pool).arguments)}\n{answer.verdict}: {answer.detail}")
        tally.add(answer)
    return tally


if __name__ == "__main__":
    sys.exit(main())
