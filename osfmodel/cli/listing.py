"""The command ``osf list``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import click

from osfmodel.cli.app import NameOrFile, OneOf, emit, line, output_options, print_text, require_writable
from osfmodel.cli.groups import GroupedCommand, user_defaults
from osfmodel.cost import COST_MODELS
from osfmodel.cost.clusters import load_cluster
from osfmodel.cost.model import layout_of
from osfmodel.cost.nccl import ways
from osfmodel.cost.nccl_constants import BETWEEN_NODES
from osfmodel.cost.nccl_lines import choices
from osfmodel.counting import in_words
from osfmodel.counting.remarks import parts_of, remarks
from osfmodel.counting.words import architecture_name, architecture_of, model_of, parse_words
from osfmodel.diagnosis.doctor.curves import KNOWN_MACHINES
from osfmodel.engine import ENGINES
from osfmodel.entities.cluster import COLLECTIVES
from osfmodel.entities.compression import COMPRESSIONS
from osfmodel.entities.effects import EFFECTS
from osfmodel.entities.errors import OsfError, UsageError
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.files.configuration import SETTINGS
from osfmodel.entities.gpus import GPUS, gpu_name
from osfmodel.entities.lookup import letters, provider, suggestion, usable_others
from osfmodel.formats import IMPORT_FORMATS
from osfmodel.planning.tuning.launch import SNIPPETS
from osfmodel.show.listing import Counted, Entry, Listed
from osfmodel.show.schemas import ENDING, SCHEMAS, schema_text
from osfmodel.targets import CONFIG_TARGETS, target_name
from osfmodel.targets.named_plans import FAMILIES, NAMED_PLANS, called

CONFIG = "config"
"""The kind that lists the user's defaults: only when it is asked for."""
MODEL = "model"
"""The kind that shows the parts of one model."""
ALGORITHMS = "algorithms"
"""The kind that shows what NCCL takes for each collective on one cluster in words."""


class Listing(NamedTuple):
    """Entries of a kind, and a sentence for each profile that could not be read."""

    rows: list[Entry]
    problems: list[str]


def _profiles(kind: str, load: Callable[[Path], Any]) -> Callable[[], Listing]:
    """A listing of all profiles of a kind; one unreadable file does not hide the others."""

    def listing() -> Listing:
        rows, problems = [], profiles.missing_folders()
        for name, path in profiles.names(kind).items():
            try:
                rows.append(Entry(name, load(path)))
            except OsfError as error:
                problems.append(str(error))
        return Listing(rows, problems)

    return listing


def _entries(table: Mapping[str, Any]) -> Callable[[], Listing]:
    """A listing of a table: osfmodel's own entries, then those of other packages that can be used."""

    def listing() -> Listing:
        others, problems = usable_others(table)
        provided = [Entry(name, entry, provider(name, table)) for name, entry in others.items()]
        return Listing([*(Entry(*pair) for pair in table.items()), *provided], problems)

    return listing


def _plans() -> Listing:
    """Plans with a fixed name, then examples of plans with parameters."""
    families = [pair for family in FAMILIES.values() for pair in family.summaries().items()]
    examples = [Entry(name, SimpleNamespace(summary=text)) for name, text in families]
    return Listing([*(Entry(*pair) for pair in NAMED_PLANS.items()), *examples], [])


def _configuration() -> Listing:
    """The user's defaults: each key, its value, and the file that sets it."""
    found = user_defaults(click.get_current_context(silent=True))
    rows = []
    for key, setting in SETTINGS.items():
        words = found.words.get(key, ()) if found else ()
        origin = found.place(key) if found and words else "built in"
        entry = SimpleNamespace(value=" ".join(words) or setting.built_in, origin=origin, summary=setting.summary)
        rows.append(Entry(key, entry))
    return Listing(rows, [])


def _counted(name: str | None) -> Listed:
    """The parts of a model, and all of it. Raises UsageError or DataError for one that cannot be counted."""
    if name is None:
        raise UsageError("osf list model: give a name of 'osf list architectures', a config.json, or MODEL:GPU,lora=16")
    words = parse_words(name if in_words(name) else f"{name}:{next(iter(GPUS))}")
    bundled = profiles.names("architecture").get(architecture_name(words.model))
    known = None if bundled is None else architecture_of(bundled)
    model = model_of(words)
    parts = parts_of(model, known and (known.parameters, known.active))
    rows = {MODEL: [Entry(part.name, part) for part in parts]}
    batch = words.setting.batch if in_words(name) else 1
    return Listed(rows, remarks(words.text), whole=False, counted=Counted(words.model, model, parts[-1], batch))


def _chosen(name: str | None) -> Listed:
    """NCCL's algorithms for messages in one node, two and eight. Raises UsageError for other clusters."""
    example = "nccl:h100x8,400Gbps,ib"
    if name is None:
        raise UsageError(f"osf list algorithms: give a cluster that nccl prices, such as {example}")
    cluster = load_cluster(name)
    if cluster.nccl is None:
        words = KNOWN_MACHINES[name].words if name in KNOWN_MACHINES else ""
        meant = (
            f"its machines are {words}"
            if words.startswith("nccl:")
            else f"describe it as nccl:GPUxGPUS_PER_NODE,RATE, as {example}"
        )
        model = f"{cluster.cost_model} ({COST_MODELS[cluster.cost_model].summary})"
        raise UsageError(f"osf list algorithms {name}: it is priced by {model}, not by the model of NCCL: {meant}")
    gpus, network = cluster.gpus_per_node, cluster.nccl.nic_bandwidth is not None
    rows = [
        Entry(collective, SimpleNamespace(workers=gpus * nodes, **choice._asdict()))
        for collective in COLLECTIVES
        for nodes in ((1, 2, 8) if network else (1,))
        if gpus * nodes > 1
        for choice in choices(ways(cluster.nccl, layout_of(gpus * nodes, gpus), collective))
    ]
    return Listed({ALGORITHMS: rows}, [], whole=False)


LISTINGS: Mapping[str, Callable[[], Listing]] = {
    "workloads": _profiles("workload", lambda path: profiles.read(path, documents.decode_workload)),
    "architectures": _profiles("architecture", architecture_of),
    "clusters": _profiles("cluster", lambda path: profiles.read(path, documents.decode_cluster)),
    "plans": _plans,
    "targets": _entries(CONFIG_TARGETS),
    "engines": _entries(ENGINES),
    "cost-models": _entries(COST_MODELS),
    "gpus": lambda: Listing([Entry(name, GPUS[name]) for name in sorted(GPUS)], []),
    "fabrics": _entries(BETWEEN_NODES),
    "effects": _entries(EFFECTS),
    "compressions": _entries(COMPRESSIONS),
    "formats": _entries(IMPORT_FORMATS),
    "snippets": _entries(SNIPPETS),
    "schemas": _entries(SCHEMAS),
    CONFIG: _configuration,
}
"""The listings by kind: all that comes with osfmodel, and the user's defaults.

:data:`osfmodel.show.listing.LISTED` has the columns shown.
"""


SPELLED: Mapping[str, Callable[[str], str]] = {
    "architectures": architecture_name, "gpus": gpu_name, "plans": called, "targets": target_name,
}  # fmt: skip
"""Readers of the names of a kind as people and drivers write them."""


@click.command(name="list", cls=GroupedCommand)
@click.argument("kind", type=OneOf(LISTINGS, MODEL, ALGORITHMS), metavar="[KIND]", required=False)
@click.argument("name", required=False, type=NameOrFile("entry", lambda _begun: ()))
@partial(output_options, notes=False)
def list_command(kind: str | None, name: str | None, style: str | None, as_json: bool, output: str | None) -> None:
    """List everything that comes with osfmodel, or show one entry in full, with the source of its figures.

    KIND is workloads, clusters, plans, targets, engines, cost-models, effects, compressions, formats or snippets. Words
    are made of architectures, gpus and fabrics. 'osf list schemas' names JSON Schemas: give the name of one to print
    it, or -o FOLDER/ to write all. 'osf list config' shows your own defaults and their files. 'osf list model NAME'
    shows the parts of a model, as counted for one sample. 'osf list algorithms CLUSTER' shows what NCCL takes by size,
    and how much longer the next one would take.

    \b
    Example:
      osf list
      osf list architectures
      osf list model llama3-8b
      osf list clusters azure-a100-hdr
      osf list algorithms nccl:h100x8,400Gbps,ib
      osf list workloads --format json
      osf list schemas workload -o workload.schema.json
      osf list schemas -o schemas/
    """
    if kind in (MODEL, ALGORITHMS):
        emit(style, as_json, output, _counted(name) if kind == MODEL else _chosen(name))
        return
    found = {key: LISTINGS[key]() for key in ([kind] if kind else [key for key in LISTINGS if key != CONFIG])}
    rows = {key: entry.rows for key, entry in found.items()}
    if kind is not None and name is not None:
        short = letters(SPELLED.get(kind, str)(name) or name)
        rows = {kind: [row for row in rows[kind] if row.name == name or letters(row.name) == short]}
        if not rows[kind]:
            meant = suggestion(name.lower(), [row.name for row in found[kind].rows], "", most=3)
            raise UsageError(
                f"there is no {name!r} in 'osf list {kind}'{f': {meant}' if meant else ', which shows all'}"
            )
    if kind == "schemas" and (name is not None or _is_folder(output)):
        if style not in (None, "json"):
            raise UsageError(f"--format {style}: a schema is JSON: leave it out")
        _write_schemas(name, output)
        return
    problems = [problem for entry in found.values() for problem in entry.problems]
    emit(style, as_json, output, Listed(rows, list(dict.fromkeys(problems)), whole=name is not None))


def _is_folder(output: str | None) -> bool:
    """Whether -o names a folder: one that is there, or a name that ends as a folder's."""
    return output is not None and (output.endswith(("/", os.sep)) or Path(output).is_dir())


def _write_schemas(name: str | None, output: str | None) -> None:
    """Print the schema of a kind of file or write it to a file, or write those of all kinds to a folder."""
    if name is not None and output in (None, "-"):
        print_text(schema_text(name))
        return
    if name is not None and not _is_folder(output):
        require_writable(str(output))
        files = {Path(str(output)): name}
    else:
        folder = Path(str(output))
        folder.mkdir(parents=True, exist_ok=True)
        files = {folder / f"{kind}{ENDING}": kind for kind in ([name] if name else SCHEMAS)}
    for path, kind in files.items():
        profiles.write_text(path, schema_text(kind))
        line(f"wrote {path} (schema of {kind})")
