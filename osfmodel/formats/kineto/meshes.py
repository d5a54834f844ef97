"""The process groups of a job in the header of its trace, and which of them sharded parameters use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from osfmodel.entities.trace import ProcessGroup
from osfmodel.formats.kineto.collectives import Found

LARGEST_GROUP = 100_000
"""Ranks of a group beyond which they are not listed."""


def process_groups(header: Mapping[str, Any]) -> tuple[ProcessGroup, ...]:
    """The process groups that the header lists; fields of wrong types count as not stated."""
    return tuple(map(_group, _listed(header)))


def _group(entry: Mapping[str, Any]) -> ProcessGroup:
    listed, described = entry.get("ranks"), entry.get("pg_desc")
    ranks = tuple(sorted(set(listed))) if isinstance(listed, list) and _are_ranks(listed) else ()
    size = entry.get("pg_size", len(ranks) or None)
    known = isinstance(size, int) and not isinstance(size, bool) and size > 0
    words = described if isinstance(described, str) and described.isprintable() and described != "undefined" else ""
    return ProcessGroup(str(entry.get("pg_name", "")), words, size if known else None, ranks)


def _are_ranks(listed: Sequence[Any]) -> bool:
    """Whether a list holds only numbers of ranks; a long one may be shortened, with dots between numbers."""
    return len(listed) <= LARGEST_GROUP and all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in listed
    )


def _listed(header: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The header's entries, one for each process group."""
    told = header.get("distributedInfo")
    config = told.get("pg_config") if isinstance(told, Mapping) else None
    return [entry for entry in config if isinstance(entry, Mapping)] if isinstance(config, list) else []


def meshed(header: Mapping[str, Any], found: Sequence[Found]) -> list[Found]:
    """The collectives, with the groups of those of sharded parameters whose library notes none, from the header.

    Parameters are sharded between the ranks of a group that are next to each other; shards are all-reduced in another
    group of the remaining ranks, so that the product of both sizes is the job's.
    """
    listed = [entry for entry in _listed(header) if isinstance(entry.get("ranks"), list) and len(entry["ranks"]) > 1]
    ordered = sorted(listed, key=lambda entry: max(map(_number, entry["ranks"])) - min(map(_number, entry["ranks"])))
    world = max((len(entry["ranks"]) for entry in listed), default=0)
    ranks = {one.workers for one in found if one.shard and one.kind != "all_reduce"}
    split = min((size for size in ranks if size), default=0)
    if not split or world % split:
        return list(found)

    def named(one: Found) -> Found:
        if one.shard is None or one.group:
            return one
        reduced = one.kind == "all_reduce"
        size = world // split if reduced else one.workers
        like = [entry for entry in ordered if len(entry["ranks"]) == size]
        if not like:
            return one
        return one._replace(workers=size, group=str(like[-1 if reduced else 0].get("pg_name", "")))

    return [named(one) for one in found]


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
