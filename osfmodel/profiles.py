"""Profiles by name or path: where they are looked for, read and written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from osfmodel import documents
from osfmodel.cluster import Cluster, Link
from osfmodel.cost.collectives import FORMULAS
from osfmodel.errors import DataError, OsfError, UsageError
from osfmodel.plan import Plan
from osfmodel.units import parse_bandwidth, parse_time
from osfmodel.workload import Workload

Noun = TypeVar("Noun", Workload, Cluster, Plan)
FOLDERS = {"workload": "workloads", "cluster": "clusters"}
SEARCH_PATH = "OSFMODEL_PROFILES"
"""Environment variable: folders that are searched before the bundled profiles, each with workloads/ and clusters/."""
LARGEST_FILE = 256 * 2**20


def load_workload(name_or_path: str | os.PathLike[str]) -> Workload:
    """A bundled workload by name, or one from a JSON file.

    Raises UsageError for an unknown name, DataError for a file that cannot be used.
    """
    return read(_locate(name_or_path, "workload"), documents.decode_workload)


def load_cluster(name_or_path: str | os.PathLike[str]) -> Cluster:
    """A bundled cluster by name, one from a JSON file, or one in words: ``"ring:50us,10Gbps"``.

    The words are a textbook algorithm, the latency and the bandwidth of the one link between all workers. Raises
    UsageError for an unknown name or a bad quantity, DataError for a file that cannot be used.
    """
    model, separator, words = str(name_or_path).partition(":")
    if separator and model in FORMULAS:
        return _cluster_in_words(model, words)
    return read(_locate(name_or_path, "cluster"), documents.decode_cluster)


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """A plan from a JSON file, which may be the output of ``osf tune``. Raises DataError."""
    return read(Path(path), documents.decode_plan)


def save(noun: Workload | Cluster | Plan, path: str | os.PathLike[str]) -> None:
    """Write a noun as JSON that the load functions read. Raises DataError; never leaves half a file."""
    if isinstance(noun, Workload):
        document = documents.workload_document(noun)
    elif isinstance(noun, Cluster):
        document = documents.cluster_document(noun)
    else:
        document = documents.plan_document(noun)
    write_text(path, documents.encode(document))


def names(kind: str) -> dict[str, Path]:
    """Every profile of ``kind`` ("workload" or "cluster") on the search path, by name."""
    found: dict[str, Path] = {}
    for folder in _folders():
        for path in sorted((folder / FOLDERS[kind]).glob("*.json")):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def read(path: Path, decode: Callable[[bytes], Noun]) -> Noun:
    """``decode`` applied to the content of ``path``; every error names the file."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise DataError(f"{path} is larger than {LARGEST_FILE >> 20} MiB, which no profile is")
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        return decode(content)
    except OsfError as error:
        raise DataError(f"{path}: {error}") from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write all of ``text`` or nothing: to a temporary name beside ``path``, then renamed. Raises DataError.

    What is not a regular file (a pipe, /dev/stdout) cannot be replaced and is written to as it is.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
        else:
            _replace(target, text)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None


def _replace(target: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _folders() -> list[Path]:
    extra = [Path(folder) for folder in os.environ.get(SEARCH_PATH, "").split(os.pathsep) if folder]
    here = Path(__file__).resolve().parent
    # Installed, the profiles lie inside the package; in a source tree beside it.
    return [*extra, here / "_profiles", here.parent / "profiles"]


def _locate(name_or_path: str | os.PathLike[str], kind: str) -> Path:
    text = os.fspath(name_or_path)
    path = Path(text)
    if not isinstance(name_or_path, str) or text.endswith(".json") or path.name != text or path.is_file():
        return path
    for folder in _folders():
        candidate = folder / FOLDERS[kind] / f"{text}.json"
        if candidate.is_file():
            return candidate
    known = list(names(kind))
    near = [name for name in known if text in name][:3] or get_close_matches(text, known, n=3)
    advice = f"did you mean {' or '.join(near)}?" if near else f"'osf list {FOLDERS[kind]}' shows those there are"
    raise UsageError(f"no {kind} named {text!r}, and no file of that name: {advice}")


def _cluster_in_words(model: str, words: str) -> Cluster:
    parts = words.split(",")
    if len(parts) != 2:
        raise UsageError(
            f"'{model}:{words}' is not a cluster: write {model}:LATENCY,BANDWIDTH, for example {model}:50us,10Gbps"
        )
    bandwidth = parse_bandwidth(parts[1])
    if not bandwidth:
        raise UsageError(f"a bandwidth of {parts[1]!r} moves nothing: it must be above 0")
    return Cluster(f"{model}:{words}", model, between_nodes=Link(parse_time(parts[0]), 1 / bandwidth))
