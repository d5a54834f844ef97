"""TRAINER_LOGS: the logs of trainers, by the names of their formats, and how a step is taken from one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from osfmodel.entities.errors import DataError
from osfmodel.entities.files.profiles import plain_text, read
from osfmodel.formats.reading import format_of
from osfmodel.formats.source_text import Text
from osfmodel.formats.streams.archives import unpacked
from osfmodel.formats.trainers import deepspeed, megatron, torchtitan, trainer_state
from osfmodel.formats.trainers.steps import LoggedRun

TRAINER_LOGS: Mapping[str, Callable[[Text], LoggedRun]] = {
    "torchtitan": torchtitan.log,
    "megatron": megatron.log,
    "trainer-state": trainer_state.log,
    "deepspeed": deepspeed.log,
}


def logged_run(path: Path) -> LoggedRun:
    """The run that a trainer's log shows. Raises DataError, with the path, for any other file."""
    form = format_of(path) or ""

    def decoded(content: bytes) -> LoggedRun:
        if form not in TRAINER_LOGS:
            raise DataError(f"is no log of a trainer that osfmodel reads ({', '.join(TRAINER_LOGS)})")
        try:
            return TRAINER_LOGS[form](Text(path.name, plain_text(unpacked(content))))
        except UnicodeDecodeError:
            raise DataError("is not text") from None

    return read(path, decoded)
