"""The notation of a plan in one line, with which a measurement states its plan in full.

Gradients are numbered in ready order, from 0. ``2 channels, forward overlap: 0-4 5[0:4096]+6 5[4096:9000]`` sends the
first five in one message, the first 4096 bytes of the next with all of the one after it, and then the rest. The part
to send follows a message, ``0-4@0.01`` for a hundredth of each tensor; segments to recompute are numbered
as the workload has them: ``1 channel, release, mirror, recompute 0+3: 0-4@0.01 5``.

A plan that shards parameters begins with its strategy and its rules as JSON: ``fully-sharded {"groups":[{}]}: 0-4``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from osfmodel.entities.errors import DataError, PlanError
from osfmodel.entities.files import documents
from osfmodel.entities.modules import SHARDED
from osfmodel.entities.plan import REPLICATED, SPLIT, Block, Bucket, Plan
from osfmodel.entities.workload import Workload

LINE = re.compile(
    r"([1-9]\d{0,5}) channels?(, forward overlap)?(, split)?(, release)?(, mirror)?(?:, recompute (\d[+\d]*))?: "
    r"([-+:\[\]\d @.e]+)"
)
SHARDING_LINE = re.compile(rf"({'|'.join(SHARDED)}) (\{{.*\}}): ([-+\d ]+)")
PART = re.compile(r"(\d{1,12})(?:-(\d{1,12})|\[(\d{1,15}):(\d{1,15})\])?")


def written(plan: Plan, workload: Workload) -> str:
    """The line for a plan that is valid for ``workload``. Raises PlanError if it has a credit or a clock."""
    if plan.credit is not None or any(bucket.release_time for bucket in plan.buckets):
        raise PlanError("a plan that sends by priority or by a clock has no short form")
    sharded = plan.strategy in SHARDED and not plan.recompute
    if plan.strategy not in (REPLICATED, SPLIT) and not sharded:
        raise PlanError(f"a plan of the strategy {plan.strategy} has no short form")
    gradients = workload.gradients
    places = {name: place for place, name in enumerate(gradients.names)}
    if sharded:
        stated = json.dumps(documents.document_of(plan)["sharding"], separators=(",", ":"))
        return f"{plan.strategy} {stated}: {_messages(plan, places, gradients.sizes)}"
    rules = f"{plan.channels} channel{'s' if plan.channels > 1 else ''}"
    rules += ", forward overlap" * plan.forward_overlap + ", split" * plan.split
    rules += ", release" * plan.release + ", mirror" * plan.mirror
    if plan.recompute:
        segments = [segment.name for segment in workload.segments]
        rules += ", recompute " + "+".join(str(segments.index(name)) for name in plan.recompute)
    return f"{rules}: {_messages(plan, places, gradients.sizes)}"


def _messages(plan: Plan, places: dict[str, int], sizes: Sequence[int]) -> str:
    return " ".join(
        _bucket(bucket.blocks, places, sizes) + ("" if bucket.density is None else f"@{bucket.density!r}")
        for bucket in plan.buckets
    )


def _bucket(blocks: Sequence[Block], places: dict[str, int], sizes: Sequence[int]) -> str:
    parts: list[tuple[int, int, str]] = []
    for block in blocks:
        place = places[block.layer]
        whole = block.bytes == sizes[place]
        cut = "" if whole else f"[{block.offset}:{block.offset + block.bytes}]"
        if parts and whole and not parts[-1][2] and parts[-1][1] == place - 1:
            parts[-1] = parts[-1][0], place, ""
        else:
            parts.append((place, place, cut))
    return "+".join(f"{first}{cut}" if first == last else f"{first}-{last}" for first, last, cut in parts)


def read(line: str, workload: Workload) -> Plan:
    """The plan that :func:`written` wrote. Raises DataError for any other line, PlanError if it does not fit."""
    sharded = SHARDING_LINE.fullmatch(line)
    if sharded is not None:
        strategy, rules, messages = sharded.groups()
        return _sharded(strategy, rules, messages, workload)
    found = LINE.fullmatch(line)
    if found is None:
        raise DataError(f"{line[:60]!r} is not a plan in short form, such as '1 channel: 0-4 5'")
    channels, overlap, split, release, mirror, again, messages = found.groups()
    plan = Plan(
        workload.name,
        tuple(_message(message, workload) for message in messages.split()),
        int(channels),
        bool(overlap),
        SPLIT if split else REPLICATED,
        recompute=tuple(_segment(number, workload) for number in again.split("+")) if again else (),
        release=bool(release),
        mirror=bool(mirror),
    )
    plan.require_valid(workload)
    return plan


def _sharded(strategy: str, rules: str, messages: str, workload: Workload) -> Plan:
    buckets = tuple(_message(message, workload) for message in messages.split())
    document = documents.document_of(Plan(workload.name, buckets))
    del document["split"]
    stated = documents.parse_object(rules.encode())
    text = documents.encode(document | {"strategy": strategy, "sharding": stated})
    plan = documents.decode_plan(text.encode())
    plan.require_valid(workload)
    return plan


def _segment(number: str, workload: Workload) -> str:
    if not number or int(number) >= len(workload.segments):
        raise PlanError(f"the plan recomputes segment {number!r}, and {workload.name!r} has {len(workload.segments)}")
    return workload.segments[int(number)].name


def _message(message: str, workload: Workload) -> Bucket:
    parts, at, density = message.partition("@")
    try:
        return Bucket(_blocks(parts, workload), density=float(density) if at else None)
    except ValueError:
        raise DataError(f"{message[:60]!r} is not a message such as 0-4 or 0-4@0.01") from None


def _blocks(message: str, workload: Workload) -> tuple[Block, ...]:
    gradients, blocks = workload.gradients, []
    for part in message.split("+"):
        found = PART.fullmatch(part)
        if found is None:
            raise DataError(f"{part[:60]!r} is not a part of a message such as 5, 0-4 or 5[0:4096]")
        first, last, start, end = (None if text is None else int(text) for text in found.groups())
        if first is None or max(first, last or 0) >= len(gradients):
            raise PlanError(f"the plan sends gradients {part}, and {workload.name!r} has {len(gradients)}")
        if start is not None and end is not None:
            blocks.append(Block(gradients.names[first], start, end - start))
        else:
            last = first if last is None else last
            blocks += [Block(gradients.names[i], 0, gradients.sizes[i]) for i in range(first, last + 1)]
    return tuple(blocks)
