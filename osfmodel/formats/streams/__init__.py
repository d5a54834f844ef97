"""Find and open the files of a job: packed or not, in archives and folders. Read as streams, never unpacked on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from osfmodel.entities.errors import DataError
from osfmodel.entities.files.profiles import plain_text, reason
from osfmodel.formats.source_text import Files, Progress, Text, silent
from osfmodel.formats.streams import archives
from osfmodel.formats.streams.archives import STEP, limited, streamed

HEAD = 65_536
LARGEST_TRACE = 2**35
"""Maximum bytes of a file, unpacked."""
TOO_LARGE = "the maximum for a file of a job: record fewer steps"
ARCHIVES = (".tar", ".tar.gz", ".tgz")
MOST_FILES = 20_000
MOST_TOLD = 5
"""Maximum number of skipped files to report by name; only the number of the others is reported."""
ANY = "a file of a known format"

LONGEST_LINE = 2**20
"""Maximum bytes of a line."""

Pieces = Iterator[bytes]
Opened = Iterator[tuple[str, Pieces]]


class ByteCounter:
    """A counter of bytes read of all files, as they are on disk, that reports progress."""

    def __init__(self, paths: Iterable[Path], progress: Progress | None) -> None:
        self.progress, self.done = progress, 0
        self.total = sum(path.stat().st_size for path in paths if path.is_file()) if progress else 0

    def add(self, count: int) -> None:
        """Count bytes."""
        self.done += count
        if self.progress is not None:
            self.progress(self.done, max(self.done, self.total))


@dataclass(slots=True)
class Skipped:
    """Reports on the first few skipped files, and at the end the number of others."""

    tell: Callable[[str], None]
    count: int = 0

    def add(self, message: str) -> None:
        """Report a skipped file."""
        self.count += 1
        if self.count <= MOST_TOLD:
            self.tell(message)

    def end(self) -> None:
        """Report the number of others."""
        if self.count > MOST_TOLD:
            self.tell(f"and {self.count - MOST_TOLD:,} more are left out")


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of files in archives and folders: ``known`` (beginning) says which are wanted; ``tell`` gets others.

    ``what`` is a file that is wanted, such as "a trace of torch.profiler".
    """

    what: str
    known: Callable[[str], bool]
    tell: Callable[[str], None]
    meter: ByteCounter


def opened(
    files: Files, known: Callable[[str], bool], endings: Sequence[str], what: str = "a file of the format"
) -> Opened:
    """(name for people, content) of each file of a format in ``files``.

    In folders those whose names end in one of ``endings`` or as archives do. In archives and folders those that
    ``known`` recognises by their beginning; a remark says of any other that it is not ``what``. Take each to its end
    before the next. Raises DataError, with the path, for what cannot be read, and where there is no such file.
    """
    listed = [(path, [] if isinstance(path, Text) else _listed(path, endings)) for path in files.paths]
    meter = ByteCounter((file for _, inside in listed for file, _ in inside), files.progress)
    left = Skipped(files.tell)
    for path, inside in listed:
        if isinstance(path, Text):
            yield path.file, iter((path.content.encode("utf-8", "surrogatepass"),))
        for file, found in inside:
            yield from _checked(file, _in_file(file, found, Filter(what, known, left.add, meter)))
    left.end()


def paths_of_files(files: Files, known: Callable[[str], bool], endings: Sequence[str], what: str) -> Iterator[Path]:
    """The path of each file in ``files`` that must be read in place, such as a database; the rest as in ``opened``.

    Raises DataError, with the path, for what cannot be read, for a text in memory, and where there is no such file.
    """
    left = Skipped(files.tell)
    for path in files.paths:
        if isinstance(path, Text):
            raise DataError("is a database, which is read from a file only: give its path")
        listed = _listed(path, endings)
        wanted = [file for file, found in listed if not found or known(_text(head_of(file)))]
        if not wanted:
            raise DataError(f"{path}: is a folder without {what}")
        for file, _ in listed:
            if file not in wanted:
                left.add(f"{file}: left out: it is not {what}")
        yield from wanted
    left.end()


@contextmanager
def named(files: Files, name: str) -> Iterator[None]:
    """Put the name of a file before errors in it; a text in memory is named by whoever gave it."""
    try:
        yield
    except DataError as error:
        if isinstance(files.paths[0], Text):
            raise
        raise DataError(f"{name}: {error}") from None


def recognised(path: Path, formats: Mapping[str, Callable[[str], bool]], endings: Sequence[str]) -> str | None:
    """The name in ``formats``, sniffs by name, of a file, or of the first known one in an archive or folder.

    None for a file that none knows. Raises DataError, with the path, for what cannot be read, and for an archive or a
    folder that holds nothing they know.
    """
    sifting = Filter(ANY, lambda head: any(sniff(head) for sniff in formats.values()), silent, ByteCounter((), None))
    for file, _ in _listed(path, endings):
        for _, pieces in _checked(file, _in_file(file, True, sifting)):
            head = _text(peeked(pieces, HEAD)[0])
            return next(name for name, sniff in formats.items() if sniff(head))
    if path.is_dir():
        *others, last = formats
        listed = f"{', '.join(others)} or {last}" if others else last
        raise DataError(f"{path}: is a folder without {ANY}: none is of {listed}")
    return None


def head_of(path: Path) -> bytes:
    """The beginning of a file, unpacked. Raises DataError, with the path, if it cannot be read."""
    try:
        with _open(path) as file:
            return peeked(streamed(_read(file, ByteCounter((), None))), HEAD)[0]
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _listed(path: Path, endings: Sequence[str]) -> list[tuple[Path, bool]]:
    """(file, whether it was found in a folder) for each file at a path."""
    if not path.is_dir():
        return [(path, False)]
    wanted = (*endings, *ARCHIVES)
    try:
        inside = sorted(file for file in path.iterdir() if file.name.endswith(wanted) and file.is_file())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    if not inside:
        raise DataError(f"{path}: is a folder without {ANY}: expected names that end in {_shown(wanted)}")
    if len(inside) > MOST_FILES:
        raise DataError(f"{path}: is a folder of {len(inside):,} files, more than any job has")
    return [(file, True) for file in inside]


def _shown(endings: Sequence[str]) -> str:
    """Endings of names in a sentence, each once: ``.json(.gz), .et or a digit``."""
    known = dict.fromkeys(endings)
    plain = [one for one in known if one[0] == "." and not (one.endswith(".gz") and one[:-3] in known)]
    words = [f"{one}(.gz)" if f"{one}.gz" in known else one for one in plain]
    *others, last = [*words, *(["a digit"] if any(map(str.isdigit, known)) else [])]
    return f"{', '.join(others)} or {last}" if others else last


def _in_file(path: Path, found: bool, sifting: Filter) -> Opened:
    """The files in a file: itself, or those of an archive. One that was ``found`` in a folder may be unknown."""
    with _open(path) as file:
        start, pieces = peeked(streamed(_read(file, sifting.meter)), archives.BLOCK)
        if archives.is_tar(start):
            yield from _in_archive(path, pieces, sifting)
        elif found:
            yield from _if_known(str(path), pieces, sifting)
        else:
            yield str(path), limited(pieces, LARGEST_TRACE, TOO_LARGE)


def _in_archive(path: Path, pieces: Pieces, sifting: Filter) -> Opened:
    none = True
    for name, body in archives.files(pieces, lambda message: sifting.tell(f"{path}: {message}")):
        for trace in _if_known(f"{path}:{name}", streamed(body), sifting):
            none = False
            yield trace
    if none:
        raise DataError(f"is a tar archive without {sifting.what}")


def _if_known(name: str, pieces: Pieces, sifting: Filter) -> Opened:
    content, pieces = peeked(pieces, HEAD)
    if sifting.known(_text(content)):
        yield name, limited(pieces, LARGEST_TRACE, TOO_LARGE)
    else:
        sifting.tell(f"{name}: left out: it is not {sifting.what}")


def _text(content: bytes) -> str:
    return plain_text(content[:HEAD], "replace")


def peeked(pieces: Pieces, count: int) -> tuple[bytes, Pieces]:
    """The first ``count`` bytes at least, if there are so many, and all pieces including them."""
    start = b""
    while len(start) < count and (piece := next(pieces, None)) is not None:
        start += piece
    return start, chain((start,), pieces)


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"cannot be read: {reason(path, error)}") from None


def _read(file: BinaryIO, meter: ByteCounter) -> Pieces:
    while True:
        try:
            content = file.read(STEP)
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror or error}") from None
        if not content:
            return
        meter.add(len(content))
        yield content


def _checked(path: Path, traces: Opened) -> Opened:
    """The traces, with the path added to errors in the file itself."""
    try:
        yield from traces
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def lines_of(pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """(number, line, whether it ended) for each line that is not empty, from 1 on, in bounded memory.

    Only the last line may lack its end. Raises DataError, with the number, for a line of more than LONGEST_LINE bytes.
    """
    number, held = 1, b""
    for piece in pieces:
        *whole, rest = piece.split(b"\n")
        if whole:
            whole[0] = held + whole[0]
            held = b""
        for line in whole:
            _require_short(number, line)
            if line.strip():
                yield number, line, True
            number += 1
        held += rest
        _require_short(number, held)
    if held.strip():
        yield number, held, False


def _require_short(number: int, line: bytes) -> None:
    if len(line) > LONGEST_LINE:
        raise DataError(f"line {number}: is longer than {LONGEST_LINE >> 20} MiB, the maximum for a line of a log")
