"""Pickles of plain data, read by a small machine that knows no class and calls nothing.

Python's own unpickler is not used: an index of its memo can ask for any memory, and a key of deeply nested tuples ends
the process. Here the memo is a dictionary, keys are texts and numbers, and each step makes at most one object of some
64 bytes; their number is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from struct import Struct
from struct import error as TooShort  # noqa: N812
from typing import Any

from osfmodel.entities.errors import DataError

LONGEST_NAME = 120
"""Maximum characters of a class or a function to quote."""
KEYS = (str, int, float, type(None))


def is_pickle(head: str) -> bool:
    """Whether a file whose text begins so may be a pickle of protocol 2 to 5."""
    return head[:1] == "\ufffd" and "\x02" <= head[1:2] <= "\x05"


@dataclass(slots=True)
class PickleMachine:
    """The stack of a pickle that is read, with ``marks`` in it, its memo, and the place in its content."""

    content: bytes
    at: int = 0
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def number(self, form: Struct) -> Any:
        """The next number."""
        (value,) = form.unpack_from(self.content, self.at)
        self.at += form.size
        return value

    def take(self, form: Struct) -> bytes:
        """The next bytes, whose count is before them."""
        start = self.number(form) + self.at
        self.at, start = start, self.at
        return self.content[start : self.at]

    def since_mark(self) -> list[Any]:
        """The objects above the last mark, taken off the stack with it."""
        mark = self.marks.pop()
        found = self.stack[mark:]
        del self.stack[mark:]
        return found

    def tuple(self, count: int) -> None:
        """Put the last ``count`` objects into a tuple."""
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def append(self, items: list[Any]) -> None:
        """Add objects to the list below them."""
        target = self.stack[-1]
        if type(target) is not list:
            raise TypeError
        target.extend(items)

    def set(self, items: list[Any]) -> None:
        """Add keys and values to the dictionary below them."""
        target, keys = self.stack[-1], items[::2]
        if type(target) is not dict or not all(isinstance(key, KEYS) for key in keys):
            raise TypeError
        target.update(zip(keys, items[1::2], strict=True))

    def named(self, code: bytes) -> str:
        """The class or function that an operation asks for; else the name of the operation."""
        if code == b"c":
            words = [word.decode("utf-8", "replace") for word in self.content[self.at :].split(b"\n", 2)[:2]]
        elif code == b"\x93":
            words = [word if isinstance(word, str) else "?" for word in self.stack[-2:]]
        else:
            import pickletools

            words = [one.name for one in pickletools.opcodes if one.code == code.decode("latin-1")]
        return ".".join(words)[:LONGEST_NAME]


Operation = Callable[[PickleMachine], object]
BYTE, SHORT, INT, UNSIGNED, DOUBLE, FRAME = map(Struct, ("<B", "<H", "<i", "<I", ">d", "<Q"))


def _pushed(make: Callable[[PickleMachine], Any]) -> Operation:
    return lambda machine: machine.stack.append(make(machine))


def _number(form: Struct) -> Operation:
    def pushed(machine: PickleMachine) -> None:
        machine.stack.append(form.unpack_from(machine.content, machine.at)[0])
        machine.at += form.size

    return pushed


def _text(form: Struct) -> Operation:
    return _pushed(lambda machine: machine.take(form).decode("utf-8", "surrogatepass"))


def _recalled(form: Struct) -> Operation:
    def pushed(machine: PickleMachine) -> None:
        machine.stack.append(machine.memo[form.unpack_from(machine.content, machine.at)[0]])
        machine.at += form.size

    return pushed


def _noted(form: Struct) -> Operation:
    return lambda machine: machine.memo.__setitem__(machine.number(form), machine.stack[-1])


OPERATIONS: Mapping[int, Operation] = {
    ord(code): operation
    for code, operation in {
        b"\x80": lambda machine: machine.number(BYTE),
        b"\x95": lambda machine: machine.number(FRAME),
        b"(": lambda machine: machine.marks.append(len(machine.stack)),
        b"0": lambda machine: machine.stack.pop(),
        b"1": lambda machine: machine.since_mark(),
        b"N": lambda machine: machine.stack.append(None),
        b"\x88": lambda machine: machine.stack.append(True),
        b"\x89": lambda machine: machine.stack.append(False),
        b"K": _number(BYTE),
        b"M": _number(SHORT),
        b"J": _number(INT),
        b"G": _number(DOUBLE),
        b"\x8a": _pushed(lambda machine: int.from_bytes(machine.take(BYTE), "little", signed=True)),
        b"X": _text(UNSIGNED),
        b"\x8c": _text(BYTE),
        b"}": lambda machine: machine.stack.append({}),
        b"]": lambda machine: machine.stack.append([]),
        b")": lambda machine: machine.stack.append(()),
        b"t": lambda machine: machine.stack.append(tuple(machine.since_mark())),
        b"\x85": lambda machine: machine.tuple(1),
        b"\x86": lambda machine: machine.tuple(2),
        b"\x87": lambda machine: machine.tuple(3),
        b"a": lambda machine: machine.append([machine.stack.pop()]),
        b"e": lambda machine: machine.append(machine.since_mark()),
        b"s": lambda machine: machine.set([machine.stack.pop(-2), machine.stack.pop()]),
        b"u": lambda machine: machine.set(machine.since_mark()),
        b"q": _noted(BYTE),
        b"r": _noted(UNSIGNED),
        b"\x94": lambda machine: machine.memo.__setitem__(len(machine.memo), machine.stack[-1]),
        b"h": _recalled(BYTE),
        b"j": _recalled(UNSIGNED),
    }.items()
}
"""The operations that make plain data: dictionaries, lists, tuples, numbers and texts."""
STOP = ord(b".")


def plain_data(content: bytes, most: int, many: str) -> Any:
    """The data in a pickle of up to ``most`` steps; ``many`` ends the sentence about one of more.

    Raises DataError for one that is damaged, too large, or holds more than plain data.
    """
    machine = PickleMachine(content)
    try:
        for _ in range(most):
            code = content[machine.at]
            machine.at += 1
            if code == STOP:
                return machine.stack.pop()
            operation = OPERATIONS.get(code)
            if operation is None:
                break
            operation(machine)
        else:
            raise DataError(f"is a pickle with {many}")
        named = machine.named(bytes((code,)))
    except (LookupError, ValueError, TypeError, ArithmeticError, MemoryError, TooShort) as error:
        raise DataError(f"is a pickle that is cut off or damaged: {type(error).__name__}") from None
    raise DataError(f"is a pickle that holds more than plain data ({named}), which is not loaded")
