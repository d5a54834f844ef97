"""Advice on another tool's file that was given instead of one of osfmodel's own."""

from __future__ import annotations

from pathlib import Path

from osfmodel.entities.errors import DataError, ForeignFileError
from osfmodel.formats import IMPORT_FORMATS, Format, format_of


def import_advice(error: ForeignFileError) -> str:
    """The message of ``error``, with the command that converts the file if its format is known."""
    path = error.path
    try:
        name = format_of(path) if path.is_file() else None
    except DataError as unreadable:
        return str(unreadable)
    if name in (None, "osfmodel"):
        bundled = f"; 'osf list {error.kind}s' shows what comes with osfmodel"
        return f"{error}{bundled if error.kind != 'measurements' else ', or give a file of osf run'}"
    entry = IMPORT_FORMATS[name]
    return f"{path}: looks like {entry.label or name}: {_command(path, error.kind, entry)}"


def _command(path: Path, kind: str, entry: Format) -> str:
    """The command that converts it into a file of ``kind``; a run is imported with the files that it names."""
    stem = path.name.partition(".")[0] or kind
    if kind == "measurements":
        if not entry.runs:
            return "no runs are imported from that: leave it out, or give a file of osf run"
        return f"run `osf import {path} -o {path.with_name(stem)}/`, and give the {kind} file in that folder"
    target = path.with_name(f"{stem}-{kind}.json" if entry.runs else f"{stem}.json")
    target = target if target != path else path.with_name(f"{kind}.json")
    which = f" --kind {kind}" if entry.runs else ""
    return f"run `osf import {path}{which} -o {target}`, and give that file"
