"""Random mutants of the model, each put to the tests that execute its line.

    python benchmarks/mutants.py --seed 1 --count 200 [--jobs 2] [--again]

A mutant is one small change of a line of osfmodel/{entities,cost,engine,solve,targets,formats}: a comparison, an
operator, a constant by one, a condition negated, a statement dropped, min for max, arguments swapped, ``and`` for
``or``, or None returned. The seed draws lines, then one change of each, nearly the same ones after other lines were
edited. A larger count continues a smaller one.

The committed tree is copied into temporary folders; the checkout is never touched. Tests that are neither live nor long
are first run once under coverage (some 10 minutes on two quiet cores, and only those test files that changed since).
Each mutant then meets the tests that execute its line, fastest first, then those that execute its module, until one
fails or --seconds of recorded test time are used up. What takes five times as long as recorded, and a minute, counts as
noticed. Lines executed in other processes are not recorded; results that functions keep are recorded for the first test
that asks, hence the tests of the module.

Records and results are in build/mutants. A run that was stopped goes on where it was; --again repeats the survivors,
after tests were added. Needs ``coverage``, which the extra ``dev`` installs.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import io
import json
import multiprocessing
import os
import queue
import random
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "mutants"
FOLDERS = ("entities", "cost", "engine", "solve", "targets", "formats")
PRELOADED = ["numpy", "scipy.optimize", "msgspec", "rich.console", "yaml", "click"]
RECORDING_LIMIT = 1800
EXAMPLES, SETTINGS = 10, "_hypothesis_internal_use_settings"
"""Of a property that are recorded, and where its function has its settings."""
FIRST = 20
"""Tests that a mutant meets in a first process, which collects few files: most are noticed there."""
SLOWED = 3
"""Times as long as alone that a test takes under coverage, roughly."""
TESTS = [f"tests/{name}" for name in (*FOLDERS, "planning", "conformance", "golden")]
COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
}  # fmt: skip
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
DROPPED = (ast.Expr, ast.AugAssign, ast.Assign, ast.Raise, ast.Continue, ast.Break)


class Mutant(NamedTuple):
    """A change of the bytes from ``start`` to ``end``; ``lines``: the first of its statement, and its own."""

    path: str
    lines: tuple[int, int]
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.lines[1]}: {' '.join(self.before.split())} -> {self.after}"


class Recorded(NamedTuple):
    """A test that passed: its name, seconds, and of each module the lines it executed, as the bits of a number."""

    name: str
    seconds: float
    lines: Mapping[str, int]


# --- mutants -------------------------------------------------------------------------------------------------------


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes that may replace a node."""
    match node:
        case ast.Compare(ops=[op]):
            yield with_(node, ops=[COMPARISONS[type(op)]()])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            if not any(
                isinstance(side, (ast.JoinedStr, ast.List, ast.Tuple)) or is_text(side) for side in (left, right)
            ):
                yield with_(node, op=OPERATORS[type(op)]())
        case ast.BoolOp(op=op):
            yield with_(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Call(args=[first, second, *rest]) if not isinstance(first, ast.Starred):
            if not isinstance(second, ast.Starred) and ast.dump(first) != ast.dump(second):
                yield with_(node, args=[second, first, *rest])
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in EXTREMES:
            yield with_(node, func=ast.Name(EXTREMES[name]))
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in EXTREMES:
            yield with_(node, func=ast.Attribute(value, EXTREMES[name]))
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.Assign(targets=[ast.Name()]) | ast.Expr(value=ast.Constant()):
            pass
        case ast.stmt() if isinstance(node, DROPPED):
            yield ast.Pass()


def with_(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of ``node`` with other fields."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def is_text(node: object) -> bool:
    """Whether a node is a string."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def inside(node: ast.AST, statement: ast.stmt | None = None) -> Iterator[tuple[ast.AST, ast.stmt | None]]:
    """Nodes that run inside ``node``, each with its statement; no annotations, decorators, ``strict=`` or f-strings."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "strict"):
        return
    if isinstance(node, ast.stmt):
        statement = node
    yield node, statement
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from inside(child, statement)


def conditions(node: ast.AST) -> list[ast.expr]:
    """The conditions in a node."""
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def mutants_of(path: str, text: bytes) -> Iterator[Mutant]:
    """All mutants of a module."""
    starts = [0, 0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, statement in inside(ast.parse(text)):
        replaced: list[tuple[Any, ast.AST]] = [(node, new) for new in changes(node)]
        replaced += [(one, ast.UnaryOp(ast.Not(), one)) for one in conditions(node) if not is_not(one)]
        for old, new in replaced:
            start, end = starts[old.lineno] + old.col_offset, starts[old.end_lineno] + old.end_col_offset
            after = ast.unparse(ast.fix_missing_locations(copy.deepcopy(new)))
            if not isinstance(new, ast.stmt | ast.Constant):
                after = f"({after})"
            assert statement is not None
            yield Mutant(
                path, (min(statement.lineno, old.lineno), old.lineno), start, end, text[start:end].decode(), after
            )


def is_not(node: ast.expr) -> bool:
    """Whether a condition is negated, or compares, which other changes reach."""
    return isinstance(node, ast.UnaryOp | ast.Compare)


def drawn(tree: Path, seed: int, count: int) -> list[Mutant]:
    """Draw lines, then one mutant for each, by a hash of the seed and the line: lines that change move no other."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    texts: dict[tuple[str, int], tuple[str, bytes]] = {}
    for folder in FOLDERS:
        for file in sorted((tree / "osfmodel" / folder).rglob("*.py")):
            text = file.read_bytes()
            lines = text.splitlines()
            for mutant in mutants_of(file.relative_to(tree).as_posix(), text):
                place = mutant.path, mutant.lines[1]
                by_line.setdefault(place, []).append(mutant)
                texts[place] = mutant.path, lines[place[1] - 1].strip()

    def ranked(place: tuple[str, int]) -> tuple[str, int]:
        return sha256(repr((seed, texts[place])).encode()).hexdigest(), place[1]

    return [random.Random(ranked(place)[0]).choice(by_line[place]) for place in sorted(by_line, key=ranked)[:count]]


# --- tests in a copy, in a process of their own ----------------------------------------------------------------------


class Recorder:
    """A pytest plugin that records the lines each test executes; those of a shared fixture count for all its tests."""

    def __init__(self, coverage: Any) -> None:
        self.coverage, self.seconds, self.uses = coverage, dict[str, float](), dict[str, list[str]]()
        self.passed, self.now, self.times = set[str](), "", dict[object, float]()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        import hypothesis  # noqa: PLC0415 - before pytest is up it cannot be

        for function in {item.function for item in items}:
            own = getattr(function, SETTINGS, None)
            if own is not None and own.max_examples > EXAMPLES:
                self.times[function] = max(1, own.max_examples / EXAMPLES / SLOWED)
                setattr(function, SETTINGS, hypothesis.settings(own, max_examples=EXAMPLES))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.now = nodeid
        self.coverage.switch_context(nodeid)
        self.seconds[nodeid] = -time.perf_counter()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.coverage.switch_context("")
        self.seconds[nodeid] += time.perf_counter()

    def pytest_runtest_setup(self, item: Any) -> None:
        self.uses[item.nodeid] = list(item.fixturenames)
        self.times[item.nodeid] = self.times.get(item.function, 1)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        if fixturedef.scope == "function":
            return (yield)
        name, start = f"fixture {fixturedef.argname}", time.perf_counter()
        self.coverage.switch_context(name)
        try:
            return (yield)
        finally:
            self.seconds[name] = time.perf_counter() - start
            self.seconds[self.now] -= self.seconds[name]
            self.coverage.switch_context(self.now)

    def recorded(self, tree: Path) -> list[Recorded]:
        """All tests that passed."""
        data = self.coverage.get_data()
        lines: dict[str, dict[str, int]] = {}
        for file in data.measured_files():
            path = Path(file).relative_to(tree).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                for context in contexts:
                    of = lines.setdefault(context, {})
                    of[path] = of.get(path, 0) | 1 << line
        found = []
        for name in sorted(self.passed):
            executed: dict[str, int] = {}
            contexts = [name, *(f"fixture {fixture}" for fixture in self.uses[name])]
            for context in contexts:
                for path, bits in lines.get(context, {}).items():
                    executed[path] = executed.get(path, 0) | bits
            seconds = self.seconds[name] * self.times[name] + sum(self.seconds.get(one, 0) for one in contexts[1:])
            found.append(Recorded(name, seconds, executed))
        return found


class Chosen:
    """A pytest plugin that runs the chosen tests in their order, and notes the first that fails."""

    def __init__(self, names: Sequence[str]) -> None:
        self.order = {name: k for k, name in enumerate(names)}
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda item: self.order[item.nodeid]
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid


def run_pytest(tree: Path, arguments: Sequence[str], plugin: object) -> int:
    """Run pytest on a copy, silently."""
    os.chdir(tree)
    sys.dont_write_bytecode = False
    sys.path.insert(0, str(tree))
    os.environ |= {"PYTHONPATH": str(tree), "CI": "true"}
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        return int(pytest.main(["-p", "no:cacheprovider", "-m", "not live and not long", *arguments], plugins=[plugin]))


def record(tree: Path, test_file: str) -> list[Recorded]:
    """The tests of a file, with the lines that each executes."""
    import coverage  # noqa: PLC0415 - needed for this alone

    os.environ["COVERAGE_CORE"] = "ctrace"  # the other knows no contexts
    measured = coverage.Coverage(data_file=None, source=[str(tree / "osfmodel")])
    recorder = Recorder(measured)
    measured.start()
    run_pytest(tree, [test_file], recorder)
    measured.stop()
    return recorder.recorded(tree)


def judge(tree: Path, names: Sequence[str]) -> str:
    """The test that fails first, "" where none does."""
    chosen = Chosen(names)
    status = run_pytest(tree, ["-x", *dict.fromkeys(name.split("::")[0] for name in names)], chosen)
    return chosen.failed or ("" if status in (0, pytest.ExitCode.NO_TESTS_COLLECTED) else "collecting tests")


def apart(function: Callable[..., Any], limit: float, *arguments: object) -> Any:
    """The result of a function in a process of its own. Raises TimeoutError, or EOFError if the process ends early."""
    context = multiprocessing.get_context("forkserver")
    there, here = context.Pipe()
    process = context.Process(target=_answer, args=(here, function, arguments))
    process.start()
    here.close()
    try:
        if not there.poll(limit):
            raise TimeoutError
        return there.recv()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()


def _answer(pipe: Any, function: Callable[..., Any], arguments: Sequence[object]) -> None:
    os.setsid()
    pipe.send(function(*arguments))


# --- the record ------------------------------------------------------------------------------------------------------


def git(*arguments: str) -> bytes:
    """The output of git in the checkout."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def copied(folder: Path) -> Path:
    """The committed tree, in ``folder``."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD"))) as archive:
        archive.extractall(folder, filter="data")
    return folder


def recorded_tests(copies: queue.Queue[Path], package: str, args: argparse.Namespace) -> list[Recorded]:
    """All tests with the lines that they execute; recorded for test files that are new or have changed."""
    files = {}
    for line in git("ls-tree", "-r", "HEAD", *args.tests).decode().splitlines():
        said, path = line.split("\t")
        if re.fullmatch(r"tests/(?!live/)(.*/)?test_\w+\.py", path):
            files[path] = CACHE / package / f"{said.split()[2][:16]}.json"
    missing = {path: cache for path, cache in files.items() if not cache.exists()}
    (CACHE / package).mkdir(parents=True, exist_ok=True)

    def one(path: str) -> None:
        with lent(copies) as tree:
            start = time.perf_counter()
            tests = apart(record, RECORDING_LIMIT, tree, path)
        rows = [[test.name, round(test.seconds, 4), {k: f"{v:x}" for k, v in test.lines.items()}] for test in tests]
        missing[path].write_text(json.dumps(rows))
        print(f"recorded {path}: {len(rows)} tests, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, missing))
    return [
        Recorded(name, seconds, {path: int(bits, 16) for path, bits in lines.items()})
        for cache in files.values()
        for name, seconds, lines in json.loads(cache.read_text())
    ]


@contextlib.contextmanager
def lent(copies: queue.Queue[Path]) -> Iterator[Path]:
    """A copy of the tree that no other thread uses meanwhile."""
    tree = copies.get()
    try:
        yield tree
    finally:
        copies.put(tree)


# --- mutants and tests -----------------------------------------------------------------------------------------------


def importers(tree: Path, path: str) -> list[str]:
    """The modules that import a module, by the names on their lines."""
    module = Path(path).parent.name if path.endswith("__init__.py") else Path(path).stem
    named = re.compile(rf"^\s*(from|import) .*\b{module}\b", re.MULTILINE)
    files = (tree / "osfmodel").rglob("*.py")
    return [file.relative_to(tree).as_posix() for file in files if named.search(file.read_text())]


def in_functions(tree: Path, path: str) -> int:
    """The lines of a module that run when it is used, not when it is imported, as the bits of a number."""
    bits = 0
    for node in ast.walk(ast.parse((tree / path).read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            body = node.body if isinstance(node.body, list) else [node.body]
            bits |= (1 << (body[-1].end_lineno or 0) + 1) - (1 << body[0].lineno)
    return bits


def meeting(mutant: Mutant, tests: Sequence[Recorded], tree: Path) -> list[list[Recorded]]:
    """Tests that execute the line, and others that execute its module or use its constants, fastest first."""
    first, last = mutant.lines
    line = (1 << last + 1) - (1 << first)
    used = in_functions(tree, mutant.path)
    paths = [mutant.path, *(() if line & used else importers(tree, mutant.path))]
    modules = {path: in_functions(tree, path) for path in paths}
    groups: list[list[Recorded]] = [[], []]
    for test in sorted(tests, key=lambda test: test.seconds):
        if test.lines.get(mutant.path, 0) & line & used:
            groups[0].append(test)
        elif any(test.lines.get(path, 0) & bits for path, bits in modules.items()):
            groups[1].append(test)
    return groups


def write(file: Path, text: bytes) -> None:
    """Write a module and remove its compiled file, which could be taken for the new one."""
    file.write_bytes(text)
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def put(mutant: Mutant, tests: Sequence[Recorded], seconds: float, copies: queue.Queue[Path]) -> dict[str, Any]:
    """Run the tests on a mutant, and return the result."""
    with lent(copies) as tree:
        file, known = tree / mutant.path, (tree / mutant.path).read_bytes()
        groups = meeting(mutant, tests, tree)
        chosen, total = [], 0.0
        for test in (*groups[0], *groups[1]):
            if total + test.seconds <= seconds:
                chosen.append(test.name)
                total += test.seconds
        by = ""
        write(file, known[: mutant.start] + mutant.after.encode() + known[mutant.end :])
        try:
            for some in (chosen[:FIRST], chosen[FIRST:]):
                by = by or (apart(judge, 60 + 5 * total, tree, some) if some else "")
        except (TimeoutError, EOFError) as error:
            by = "time" if isinstance(error, TimeoutError) else "the end of the process"
        finally:
            write(file, known)
    execute, others = map(len, groups)
    return {"by": by, "execute": execute, "run": len(chosen), "left_out": execute + others - len(chosen)}


def put_all(chosen: Sequence[Mutant], tests: Sequence[Recorded], args: argparse.Namespace, results: Path,
            copies: queue.Queue[Path]) -> dict[Mutant, dict[str, Any]]:  # fmt: skip
    """Run the tests on mutants without a result; each result is appended to a file."""
    known = {}
    for line in results.read_text().splitlines() if results.exists() else ():
        row = json.loads(line)
        known[Mutant(*(tuple(v) if isinstance(v, list) else v for v in row.pop("mutant")))] = row
    waiting = [one for one in chosen if one not in known or (args.again and not known[one]["by"])]
    with ThreadPoolExecutor(args.jobs) as pool:
        judged = pool.map(partial(put, tests=tests, seconds=args.seconds, copies=copies), waiting)
        for number, (mutant, row) in enumerate(zip(waiting, judged, strict=True), start=1):
            known[mutant] = row
            with results.open("a") as out:
                out.write(json.dumps({"mutant": mutant, **row}) + "\n")
            print(f"{number} of {len(waiting)}: {mutant}: {row['by'] or 'SURVIVED'}", file=sys.stderr, flush=True)
    return {one: known[one] for one in chosen}


def report(found: Mapping[Mutant, Mapping[str, Any]]) -> None:
    """Print the survivors and the share noticed."""
    for mutant, row in found.items():
        if not row["by"]:
            many = f"{row['execute']} tests execute it" if row["execute"] else "no test executes it"
            print(f"{mutant}  ({many}; {row['run']} run, {row['left_out']} left out)")
    noticed = [row["by"] for row in found.values() if row["by"]]
    share = len(noticed) / max(1, len(found))
    print(f"{len(noticed)} of {len(found)} noticed ({share:.0%}), {noticed.count('time')} by time.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200, help="how many mutants (200)")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (1)")
    parser.add_argument("--seconds", type=float, default=120, help="recorded test time per mutant (120)")
    parser.add_argument("--again", action="store_true", help="put survivors of an earlier run to the tests again")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH", help="files and folders of tests")
    args = parser.parse_args()
    package = git("rev-parse", "HEAD:osfmodel").decode().strip()[:16]
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        copies: queue.Queue[Path] = queue.Queue()
        for job in range(args.jobs):
            copies.put(copied(Path(folder).resolve() / f"copy{job}"))
        tests = recorded_tests(copies, package, args)
        with lent(copies) as tree:
            chosen = drawn(tree, args.seed, args.count)
        results = CACHE / package / f"seed-{args.seed}.jsonl"
        report(put_all(chosen, tests, args, results, copies))


if __name__ == "__main__":
    main()
