"""Make kernels/, what measured kernels of each GPU take beyond the law of its data sheet, from published tables.

    OSFMODEL_DATA=FOLDER python profiles/make_kernels.py [OUTPUT_FOLDER]
    OSFMODEL_DATA=FOLDER python profiles/make_kernels.py --misses

Residuals are linear in the logarithms of sizes between nodes; their values are fitted to all measured shapes by least
squares with a robust loss and a light penalty on second differences. ``--misses`` fits 70 % of the shapes, drawn by a
seed, and prints what is missed on the others; then each GPU by the table of the one most like it.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import spsolve

from osfmodel.counting.kernels import CHOSEN, FOLDER, LAUNCH, TILES, most_like, unfilled, width_of
from osfmodel.entities.files import profiles
from osfmodel.entities.gpus import GPUS, Gpu

Values = NDArray[np.float64]
FILES = {
    "a100": ("a100", 108), "h100": ("h100", 132), "h200": ("h200", 132), "b200": ("b200", 148), "b300": ("b300", 148),
    "gb200": ("gb200", 152), "gb300": ("gb300", 152), "l40s": ("l40s", 142), "rtx-pro-6000": ("rtxpro6000", 188),
}  # fmt: skip
"""GPU -> name in the tables, multiprocessors."""
TYPES = {"bfloat16": "bfloat16", "fp8": "float8"}
NARROW = 32
"""Columns of the narrowest products."""
SIZES = (32, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
ROWS = (128, 256, 512, 1024, 2048, 4096, 8192, 32768)
TOKENS, HEADS = (256, 512, 1024, 2048, 4096, 16384), (1, 4, 16, 64, 256, 1024, 4096)
EACH, EXPERTS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 4096, 32768), (1, 4, 16, 64, 256, 512)
INNER = (64, 256, 1024, 4096, 16384)
"""Nodes of products, of attention, and of experts."""
SMOOTH, ROBUST, ROUNDS = 0.05, 0.03, 5
"""Weight of second differences; the error from which the loss grows as the error; rounds of reweighting."""
LEFT_OUT, SEED = 0.3, 45
SOURCE = "latencies of TensorRT-LLM and SGLang in aiconfigurator (Apache-2.0), {}, fitted by profiles/make_kernels.py"


class Shapes(NamedTuple):
    """Measured kernels of a kind: sizes by axis, further columns that are linear, seconds by the law, and measured."""

    nodes: tuple[tuple[int, ...], ...]
    sizes: tuple[Values, ...]
    linear: Values
    law: Values
    seconds: Values

    @property
    def beyond(self) -> Values:
        """ln(time / law)."""
        return np.log(self.seconds / self.law)


def rows_of(kind: str, gpu: str) -> list[dict[str, str]]:
    """The rows of a published table."""
    path = Path(os.environ["OSFMODEL_DATA"]) / "kernels" / f"{kind}_{FILES[gpu][0]}.csv.gz"
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def law(gpu: Gpu, operations: Values, moved: Values, dtype: str) -> Values:
    """Seconds as :meth:`osfmodel.counting.kernels.KernelTimes.law`."""
    return operations / gpu.rate(dtype) + moved / gpu.bandwidth + LAUNCH


def columns(rows: Sequence[Mapping[str, str]], *names: str) -> list[Values]:
    """These columns as numbers."""
    return [np.array([float(row[name]) for row in rows]) for name in names]


def products(gpu: str) -> Iterator[tuple[str, Shapes]]:
    """Matrix products by type; those in float8 without the cast of their input.

    What was measured casts it first, in kernels of its own. The narrowest products show their time: such a product
    reads its input and does little else, half as many bytes as in bfloat16.
    """
    rows = rows_of("gemm", gpu)
    narrow: dict[tuple[float, float], float] = {}
    for short, dtype in TYPES.items():
        m, n, k, milliseconds = columns([row for row in rows if row["dtype"] == short], "m", "n", "k", "latency_ms")
        if len(m):
            moved = (m * k + k * n + m * n) * width_of(dtype)
            waves = np.array([unfilled(*one, FILES[gpu][1]) for one in zip(m, n, strict=True)])
            took, seconds = law(GPUS[gpu], 2 * m * n * k, moved, dtype), milliseconds / 1e3
            own = {(a, c): time for a, b, c, time in zip(m, n, k, seconds, strict=True) if b == NARROW}
            if dtype == "float8":
                cast = np.array([own[key] - narrow[key] for key in zip(m, k, strict=True)])
                seconds = np.maximum(seconds - cast, np.maximum(took - LAUNCH, LAUNCH / 2))
            narrow = {(a, c): max(time - a * c / GPUS[gpu].bandwidth, time / 2) for (a, c), time in own.items()}
            yield dtype, Shapes((ROWS, SIZES, SIZES), (m, n, k), waves, took, seconds)


def attention(gpu: str) -> Shapes:
    """Forward of causal attention; what keys and values move beside queries is in the law."""
    names = ("batch", "tokens", "heads", "kv_heads", "head_dim", "latency_ms")
    batch, tokens, heads, keys, width, milliseconds = columns(rows_of("attention_forward_causal", gpu), *names)
    widths = tuple(int(one) for one in sorted(set(width)))
    moved = 2 * batch * tokens * width * (2 * heads + 2 * keys)
    took = law(GPUS[gpu], 2 * batch * tokens**2 * heads * width, moved, "bfloat16")
    nodes = (TOKENS, HEADS, widths if len(widths) > 1 else (widths[0], 2 * widths[0]))
    return Shapes(nodes, (tokens, batch * heads, width), np.zeros((len(batch), 0)), took, milliseconds / 1e3)


def experts(gpu: str) -> Shapes:
    """Forward of experts with an even share of the tokens; where only skewed routing was measured, on a GPU alone."""
    rows = rows_of("moe_forward", gpu)
    even = [row for row in rows if row["distribution"] == "balanced"]
    rows = even or [row for row in rows if row["distribution"] == "power_law_1.01" and row["moe_ep_size"] == "1"]
    names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    tokens, hidden, inner, topk, number, tensor, parallel, milliseconds = columns(rows, *names, "latency_ms")
    own, inner = np.maximum(1, number / parallel), inner / tensor
    routed = np.maximum(1, tokens * topk / parallel)
    matrices = 3 * np.minimum(own, routed) * hidden * inner
    took = law(GPUS[gpu], 6 * routed * hidden * inner, 2 * (matrices + routed * (3 * inner + 2 * hidden)), "bfloat16")
    linear = np.log(topk / CHOSEN)[:, None]
    return Shapes((EACH, EXPERTS, INNER), (routed / own, own, inner), linear, took, milliseconds / 1e3)


def weights(shapes: Shapes) -> Any:
    """Of each node of the grid for each shape, then the linear columns: a sparse matrix."""
    count = len(shapes.law)
    places = []
    for nodes, sizes in zip(shapes.nodes, shapes.sizes, strict=True):
        logs = np.log(nodes)
        at = np.clip(np.log(sizes), logs[0], logs[-1])
        low = np.clip(np.searchsorted(logs, at, side="right") - 1, 0, len(nodes) - 2)
        places.append((low, (at - logs[low]) / (logs[low + 1] - logs[low])))
    found = sparse.csr_matrix((count, int(np.prod([len(one) for one in shapes.nodes]))))
    for corner in product((0, 1), repeat=len(places)):
        weight, index = np.ones(count), np.zeros(count, int)
        for (low, part), high, nodes in zip(places, corner, shapes.nodes, strict=True):
            weight = weight * (part if high else 1 - part)
            index = index * len(nodes) + low + high
        found = found + sparse.csr_matrix((weight, (np.arange(count), index)), shape=found.shape)
    return sparse.hstack([found, sparse.csr_matrix(shapes.linear)]).tocsr()


def bends(nodes: Sequence[Sequence[int]], more: int) -> Any:
    """Second differences of the values along each axis of the grid; first ones of an axis of two nodes."""
    ids = np.arange(np.prod([len(one) for one in nodes])).reshape([len(one) for one in nodes])
    rows = []
    for axis in range(ids.ndim):
        lines = np.moveaxis(ids, axis, 0)
        if len(lines) == 2:
            rows += [((low, high), (0.3, -0.3)) for low, high in zip(*map(np.ravel, lines), strict=True)]
        for (low, middle), (_, high) in pairwise(pairwise(lines)):
            rows += [(one, (1.0, -2.0, 1.0)) for one in zip(low.ravel(), middle.ravel(), high.ravel(), strict=True)]
    places = [
        (row, column, value)
        for row, (own, values) in enumerate(rows)
        for column, value in zip(own, values, strict=True)
    ]
    at, column, value = zip(*places, strict=True)
    return sparse.csr_matrix((value, (at, column)), shape=(len(rows), ids.size + more))


def fitted(shapes: Shapes, keep: NDArray[np.bool_] | None = None) -> Values:
    """The values at the nodes, then the factors of the linear columns, of the shapes in ``keep``."""
    all_of = weights(shapes)
    keep = np.ones(len(shapes.law), bool) if keep is None else keep
    own, wanted = all_of[keep], shapes.beyond[keep]
    drawn = SMOOTH * bends(shapes.nodes, shapes.linear.shape[1])
    drawn, trust = drawn.T @ drawn + 1e-4 * sparse.eye(own.shape[1]), np.ones(len(wanted))
    for _ in range(ROUNDS):
        found = spsolve((own.T @ sparse.diags(trust) @ own + drawn).tocsc(), own.T @ (trust * wanted))
        trust = ROBUST / np.maximum(np.abs(own @ found - wanted), ROBUST)
    return np.asarray(found)


def table(shapes: Shapes, found: Values) -> dict[str, Any]:
    """The fitted values as they are kept."""
    size = len(found) - shapes.linear.shape[1]
    return {"nodes": shapes.nodes, "values": [round(100 * float(one)) for one in found[:size]]}


def document(gpu: str) -> dict[str, Any]:
    """The content of a GPU's file."""
    own = {}
    for dtype, shapes in products(gpu):
        found = fitted(shapes)
        own[dtype] = {**table(shapes, found), "waves": [round(float(one), 3) for one in found[-len(TILES) :]]}
    inside, apart = attention(gpu), experts(gpu)
    of_experts = fitted(apart)
    return {
        "schema_version": 1,
        "kind": "kernels",
        "gpu": gpu,
        "source": SOURCE.format(f"{sum(len(shapes.law) for _, shapes in products(gpu)):,} products"),
        "multiprocessors": FILES[gpu][1],
        "products": own,
        "attention": {"bfloat16": table(inside, fitted(inside))},
        "experts": {**table(apart, of_experts), "chosen": round(float(of_experts[-1]), 3)},
    }


def kinds(gpu: str) -> Iterator[tuple[str, Shapes]]:
    """All kinds of kernels of a GPU by name."""
    yield from ((f"products, {dtype}", shapes) for dtype, shapes in products(gpu))
    yield "attention", attention(gpu)
    yield "experts", experts(gpu)


def misses(shapes: Shapes, predict: Callable[[Shapes], Values]) -> str:
    """Median and 95 % quantile of |predicted / measured - 1|, in percent."""
    errors = np.abs(np.expm1(predict(shapes)))
    return f"{np.median(errors):6.1%} {np.percentile(errors, 95):6.1%}"


def left_out() -> Iterator[str]:
    """Lines on the misses of shapes left out, and of the table of another GPU."""
    found: dict[tuple[str, str], Values] = {}
    for gpu in FILES:
        for kind, shapes in kinds(gpu):
            out = np.random.default_rng(SEED).random(len(shapes.law)) < LEFT_OUT
            values = fitted(shapes, ~out)
            found[gpu, kind] = values
            shown = misses(shapes, lambda one, values=values, out=out: (weights(one) @ values - one.beyond)[out])
            yield f"{gpu:13s} {kind:19s} {out.sum():6d} shapes left out: median, p95 {shown}"
    for gpu in FILES:
        other = most_like(GPUS[gpu], [name for name in FILES if name != gpu])
        for kind, shapes in kinds(gpu):
            if (values := found.get((other, kind))) is not None and len(values) == weights(shapes).shape[1]:
                shown = misses(shapes, lambda one, values=values: weights(one) @ values - one.beyond)
                yield f"{gpu:13s} {kind:19s} by the table of {other}: median, p95 {shown}"


def main() -> None:
    if "--misses" in sys.argv:
        for line in left_out():
            print(line, flush=True)
        return
    folder = (Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent) / FOLDER
    folder.mkdir(exist_ok=True)
    for gpu in FILES:
        profiles.write_text(folder / f"{gpu}.json", json.dumps(document(gpu), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
