"""Find, read and write profiles by name or path; text as shells and terminals leave it."""

from __future__ import annotations

import codecs
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import REMEDY, DataError, ForeignFileError, OsfError, UsageError
from osfmodel.entities.files import documents
from osfmodel.entities.files.documents import PlanFile
from osfmodel.entities.lookup import did_you_mean, letters, nearest
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload

LARGEST_FILE = 64 * 2**20
"""Largest size in bytes of a file of ours, or of a log."""
ENCODINGS = (
    (re.compile(re.escape(codecs.BOM_UTF8)), "utf-8-sig"),
    (re.compile(re.escape(codecs.BOM_UTF32_LE) + b"|" + re.escape(codecs.BOM_UTF32_BE)), "utf-32"),
    (re.compile(re.escape(codecs.BOM_UTF16_LE) + b"|" + re.escape(codecs.BOM_UTF16_BE)), "utf-16"),
    (re.compile(rb"(?:[\t\r\n -~]\0){8}"), "utf-16-le"),
    (re.compile(rb"(?:\0[\t\r\n -~]){8}"), "utf-16-be"),
)
"""Encodings other than plain UTF-8, by how such a file begins: PowerShell's is UTF-16 with a mark."""
ESCAPE = re.compile(r"\x1b(?:\[[0-?]{0,40}[ -/]{0,8}[@-~]|\][^\x07\x1b\r\n]{0,400}(?:\x07|\x1b\\)|[ -/]?[0-~])?")
"""A terminal's escape sequence: colours, movements of the cursor, titles, links."""


def as_utf8(content: bytes) -> bytes:
    """``content`` in UTF-8 without a byte order mark, if it begins as text of another encoding; else as it is."""
    for sign, encoding in ENCODINGS:
        if sign.match(content):
            return content.decode(encoding, "replace").encode("utf-8", "replace")
    return content


def plain_text(content: bytes, errors: str = "strict") -> str:
    """The text in ``content`` without escape sequences. Raises UnicodeDecodeError, unless ``errors`` replaces."""
    text = as_utf8(content).decode("utf-8", errors)
    return ESCAPE.sub("", text) if "\x1b" in text else text


Decoded = TypeVar("Decoded")
LOGGER = logging.getLogger("osfmodel")
"""Silent unless the program that uses the library sets a handler: the files that names led to, at level DEBUG."""
LOGGER.addHandler(logging.NullHandler())
FOLDERS = {
    "architecture": "architectures",
    "workload": "workloads",
    "cluster": "clusters",
    "measurements": "measurements",
}
SEARCH_PATH = "OSFMODEL_PROFILES"
"""Environment variable: folders searched before the bundled profiles, with workloads/, clusters/, measurements/."""
HEAD = 65_536
"""Bytes at the start of a file that are searched for signs of its writer."""
MOST_NEAR = 6
"""Maximum number of profile names that are suggested for an unknown one that they contain."""


def load_workload(name_or_path: str | os.PathLike[str]) -> Workload:
    """A bundled workload by name, or one from a JSON file.

    Raises UsageError for an unknown name, DataError for a file that cannot be used.
    """
    return read_own(locate(name_or_path, "workload"), documents.decode_workload, "workload")


def load_plan(path: str | os.PathLike[str], workload: Workload | None = None) -> Plan:
    """A plan from a JSON file, which may be the output of ``osf tune``; if a workload is given, one for that.

    Raises DataError.
    """
    return load_plan_file(path, workload).plan


def load_plan_file(path: str | os.PathLike[str], workload: Workload | None = None) -> PlanFile:
    """The content of a plan file, as :func:`load_plan` reads it. Raises DataError."""

    def decoded(content: bytes) -> PlanFile:
        if content.lstrip().startswith(b"{") and b'"buckets"' not in content:
            raise DataError(
                "holds settings of a framework, not a plan: write the plan with osf tune ... --format json -o FILE"
            )
        found = documents.decode_plan_file(content)
        if workload is not None:
            for plan in (found.plan, *found.others.values()):
                plan.require_valid(workload)
        return found

    return read(Path(path), decoded)


def save(noun: Workload | Cluster | Plan, path: str | os.PathLike[str]) -> None:
    """Write a noun as JSON that the load functions read. Raises DataError; never leaves half a file."""
    write_text(path, documents.encode(documents.document_of(noun)))


def names(kind: str) -> dict[str, Path]:
    """Every profile of ``kind`` ("workload" or "cluster") on the search path, by name."""
    found: dict[str, Path] = {}
    for folder in (folder / FOLDERS[kind] for folder in _folders()):
        for file in os.listdir(folder) if folder.is_dir() else []:
            name, suffix = os.path.splitext(file)
            if suffix == ".json":
                found.setdefault(name, folder / file)
    return dict(sorted(found.items()))


def read(path: Path, decode: Callable[[bytes], Decoded]) -> Decoded:
    """``decode`` applied to the content of ``path``, text in UTF-8; every error names the file."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise DataError(f"{path} is larger than {LARGEST_FILE >> 20} MiB, the maximum for a profile")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {reason(path, error)}") from None
    try:
        decoded = decode(as_utf8(content))
    except ForeignFileError:
        raise
    except OsfError as error:
        raise DataError(f"{path}: {error}") from None
    LOGGER.debug("read %s", path)
    return decoded


def reason(path: Path, error: OSError) -> str:
    """The reason why ``path`` cannot be read; if it is not there, files of like names beside it."""
    said = error.strerror or str(error)
    if not isinstance(error, FileNotFoundError):
        return f"{said}: give a file in it" if isinstance(error, IsADirectoryError) else said
    beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    near = did_you_mean(str(path.with_name(name)) for name in nearest(path.name, beside, most=3, cutoff=0.8))
    return f"{said}: {near or 'check the path'}"


def read_own(path: Path, decode: Callable[[bytes], Decoded], kind: str) -> Decoded:
    """One of osfmodel's own files of ``kind``. Raises ForeignFileError for another tool's file, or DataError."""

    def decoded(content: bytes) -> Decoded:
        try:
            return decode(content)
        except UsageError:
            raise
        except OsfError as error:
            if b'"schema_version"' in content:
                raise
            raise ForeignFileError(path, kind, str(error).removesuffix(f"; {REMEDY}")) from None

    require_file(path, kind)
    return read(path, decoded)


def require_file(path: Path, kind: str) -> None:
    """Raise DataError if ``path`` is a folder; it names the files of ``kind`` in it, or says how to make one."""
    if not os.path.isdir(path):
        return
    held = [str(inner) for inner in sorted(path.glob("*.json")) if _is_own(inner, kind)]
    if held:
        raise DataError(f"{path} is a folder: give {' or '.join(held[:MOST_NEAR])}")
    into, what = ("job/", f"the {kind} file in it") if kind == "measurements" else (f"{kind}.json", "that file")
    which = "" if kind == "measurements" else f" --kind {kind}"
    advice = f"`osf import {path}{which} -o {into}` reads a folder with the traces of one job"
    raise DataError(f"{path} is a folder: {advice}, and then give {what}")


def _is_own(path: Path, kind: str) -> bool:
    """Whether a file begins as osfmodel writes a file of ``kind``."""
    try:
        with path.open("rb") as file:
            return re.search(rb'"kind": ?"%s"' % kind.encode(), file.read(HEAD)) is not None
    except OSError:
        return False


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write all of ``text`` or nothing, as :func:`write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write all of ``content`` or nothing: to a temporary name beside ``path``, then renamed. Raises DataError.

    A target that is not a regular file (a pipe, /dev/stdout) cannot be replaced and is written to as it is.
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)
        else:
            _replace(Path(os.path.realpath(target)), content)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None


def _replace(target: Path, content: bytes) -> None:
    import tempfile

    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def files_called(name: str, *kinds: str) -> list[Path]:
    """The files of the profiles of these kinds, or of all, that have this name; the first is the one that it means."""
    folders = [FOLDERS[kind] for kind in kinds or FOLDERS]
    places = [folder / kind for folder in _folders() for kind in folders] if Path(name).name == name else []
    return [path for place in places if os.path.isfile(path := place / f"{name}.json")]


def missing_folders() -> list[str]:
    """A sentence for each folder of the search path that does not exist."""
    extra = [folder for folder in os.environ.get(SEARCH_PATH, "").split(os.pathsep) if folder]
    return [f"{SEARCH_PATH} names {folder}, which is not a folder" for folder in extra if not Path(folder).is_dir()]


def _folders() -> list[Path]:
    extra = [Path(folder) for folder in os.environ.get(SEARCH_PATH, "").split(os.pathsep) if folder]
    return [*extra, *_bundled()]


def _bundled() -> list[Path]:
    package = Path(__file__).resolve().parents[2]
    # Installed, the profiles lie inside the package; in a source tree beside it.
    return [package / "_profiles", package.parent / "profiles"]


def written(path: str) -> tuple[int, ...]:
    """When a file was written, and its size: what is kept of it holds no longer than that; () without one."""
    found = Path(path)
    return (found.stat().st_mtime_ns, found.stat().st_size) if found.is_file() else ()


def bundled_file(name: str) -> Path:
    """A file or folder beside the bundled profiles. Raises DataError without it: predictions would differ."""
    for folder in _bundled():
        if (path := folder / name).exists():
            return path
    raise DataError(f"{name} is missing from this installation, and predictions need it: install osfmodel again")


def locate(name_or_path: str | os.PathLike[str], kind: str) -> Path:
    """The file of a profile by name, or the path given. Raises UsageError for an unknown name."""
    text = os.fspath(name_or_path)
    path = Path(text)
    if not isinstance(name_or_path, str) or text.endswith(".json") or path.name != text:
        return path
    if found := files_called(text, kind):
        return found[0]
    if os.path.exists(path):
        return path
    known = list(names(kind))
    near = [name for name in known if text.lower() in name][:MOST_NEAR] or nearest(text.lower(), known, most=3)
    if kind == "workload" and letters(text) in map(letters, names("architecture")):
        near = [f"{text}:h100", *near]  # it lacks a GPU
    advice = did_you_mean(near) or f"'osf list {FOLDERS[kind]}' shows those there are"
    words = ", or describe one as in ring:50us,10Gbps" if kind == "cluster" else ""
    raise UsageError(f"no {kind} named {text!r:.100}, and no file of that name: {advice}{words}")
