"""Files packed with gzip, and tar archives, as streams: piece by piece, never on disk, in bounded memory.

No archive can increase the memory that it takes. The standard library's reader of tar keeps every header and reads an
extended header at the size that it claims; this one takes what archives of traces have (POSIX ustar and pax, GNU long
names) and skips or refuses the rest.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from osfmodel.entities.errors import DataError
from osfmodel.entities.files.profiles import LARGEST_FILE

MAGIC = b"\x1f\x8b"
GZIP = 31
"""zlib's number for a gzip header with the largest window."""
PIECE = 2**16
"""Maximum bytes to unpack at once."""
STEP = 2**14
"""Packed bytes to take at once: the rest that does not fit into a piece is copied for the next."""

TIGHTEST, SUSPECT = 200, 2**28
"""Compression ratio and size from which a file is taken for one made to fill memory or time; traces
reach 25 times."""


def unpacked(content: bytes) -> bytes:
    """The unpacked content, or ``content`` itself. Raises DataError if it is cut, damaged or too large."""
    if not content.startswith(MAGIC):
        return content
    steps = (content[start : start + STEP] for start in range(0, len(content), STEP))
    return b"".join(limited(streamed(steps), LARGEST_FILE, "the maximum for a log or a profile"))


def limited(pieces: Iterable[bytes], limit: int, why: str) -> Iterator[bytes]:
    """``pieces``, up to ``limit`` bytes. Raises DataError, which ends in ``why``, if there are more."""
    room = limit
    for piece in pieces:
        room -= len(piece)
        if room < 0:
            raise DataError(f"is larger than {limit >> 20} MiB when unpacked, {why}")
        yield piece


def streamed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """``pieces`` unpacked, each of at most some 16 KiB; unchanged if they are not packed.

    Several gzip files behind each other are one. Raises DataError for what is cut or damaged.
    """
    rest = iter(pieces)
    start = next(rest, b"")
    while len(start) < len(MAGIC) and (more := next(rest, b"")):
        start += more
    if start.startswith(MAGIC):
        yield from _unpacked(start, rest)
    else:
        yield start
        yield from rest


def _unpacked(content: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.decompressobj(GZIP)
    packed, given = len(content), 0

    def more() -> bytes:
        nonlocal packed
        piece = next(rest, b"")
        packed += len(piece)
        return piece

    while True:
        try:
            part = packer.decompress(content, PIECE)
        except zlib.error as error:
            raise DataError(f"begins like a gzip file but cannot be unpacked: {error}") from None
        given += len(part)
        if given > SUSPECT and given > TIGHTEST * packed:
            raise DataError(f"unpacks to more than {TIGHTEST} times its size, more than any log, profile or trace")
        yield part
        content = packer.unconsumed_tail
        if packer.eof:
            content = packer.unused_data or more()
            packer = zlib.decompressobj(GZIP)
            if not content or not MAGIC.startswith(content[: len(MAGIC)]):
                return  # padding, as gzip itself takes it
        elif not content and len(part) < PIECE:
            content = more()
            if not content:
                raise DataError("is a gzip file that was cut off")


BLOCK = 512
NAME, SIZE, CHECKSUM, KIND, MARK, PREFIX = (
    slice(0, 100), slice(124, 136), slice(148, 156), slice(156, 157), slice(257, 262), slice(345, 500)
)  # fmt: skip
USTAR = b"ustar"
FILES, FOLDER, EXTENDED, GLOBAL, LONG_NAME, LONG_LINK = (b"0", b"\0", b"7"), b"5", b"x", b"g", b"L", b"K"
SPECIAL = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a pipe"}
SPARSE = "GNU.sparse"
"""Prefix of the keys of sparse files, which are not supported."""
OUTSIDE = "its name leads out of the archive"
SIZELESS = "is a damaged tar archive: the size of a file is not a number: pack it again"
"""Reason for skipping a file whose name is absolute or has ``..``, as ``tar -P`` keeps them."""
LARGEST_HEADER = 2**16
"""Maximum bytes of a file's extended header."""
MOST_ENTRIES = 20_000
LONGEST_NAME = 200
"""Maximum characters of a name to show."""


def is_tar(start: bytes) -> bool:
    """Whether a file that starts so is a tar archive."""
    return len(start) >= BLOCK and start[MARK] == USTAR and _checks(start[:BLOCK])


@dataclass(slots=True)
class Bytes:
    """A stream of bytes that is taken some at a time."""

    pieces: Iterator[bytes]
    held: bytes = b""

    def take(self, count: int) -> Iterator[bytes]:
        """The next ``count`` bytes in pieces; fewer if the stream ends."""
        while count and (self.held or self._more()):
            part, self.held = self.held[:count], self.held[count:]
            count -= len(part)
            yield part

    def _more(self) -> bool:
        self.held = next((piece for piece in self.pieces if piece), b"")
        return bool(self.held)


@dataclass(slots=True)
class Body:
    """The content of a file in an archive, with ``left`` bytes to come. Raises DataError if the archive ends."""

    archive: Bytes
    name: str
    left: int

    def __iter__(self) -> Iterator[bytes]:
        for part in self.archive.take(self.left):
            self.left -= len(part)
            yield part
        if self.left:
            raise DataError(f"is a tar archive that was cut off in {self.name}")


@dataclass(slots=True)
class TarHeader:
    """The header of a file, with the extended headers before it."""

    kind: bytes = b""
    name: bytes = b""
    size: int = 0
    said: dict[str, bytes] = field(default_factory=dict)


def files(pieces: Iterator[bytes], tell: Callable[[str], None]) -> Iterator[tuple[str, Body]]:
    """(name, content) of each regular file; the rest of a file is skipped when the next is asked for.

    Links, devices and names that lead out of the archive are reported and left out. Raises DataError for an archive
    that is damaged, cut off, holds a file twice, more entries than any job has, or only files whose names lead out.
    """
    archive, seen, outside = Bytes(pieces), set[str](), 0
    for number, entry in enumerate(_entries(archive), 1):
        name, left = shown(entry.name), entry.size
        if number > MOST_ENTRIES:
            raise DataError(f"is a tar archive of more than {MOST_ENTRIES:,} entries, the maximum")
        if reason := _unread(entry):
            tell(f"{name}: left out: {reason}")
            outside += reason == OUTSIDE
        elif name in seen:
            raise DataError(f"is a tar archive that holds {name} twice")
        elif entry.kind in FILES:
            seen.add(name)
            body = Body(archive, name, entry.size)
            yield name, body
            left = body.left
        left += -entry.size % BLOCK
        _skip(archive, name, 0 if entry.kind in SPECIAL else left)
    if outside and not seen:
        raise DataError(
            "is a tar archive of files whose names lead out of it (absolute or with ..), so none is read: pack them "
            "with tar -C FOLDER -czf traces.tar.gz ."
        )


def shown(name: bytes) -> str:
    """A foreign name, safe to print: on one line, without codes for terminals, not too long."""
    text = name.decode("utf-8", "backslashreplace")
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text[-LONGEST_NAME:])


def _unread(entry: TarHeader) -> str:
    """The reason for skipping an entry; "" for files and folders."""
    parts = entry.name.split(b"/")
    if entry.kind in FILES and (b".." in parts or entry.name.startswith(b"/")):
        return OUTSIDE
    if entry.kind in (*FILES, FOLDER):
        return ""
    return f"it is {SPECIAL.get(entry.kind, 'of a kind that is not read')}"


def _entries(archive: Bytes) -> Iterator[TarHeader]:
    """The entries of files, with their full names."""
    entry, number = TarHeader(), 0
    while header := _header(archive):
        number += 1
        if number > 4 * MOST_ENTRIES:
            raise DataError(f"is a tar archive of more than {MOST_ENTRIES:,} entries, the maximum")
        entry.kind, entry.name, entry.size = header[KIND], _name(header), _number(header[SIZE])
        if entry.kind in (EXTENDED, GLOBAL, LONG_NAME, LONG_LINK):
            entry.said |= _extended(archive, entry)
            continue
        entry.name = entry.said.get("path", entry.name).rstrip(b"\0")
        entry.size = _decimal(entry.said["size"]) if "size" in entry.said else entry.size
        entry.kind = b"S" if SPARSE in entry.said else entry.kind
        yield entry
        entry = TarHeader()


def _header(archive: Bytes) -> bytes:
    """The next header; empty at the end of the archive."""
    block = b"".join(archive.take(BLOCK))
    if len(block) == BLOCK and not any(block):
        return b""
    if len(block) < BLOCK:
        raise DataError("is a tar archive that was cut off: its end mark is missing")
    if not _checks(block):
        raise DataError("is a damaged tar archive: a header has a wrong checksum")
    return block


def _checks(block: bytes) -> bool:
    """Whether the checksum of a header is right."""
    try:
        said = int(block[CHECKSUM].strip(b" \0") or b"0", 8)
    except ValueError:
        return False
    return said == sum(block) - sum(block[CHECKSUM]) + 8 * 32


def _name(header: bytes) -> bytes:
    name, prefix = (header[part].partition(b"\0")[0] for part in (NAME, PREFIX))
    return prefix + b"/" + name if prefix and header[MARK.stop : MARK.stop + 1] == b"\0" else name


def _number(text: bytes) -> int:
    """A size: octal digits, or base 256 if it is large."""
    if text[0] & 0x80:
        return int.from_bytes(text[1:], "big")
    try:
        size = int(text.strip(b" \0") or b"0", 8)
    except ValueError:
        size = -1
    if size < 0:
        raise DataError(SIZELESS)
    return size


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise DataError(SIZELESS)
    return int(text)


def _extended(archive: Bytes, entry: TarHeader) -> dict[str, bytes]:
    """The ``path``, ``size`` and sparse keys of an extended header, for the next file."""
    if entry.size > LARGEST_HEADER:
        raise DataError(f"is a tar archive with a header of {entry.size:,} bytes: the maximum is {LARGEST_HEADER:,}")
    content = b"".join(Body(archive, "a header", entry.size))
    _skip(archive, "a header", -entry.size % BLOCK)
    if entry.kind == LONG_NAME:
        return {"path": content.rstrip(b"\0")}
    records = _records(content) if entry.kind == EXTENDED else ()
    return {key: value for key, value in records if key in ("path", "size", SPARSE)}


def _records(content: bytes) -> Iterator[tuple[str, bytes]]:
    """The key=value records of a pax header, each after its length."""
    while content.strip(b"\0"):
        length, _, record = content.partition(b" ")
        end = _decimal(length) - len(length) - 1
        key, separator, value = record[: end - 1].partition(b"=")
        if end < 1 or end > len(record) or not separator:
            raise DataError("is a damaged tar archive: an extended header is not of keys and values")
        yield SPARSE if key.startswith(SPARSE.encode()) else key.decode("utf-8", "replace"), value
        content = record[end:]


def _skip(archive: Bytes, name: str, count: int) -> None:
    for _ in Body(archive, name, count):
        pass
