"""A JSON object with one long array, read element by element from a stream of bytes in bounded memory.

Elements are decoded many at a time: the stream is cut behind what may be the end of one, ``}`` before ``, {``, and what
lies before it is decoded as a whole. If the cut is inside of a text or of a nested object, that is not JSON, so a cut
that decodes is a right one. What does not decode is parsed value by value, which finds the end of each exactly, mends
what writers are known to get wrong (no value at all, ``nan``, ``inf``, text that is not UTF-8, which becomes U+FFFD)
and says where the fault is.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from osfmodel.entities.errors import DataError

Item = TypeVar("Item")
CHUNK = 2**16
"""Bytes to decode at once, unless an element is longer: few enough for a processor's cache."""
LONGEST = 2**22
"""Maximum characters of an element, or of a value beside the array; parsed, each can take some fifty bytes."""
MOST_BESIDE = 2 * LONGEST
"""Maximum characters before and after the array."""
CUT = re.compile(rb"\}\s*,\s*(?=\{)")
TAIL = 2**13
"""Bytes at the end of a chunk that are searched for a place to cut it."""
SPACE = re.compile(r"[ \t\r\n]*")
NO_NUMBER = re.compile(r"-?(?:nan|inf(?:inity)?)(?=[\s,}\]])", re.IGNORECASE)
TRIES = 2
MOST_MENDED = 64
"""Maximum number of values to repair in one element; with more, the file counts as damaged."""
SHORT = 12
"""Maximum characters of a number or a word that was cut off."""
CUT_OFF = "what wrote it did not end; take the trace again"
DECODER = json.JSONDecoder(parse_constant=lambda _: None, strict=False)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause garbage collection: it would search all decoded data, again and again, and find nothing."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


class Cursor:
    """A place in a stream of bytes, with the text from there on, as far as it was needed."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.text, self.place = "", 0
        self.passed = 0
        self._pieces, self._held = pieces, b""

    @property
    def passed_here(self) -> int:
        """Characters before this place."""
        return self.passed + self.place

    def peek(self) -> str:
        """The next character that is not a space; "" at the end."""
        while True:
            self.place = SPACE.match(self.text, self.place).end()  # type: ignore[union-attr]
            if self.place < len(self.text):
                return self.text[self.place]
            if not self._more():
                return ""

    def value(self, what: str) -> Any:
        """The JSON value that begins here, called ``what`` in errors."""
        self.peek()
        mended = 0
        while True:
            try:
                value, end = DECODER.raw_decode(self.text, self.place)
                if end == len(self.text) and self._more():  # a number may go on
                    continue
            except json.JSONDecodeError as error:
                if mended < MOST_MENDED and self._mend(error):
                    mended += 1
                elif len(self.text) - self.place > LONGEST or not self._twice():
                    raise self._fault(what, error) from None
            except RecursionError:
                raise DataError(f"{what}: is nested too deeply") from None
            except ValueError:
                raise DataError(f"{what}: holds a number with too many digits") from None
            else:
                return self._taken(what, value, end)

    def _taken(self, what: str, value: Any, end: int) -> Any:
        if end - self.place > LONGEST:
            raise DataError(f"{what}: is longer than {LONGEST >> 20} MiB, the maximum for one value")
        if not self.text.isascii():
            found = self.text[self.place : end].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            if found != self.text[self.place : end]:
                value = DECODER.decode(found)
        self.place = end
        return value

    def over(self, close: str, what: str) -> None:
        """Skip the comma after ``what``, or stop at ``close``. Raises DataError for anything else."""
        found = self.peek()
        if found == ",":
            self.place += 1
        elif not found:
            raise DataError(f"was cut off behind {what}: {CUT_OFF}")
        elif found != close:
            raise DataError(f"{what}: is followed by {self.text[self.place : self.place + 40]!r}, not by a comma")

    def chunk(self) -> bytes:
        """The next CHUNK bytes, fewer at the end; the place stays."""
        content = self.text[self.place :].encode("utf-8", "surrogateescape") + self._held
        self.passed, self.text, self.place = self.passed_here, "", 0
        parts, length = [content], len(content)
        while length < CHUNK and (piece := next(self._pieces, None)) is not None:
            parts.append(piece)
            length += len(piece)
        self._held = b"".join(parts)
        return self._held

    def go_on(self, rest: bytes) -> None:
        """Move to the start of ``rest``, the end of the last chunk."""
        self.passed += len(self._held) - len(rest)
        self._held = rest

    def _more(self) -> bool:
        """Read more, and return whether there was any; text before the place is dropped."""
        piece = b"" if self._held[4:] else next(self._pieces, None)
        if piece is None and not self._held:
            return False
        content = self._held + (piece or b"")
        whole = len(content) if piece is None else _whole(content)
        self.passed, self.text, self.place = (
            self.passed_here, self.text[self.place :] + content[:whole].decode("utf-8", "surrogateescape"), 0,
        )  # fmt: skip
        self._held = content[whole:]
        return True

    def _twice(self) -> bool:
        """Double the text in memory at most, and return whether there was more; doubling limits repeated parsing."""
        enough = 2 * (len(self.text) - self.place)
        found = self._more()
        while found and len(self.text) < enough and self._more():
            pass
        return found

    def _mend(self, error: json.JSONDecodeError) -> bool:
        """Replace a missing value, or a wrong number, by null, and return whether that was the error."""
        found = NO_NUMBER.match(self.text, error.pos)
        missing = self.text[max(0, error.pos - SHORT) : error.pos].rstrip()[-1:] == ":"
        if error.msg != "Expecting value" or not (found or (missing and self.text[error.pos : error.pos + 1] in ",}")):
            return False
        end = found.end() if found else error.pos
        if end >= len(self.text):
            return False
        self.text = f"{self.text[: error.pos]}null{self.text[end:]}"
        return True

    def _fault(self, what: str, error: json.JSONDecodeError) -> DataError:
        rest = self.text[error.pos :].strip()
        if len(self.text) - self.place > LONGEST:
            return DataError(
                f"{what}: is longer than {LONGEST >> 20} MiB or not JSON: {error.msg.lower()}: {rest[:40]!r}"
            )
        if error.msg.startswith("Unterminated string") or (len(rest) < SHORT and not set("{}[],:") & set(rest)):
            return DataError(f"was cut off in {what}: {CUT_OFF}")
        return DataError(f"{what}: is not JSON: {error.msg.lower()}: {rest[:40]!r}")


def _whole(content: bytes) -> int:
    """Length of ``content`` without an incomplete character at its end."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte >= 0xC0:  # begins one of several bytes
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(content) - (back if needed > back else 0)
        if byte < 0x80:
            break
    return len(content)


class ArrayStream(Generic[Item]):
    """The elements of ``member`` of the JSON object in ``pieces``.

    decode:  (an array in JSON) -> its elements; None where it refuses any
    convert: (an element, parsed) -> the same; raises DataError for anything else
    header:  the other members; those behind the array are there when the elements have ended
    """

    def __init__(
        self,
        pieces: Iterator[bytes],
        member: str,
        decode: Callable[[bytes], list[Item] | None],
        convert: Callable[[Any], Item],
    ) -> None:
        self.header: dict[str, Any] = {}
        self._cursor, self._member = Cursor(pieces), member
        self._decode, self._convert = decode, convert

    def batches(self) -> Iterator[tuple[int, list[Item]]]:
        """(number of the first, elements) as they come, from 1 on; at first no elements, when the header is there.

        Raises DataError, which names the element, for anything but such an object, and if it was cut off.
        """
        cursor, beside, found = self._cursor, 0, False
        self._begin()
        while cursor.peek() != "}":
            start = cursor.passed_here
            name = self._name()
            if name == self._member and found:
                raise DataError(f"has {name!r} twice")
            if name == self._member and cursor.peek() == "[":
                found = True
                yield from self._array()
            else:
                self.header[name] = cursor.value(f"{name[:40]!r}")
                beside += cursor.passed_here - start
            if beside > MOST_BESIDE:
                raise DataError(
                    f"has more than {MOST_BESIDE >> 20} MiB beside {self._member!r}, more than any trace has"
                )
            cursor.over("}", f"{name[:40]!r}")
        self._end(found)

    def _begin(self) -> None:
        cursor = self._cursor
        if cursor.peek() == "\ufeff":
            cursor.place += 1
        if cursor.peek() != "{":
            raise DataError("is not a JSON object {...}" if cursor.peek() else "is empty")
        cursor.place += 1

    def _name(self) -> str:
        name = self._cursor.value("a name beside the events")
        if not isinstance(name, str) or self._cursor.peek() != ":":
            if not self._cursor.peek():
                raise DataError(f"was cut off in {name!r:.60}: {CUT_OFF}")
            raise DataError(f"{name!r:.60}: is not a name with a value")
        self._cursor.place += 1
        return name

    def _end(self, found: bool) -> None:
        self._cursor.place += 1
        if self._cursor.peek():
            raise DataError("has something behind the end of its JSON object")
        if not found:
            raise DataError(f"has no list {self._member!r}")

    def _array(self) -> Iterator[tuple[int, list[Item]]]:
        number = 1
        self._cursor.place += 1
        yield number, []
        while True:
            with collector_paused():
                items = self._fast() or self._slow(number)
            if not items:
                self._cursor.place += 1
                return
            yield number, items
            number += len(items)

    def _fast(self) -> list[Item] | None:
        """The elements of the next chunk; None if they have to be parsed one by one."""
        content = self._cursor.chunk()
        cuts = list(CUT.finditer(content, max(0, len(content) - TAIL))) or list(CUT.finditer(content))
        for cut in cuts[: -1 - TRIES : -1]:
            items = self._decode(b"".join((b"[", memoryview(content)[: cut.start() + 1], b"]")))
            if items:
                self._cursor.go_on(content[cut.end() :])
                return items
        return None

    def _slow(self, number: int) -> list[Item]:
        """The elements parsed one by one, some chunk of them; none at the end of the array."""
        items: list[Item] = []
        cursor = self._cursor
        enough = cursor.passed_here + CHUNK
        while cursor.peek() != "]" and not (items and cursor.passed_here >= enough):
            what = f"event {number + len(items):,}"
            value = cursor.value(what)
            try:
                items.append(self._convert(value))
            except DataError as error:
                raise DataError(f"{what}: {error}") from None
            cursor.over("]", what)
        return items
