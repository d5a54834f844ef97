"""Arguments of the command in a shell script, with its variables and arrays expanded; nothing is executed.

Assignments, arrays, ``${NAME:-default}``, arithmetic, and tests of texts and numbers in ``if`` are followed. Loops,
``case``, other commands and other tests are not: the branch of a test that nobody knows is left out. A variable that
the script does not set stays as ``$NAME``.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from osfmodel.entities.errors import DataError

LONGEST = 10**6
"""Maximum characters of a text that variables expand to."""
TOKEN = re.compile(
    r"(?P<skip>\\\r?\n|[ \t\r]+|(?<![^\s;&|()])#[^\n]*)"
    r"|(?P<end>\n|;;?|&&?|\|\|?|[()<>])"
    r"|(?P<word>(?:\\.|'[^']*'|\"(?:\\[\s\S]|[^\"\\])*\"|\$\(\((?:[^()]|\([^()]*\))*\)\)|\$\{(?:[^{}]|\{[^{}]*\})*\}"
    r"|\$\([^()]*\)|`[^`]*`|[^\s;&|()<>'\"`\\])+)"
    r"|(?P<other>.)",
    re.MULTILINE,
)
PIECE = re.compile(
    r"'(?P<plain>[^']*)'|\"(?P<double>(?:\\.|[^\"\\])*)\"|\\(?P<escaped>.)"
    r"|\$\(\((?P<sum>(?:[^()]|\([^()]*\))*)\)\)|\$\{(?P<braced>(?:[^{}]|\{[^{}]*\})*)\}|\$(?P<name>\w+|[@*#?])"
    r"|(?P<run>\$\([^()]*\)|`[^`]*`)",
    re.DOTALL,
)
HERE = re.compile(r"[^#(<]*<<-?\s*['\"]?([A-Za-z_]\w*)")
ASSIGNED = re.compile(r"(\w+)(\+?)=(.*)", re.DOTALL)
UNSET = re.compile(r"\$\w+")
SUMS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "=": operator.eq, "!=": operator.ne, "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt,
    "-ge": operator.ge, "-lt": operator.lt, "-le": operator.le,
}  # fmt: skip
DECLARING = frozenset(("export", "local", "readonly", "declare"))
SKIPPED = {"for": "done", "while": "done", "until": "done", "case": "esac"}
"""Words that begin what is not followed, and those that end it."""


class ShellScript:
    """A script as it is followed: its variables, and the commands that it would run."""

    def __init__(self, text: str) -> None:
        self.variables: dict[str, list[str]] = {}
        self.commands: list[list[str]] = []
        self._branches: list[tuple[bool, bool]] = []
        self._tests: list[tuple[str, bool]] = []
        self._until: list[str] = []
        self._join = ""
        found = TOKEN.finditer("\n".join(_without_documents(text)) + "\n")
        tokens = [(str(one.lastgroup), one[0]) for one in found if one.lastgroup != "skip"]
        self._follow(tokens)

    def _follow(self, tokens: Sequence[tuple[str, str]]) -> None:
        words: list[str] = []
        rest = iter(tokens)
        for kind, text in rest:
            if kind != "end":
                words.append(text)
            elif text == "(" and words and (match := ASSIGNED.fullmatch(words[-1])) and not match[3]:
                self._command(words[:-1])
                inside, words = list(_until_closed(rest)), []
                if self._followed:
                    self._assign(match[1], [one for word in inside for one in self._words(word)], bool(match[2]))
            elif text not in "()<>":
                self._command(words)
                words, self._join = [], text

    @property
    def _followed(self) -> bool:
        """Whether what comes next would run."""
        return not self._until and all(on for _, on in self._branches)

    def _command(self, words: list[str]) -> None:
        """Follow one command."""
        while words and words[0] in ("then", "else", "do", "{", "}", "fi", *SKIPPED.values()):
            self._turn(words[0])
            words = words[1:]
        if not words:
            return
        if words[0] in SKIPPED:
            self._until.append(SKIPPED[words[0]])
        elif self._until:
            return
        elif words[0] in ("if", "elif") or self._tests:
            if words[0] == "if":
                self._branches.append((not self._followed, False))
            self._tests.append((self._join, self._holds([one for word in words for one in self._words(word) or [""]])))
        elif self._followed:
            words = words[1:] if words[0] in DECLARING else words
            while words and (match := ASSIGNED.fullmatch(words[0])):
                self._assign(match[1], [self._text(match[3])], bool(match[2]))
                words = words[1:]
            found = [one for word in words for one in self._words(word)]
            self.commands += [found] if found else []

    def _turn(self, word: str) -> None:
        """Enter or leave a branch, or what is not followed."""
        if self._until:
            self._until.pop() if word == self._until[-1] else None
        elif word == "then" and self._branches:
            holds = self._tests[0][1] if self._tests else False
            for join, one in self._tests[1:]:
                holds = (holds or one) if join == "||" else (holds and one) if join == "&&" else one
            taken = self._branches[-1][0]
            self._branches[-1], self._tests = (taken or holds, holds and not taken), []
        elif word == "else" and self._branches:
            self._branches[-1] = (True, not self._branches[-1][0])
        elif word == "fi" and self._branches:
            self._branches.pop()

    def _holds(self, words: Sequence[str]) -> bool:
        """Whether a test holds, as far as texts and numbers say; False where they do not."""
        said = [UNSET.sub("", word) for word in words if word not in ("if", "elif", "[", "]", "[[", "]]", "test")]
        if said[:1] == ["!"]:
            return not self._holds(said[1:])
        if len(said) == 3 and said[1] in TESTS:
            numbers = said[1].startswith("-")
            if numbers and not all(re.fullmatch("-?[0-9]{1,18}", one) for one in (said[0], said[2])):
                return False
            first, second = (int(said[0]), int(said[2])) if numbers else (said[0], said[2])
            return TESTS[said[1]](first, second)
        if said[:1] == ["-z"]:
            return not "".join(said[1:])
        return said[:1] == ["-n"] and bool("".join(said[1:]))

    def _assign(self, name: str, values: list[str], more: bool) -> None:
        before = self.variables.get(name, [])
        joined = [*before, *values] if more and (len(values) != 1 or len(before) != 1) else values
        self.variables[name] = [before[0] + values[0]] if more and joined is values and before else joined

    def _words(self, raw: str) -> list[str]:
        """The words that one becomes: a quoted one stays, unless it is an array."""
        text = self._text(raw)
        whole = re.fullmatch(r"\"(?:\\.|[^\"\\])*\"|'[^']*'", raw, re.DOTALL) and "[@]" not in raw
        return [text] if whole else text.split()

    def _text(self, raw: str) -> str:
        found = PIECE.sub(self._piece, raw)
        if len(found) > LONGEST:
            raise DataError(f"{raw:.40} expands to more than {LONGEST:,} characters")
        return found

    def _piece(self, match: re.Match[str]) -> str:
        if match["double"] is not None:
            return PIECE.sub(lambda one: self._piece(one) if one["plain"] is None else one[0], match["double"])
        if match["plain"] is not None or match["escaped"] is not None:
            return match["plain"] if match["plain"] is not None else match["escaped"].strip("\n")
        if match["sum"] is not None:
            return self._sum(match["sum"])
        if match["run"] is not None:
            return "$COMMAND"
        name, default = match["name"], None
        if match["braced"] is not None:
            braced = re.fullmatch(r"(\w+)(\[[@*]\])?(?::?([-=])(.*))?", match["braced"], re.DOTALL)
            if braced is None:
                return "$" + "".join(re.findall(r"\w+", match["braced"])[:1])
            name, default = braced[1], braced[4]
        if name in self.variables and (default is None or "".join(self.variables[name])):
            return " ".join(self.variables[name])
        return f"${name}" if default is None else self._text(default)

    def _sum(self, text: str) -> str:
        """The value of an arithmetic expression of whole numbers; ``$SUM`` for one that nobody knows."""
        plain = re.sub(
            r"\$?\{?([A-Za-z_]\w*)\}?", lambda one: " ".join(self.variables.get(one[1], [f"${one[1]}"])), text
        )
        try:
            return str(_value(ast.parse(plain.strip().replace("/", "//"), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return "$SUM"


def _without_documents(text: str) -> Iterator[str]:
    """The lines without those that are a command's input (``<<EOT``)."""
    end = ""
    for line in text.splitlines():
        if not end:
            match = HERE.match(line)
            end = match[1] if match else ""
            yield line.replace("<<", " ") if match else line
        elif line.strip() == end:
            end = ""


def _until_closed(tokens: Iterator[tuple[str, str]]) -> Iterator[str]:
    for kind, text in tokens:
        if text == ")":
            return
        if kind != "end":
            yield text


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 10**12:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in SUMS:
        return SUMS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError


def arguments(text: str) -> dict[str, Any]:
    """The first values of the script's longest command, or of a file of arguments; True for those without one.

    Names are with ``_`` for ``-``. Raises DataError for variables that expand without end.
    """
    commands = ShellScript(text).commands
    bare = [word for command in commands if command[0].startswith("--") for word in command]
    words = bare or max(commands, key=lambda one: " ".join(one).count(" --"), default=[])
    found: dict[str, Any] = {}
    name = ""
    for word in " ".join(words).split():
        name, before = "", name
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = value if equals else True
        elif before:
            found[before] = word
    return found
