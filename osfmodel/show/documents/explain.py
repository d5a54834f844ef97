"""The result of ``osf explain`` in every format."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from osfmodel.diagnosis import Explanation, Remedy
from osfmodel.diagnosis.causes import all_costs
from osfmodel.diagnosis.explanation import BucketRow
from osfmodel.diagnosis.waits import Parts
from osfmodel.entities.files.documents import SCHEMA_VERSION


class Explained:
    """What limits a job, where the time went, its buckets and what would help."""

    def __init__(self, explanation: Explanation) -> None:
        self.explanation = explanation

    def document(self) -> dict[str, Any]:
        one = self.explanation
        return {
            "schema_version": SCHEMA_VERSION,
            "trace": one.name,
            "workers": one.workers,
            "cluster": one.cluster,
            "verdict": one.verdict,
            "cause": one.cause,
            "network_cause": one.network,
            "straggler_rank": one.straggler,
            "step_time_s": one.step_time,
            "replayed_step_time_s": one.replayed,
            "parts": _parts(one.parts),
            "causes": _causes(one),
            "ranks": [
                {"rank": rank.rank, "own_work_s": rank.work, "slowest_steps": rank.slowest, **_parts(rank.parts)}
                for rank in one.ranks
            ],
            "steps": [{"step": step.number, "time_s": step.time, **_parts(step.parts)} for step in one.steps],
            "buckets_of_rank": one.sender,
            "buckets": [_bucket(row) for row in one.buckets],
            "remedies": [_remedy(remedy) for remedy in one.remedies],
            "notes": list(one.remarks),
        }

    def rows(self) -> list[dict[str, Any]]:
        return [{"trace": self.explanation.name, **_bucket(row)} for row in self.explanation.buckets]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal import explain as explain_screen

        explain_screen.show_explanation(console, self.explanation)

    def warnings(self) -> list[str]:
        return []


def _parts(parts: Parts) -> dict[str, float | None]:
    return {f"{field.name}_s": getattr(parts, field.name) for field in fields(Parts)}


def _causes(one: Explanation) -> list[dict[str, Any]]:
    return [
        {"cause": name, "costs_s": seconds, "part_of_step": seconds / one.step_time, "without_it": meaning}
        for name, seconds, meaning in all_costs(one)
    ]


def _bucket(row: BucketRow) -> dict[str, Any]:
    return {
        "bucket": row.number,
        "kind": row.kind,
        "dtype": row.dtype,
        "gradients": row.gradients,
        "bytes": row.bytes,
        "ready_s": row.ready,
        "issued_s": row.issued,
        "start_s": row.start,
        "end_s": row.end,
        "waiting_s": row.waiting,
        "transfer_s": row.transfer,
        "wire_s": row.wire,
        "bus_bandwidth_bytes_per_s": row.bandwidth,
        "possible_bus_bandwidth_bytes_per_s": row.possible,
        "hidden_s": row.hidden,
        "exposed_s": row.exposed,
    }


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {
        "remedy": remedy.name,
        "what": remedy.what,
        "step_time_s": remedy.step_time,
        "throughput_factor": remedy.throughput,
        "by": remedy.by,
        "note": remedy.note,
    }
