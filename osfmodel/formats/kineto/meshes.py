"""The process groups of collectives that name none: from the header of a trace, and by the threads that ran them."""

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
    """Collectives of sharded parameters, with their process group from the trace's header if the library records none.

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


def by_threads(header: Mapping[str, Any], found: Sequence[Found]) -> list[Found]:
    """The collectives, with their groups from the threads that ran them, if the library notes no group at all.

    gloo has threads of its own for each group, which it starts with the group. Threads that ran collectives of one
    kind are taken to be of one group, so groups are told apart only where there are as many as the header lists.
    """
    names = [group.name for group in process_groups(header)]
    if len(names) < 2 or any(one.group or not one.thread.isdecimal() for one in found):
        return list(found)
    pools: list[tuple[set[str], set[str]]] = []  # threads, kinds
    for thread, kind in dict.fromkeys((one.thread, one.kind) for one in found):
        mine = [pool for pool in pools if thread in pool[0] or kind in pool[1]]
        pools = [pool for pool in pools if pool not in mine]
        pools.append((set().union({thread}, *(one for one, _ in mine)), set().union({kind}, *(one for _, one in mine))))
    if len(pools) != len(names):
        return list(found)
    pools.sort(key=lambda pool: min(map(int, pool[0])))
    group = {thread: name for (threads, _), name in zip(pools, names, strict=True) for thread in threads}
    return [one._replace(group=group[one.thread]) for one in found]


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
