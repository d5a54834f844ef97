"""Moments in backward at which DeepSpeed sends a bucket of gradients.

A full bucket is sent when the next gradient of its dtype is ready, which no longer fits. The last bucket of each dtype,
and a bucket with a release time, are sent after backward. Buckets are sent in their order. Source: DeepSpeed 0.19.8,
``reduce_independent_p_g_buckets_and_remove_grads``.
"""

from __future__ import annotations

from collections.abc import Sequence

from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.workload import Workload


def handovers(workload: Workload, plan: Plan) -> dict[str, list[int]]:
    """Numbers of the buckets that are sent after the backward of each layer, by its name."""
    names = [layer.name for layer in reversed(workload.layers)]
    dtypes = {layer.name: layer.dtype for layer in workload.layers}
    places = {name: place for place, name in enumerate(names)}
    found: dict[str, list[int]] = {}
    latest = 0
    for number, bucket in enumerate(plan.buckets):
        latest = max(latest, _place(bucket, plan.buckets[number + 1 :], places, dtypes))
        found.setdefault(names[latest], []).append(number)
    return found


def _place(bucket: Bucket, behind: Sequence[Bucket], places: dict[str, int], dtypes: dict[str, str]) -> int:
    """The place in backward of the gradient with which a bucket is sent."""
    dtype = dtypes[bucket.blocks[0].layer]
    following = next((one for one in behind if dtypes[one.blocks[0].layer] == dtype), None)
    if following is None or bucket.release_time:
        return len(places) - 1
    return max(
        *(places[block.layer] for block in bucket.blocks), min(places[block.layer] for block in following.blocks)
    )
