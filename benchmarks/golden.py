"""Run commands drawn from a grammar in two checkouts, and print each difference in what they say and write:

    python benchmarks/golden.py --before DIR [--seed 1] [--count 400] [--only NUMBER]

The commands are those of tests/grammar.py, three of four without a mistake, each with a format: text, JSON, CSV, YAML,
lines to paste, a page, a picture. Each runs in a process of its own with the same environment, in a new folder of the
same name with the files of tests/stand_ins.py. Standard output, standard error, exit code and written files are
compared byte by byte. Ends with 1 where there are differences.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))

from tests import stand_ins
from tests.conftest import ROOT
from tests.grammar import drawn

LIMIT = 300
"""Seconds for a command."""
SERVER = f"""
import json, os, signal, sys
import osfmodel
from osfmodel.cli.app import main
print(osfmodel.__file__, flush=True)
for line in sys.stdin:
    words, here, *said = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(here)
        for number, path in enumerate((os.devnull, *said)):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["osf", *words]
        signal.alarm({LIMIT})
        main(prog_name="osf")
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""
"""Runs each command that standard input names in a child, and says its exit code."""
FORMS: tuple[tuple[str, ...], ...] = (
    (), (), ("--json",), ("--format", "csv"), ("--format", "yaml"), ("-o", "new.json"), ("-o", "new.csv"),
)  # fmt: skip
"""Formats that every command has."""
PLAIN = 3
"""Options of a command that is meant to be answered, at most."""
PAGE = ("-o", "page.html")
OWN_FORMS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "tune": (("--format", "code"), ("-o", "ddp.py")),
    "compare": (("--format", "markdown"),),
    "report": (PAGE, PAGE, ("-o", "picture.svg"), ("-o", "trace.json.gz")),
    "explain": (PAGE, PAGE),
    "scale": (PAGE, PAGE, ("-o", "picture.svg")),
    "sweep": (PAGE, PAGE, ("-o", "picture.svg")),
}
"""Further formats of a command."""
WRITING = {"-o", "--output", "-f", "--format", "--json", "--help", "-h"}
"""Options of which one says the format already."""


class Outcome(NamedTuple):
    """The outputs of a command, its exit code, and the files that it wrote."""

    code: int
    stdout: bytes
    stderr: bytes
    files: Mapping[str, bytes]


class Tree:
    """A checkout, and a process of it that has loaded the command line and forks for each command."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV")}
        fixed = {"TZ": "UTC", "COLUMNS": "100", "NO_COLOR": "1", "PYTHONHASHSEED": "0", "OSFMODEL_NO_CONFIG": "1"}
        self.server = subprocess.Popen(
            [sys.executable, "-P", "-c", SERVER],
            env={**kept, **fixed, "CI": "true", "HOME": str(folder), "PYTHONPATH": str(tree)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        loaded = self._told()
        if not Path(loaded).is_relative_to(tree):
            raise SystemExit(f"{tree}: osfmodel was loaded from {loaded}")

    def _told(self) -> str:
        assert self.server.stdout is not None
        return self.server.stdout.readline().rstrip("\n")

    def outcome(self, words: Sequence[str], files: Path) -> Outcome:
        """The outcome of a command in a new folder with ``files``."""
        assert self.server.stdin is not None
        here = self.folder / "here"
        shutil.copytree(files, here)
        stdout, stderr = self.folder / "stdout", self.folder / "stderr"
        print(json.dumps([list(words), str(here), str(stdout), str(stderr)]), file=self.server.stdin, flush=True)
        code = int(self._told())
        found = Outcome(code, stdout.read_bytes(), stderr.read_bytes(), written(files, here))
        shutil.rmtree(here)
        return found

    def close(self) -> None:
        """End the process."""
        self.server.communicate()


def written(files: Path, here: Path) -> dict[str, bytes]:
    """The files of a folder that are not in ``files`` as they are."""
    found = {path.relative_to(here): path.read_bytes() for path in sorted(here.rglob("*")) if path.is_file()}
    return {
        str(name): content
        for name, content in found.items()
        if not (files / name).is_file() or (files / name).read_bytes() != content
    }


def commands(seed: int, numbers: Sequence[int]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The commands of these numbers, each with a format; three of four without a mistake."""
    for number in numbers:
        random = Random(f"golden {seed} {number}")
        draw = drawn(random)
        while number % 4 and (draw.misses or sum(word.startswith("--") for word in draw.words) > PLAIN):
            draw = drawn(random)
        form = random.choice((*FORMS, *OWN_FORMS.get(draw.words[0], ())))
        yield number, draw.words if WRITING & set(draw.words) else (*draw.words, *form)


def differences(before: Outcome, after: Outcome) -> Iterator[str]:
    """Each difference between two outcomes, shortly."""
    if before.code != after.code:
        yield f"exit code {before.code} -> {after.code}"
    names = dict.fromkeys((*before.files, *after.files))
    told = [("stdout", before.stdout, after.stdout), ("stderr", before.stderr, after.stderr)]
    for name, one, two in (*told, *((name, before.files.get(name), after.files.get(name)) for name in names)):
        if one is None or two is None:
            yield f"{name}: {'only before' if two is None else 'only now'}"
        elif one != two:
            yield f"{name}: {first_difference(one, two)}"


def first_difference(before: bytes, after: bytes, around: int = 60) -> str:
    """The first line that differs, before and after, from a little before the place."""
    lines = [text.decode(errors="replace").splitlines(keepends=True) for text in (before, after)]
    longest = max(map(len, lines))
    one, two = next(
        pair
        for pair in zip(*(side + [""] * (longest - len(side)) for side in lines), strict=True)
        if len(set(pair)) > 1
    )
    place = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    begin = max(0, place - around // 2)
    return f"line {lines[0].index(one) + 1 if one else longest}: {one[begin:][:around]!r} -> {two[begin:][:around]!r}"


def main() -> int:
    """Compare the commands, and print the differences and figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--only", type=int)
    asked = parser.parse_args()
    numbers = range(asked.count) if asked.only is None else [asked.only]
    differing, codes = 0, []
    with tempfile.TemporaryDirectory() as made:
        files = Path(made) / "files"
        files.mkdir()
        stand_ins.place(files)
        trees = [Tree(tree.resolve(), Path(made)) for tree in (asked.before, ROOT)]
        for number, words in commands(asked.seed, numbers):
            before, after = (tree.outcome(words, files) for tree in trees)
            codes.append(after.code)
            found = list(differences(before, after))
            differing += bool(found)
            for said in found:
                print(f"{number}: osf {shlex.join(words)}\n    {said}", flush=True)
        for tree in trees:
            tree.close()
    counts = ", ".join(f"{codes.count(code)} with exit code {code}" for code in sorted(set(codes)))
    print(f"{len(codes)} commands ({counts}): {differing} differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
