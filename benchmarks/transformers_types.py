"""Every model type of transformers with its default configuration: counted or refused, in how long, by which class.

    python benchmarks/transformers_types.py [TYPE ...] [--jobs 2] [--seconds 10] [--again]

Each type is counted in a process of its own, which has imported the libraries before; nothing is kept in a cache.
Seconds are those of its processor. Parameters are compared with transformers' own ``num_parameters()`` on the meta
device. A type has no default configuration (``"default": false``) where transformers makes no model of it that runs on
a text. The rows are written to benchmarks/transformers_types.json: of all types, of each TYPE, or with --again of those
refused there. Needs the extra ``names``, and timm and torchvision for the types that wrap them.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import resource
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from inspect import signature
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from osfmodel.counting.config import Config
from osfmodel.counting.library import hugging_face

TABLE = Path(__file__).with_suffix(".json")


def mapped_types() -> list[str]:
    """The types that transformers maps to a model."""
    return sorted(set(CONFIG_MAPPING_NAMES) & set(MODEL_MAPPING_NAMES))


def own_model(kind: str) -> Any:
    """Transformers' own model of a type's default configuration, on the meta device."""
    config = transformers.AutoConfig.for_model(kind)
    with torch.device("meta"):
        return hugging_face.class_of(transformers, config)._from_config(config)


def has_default(kind: str) -> bool:
    """Whether transformers makes a model of a type's default configuration that takes a text, if it takes texts.

    What asks for values of tensors on the meta device, and what lacks a package, counts as if it did.
    """
    try:
        model = own_model(kind).eval()
        alone = model.can_generate() or not {*hugging_face.TOWERS} & {*signature(model.forward).parameters}
        if model.main_input_name == "input_ids" and not getattr(model.config, "is_encoder_decoder", False) and alone:
            with torch.device("meta"):
                model(input_ids=torch.zeros((1, 16), dtype=torch.long))
    except (ImportError, NotImplementedError):
        return True
    except Exception as error:
        return any(said in str(error) for said in ("meta", "invalid for input of size"))
    return True


def record(kind: str) -> dict[str, Any]:
    """The row of a type."""
    start = time.process_time()
    try:
        model = hugging_face.count(Config(kind, {"model_type": kind}), 0)
    except Exception as error:
        row = {"type": kind, "refused": f"{error}"[:300], "seconds": round(time.process_time() - start, 1)}
        return row if has_default(kind) else {**row, "default": False}
    seconds = round(time.process_time() - start, 1)
    products, scores = (
        sum(one.operations for module in model.modules for one in getattr(module, name))
        for name in ("products", "scores")
    )
    row = {"type": kind, "parameters": model.parameters, "tokens": model.tokens, "causal": model.causal,
           "blocks": len(model.blocks), "products": products, "scores": scores, "seconds": seconds,
           **({"notes": model.notes} if model.notes else {})}  # fmt: skip
    try:
        made = own_model(kind)
        row["class"] = type(made).__name__
        if made.num_parameters() != model.parameters:
            row["num_parameters"] = made.num_parameters()
    except Exception as error:
        row["num_parameters"] = f"{type(error).__name__}: {error}"[:200]
    return row


def _send(kind: str, seconds: float, pipe: Connection) -> None:
    limit = int(1.5 * seconds)  # with the check of its parameters
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    pipe.send(record(kind))


def limited(kind: str, seconds: float) -> dict[str, Any]:
    """The row of a type, counted in a process of its own that ends after some seconds of the processor."""
    context = multiprocessing.get_context("fork")
    mine, other = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(kind, seconds, other))
    process.start()
    other.close()
    try:
        row: dict[str, Any] = mine.recv()
    except EOFError:
        return {"type": kind, "refused": f"not counted within {seconds:g} s", "seconds": seconds}
    finally:
        process.kill()
        process.join()
    if row["seconds"] > seconds and "refused" not in row:
        return {"type": kind, "refused": f"takes {row['seconds']:g} s", "seconds": row["seconds"]}
    return row


def line(row: Mapping[str, Any]) -> str:
    """A row as text."""
    if "refused" in row:
        return f"{row['type']:32} {row['seconds']:5.1f} s  refused: {row['refused']}"
    differs = f"  transformers: {row['num_parameters']}" if "num_parameters" in row else ""
    work = (row["products"] + row["scores"]) / 1e12
    return (
        f"{row['type']:32} {row['seconds']:5.1f} s  {row['parameters']:>15,}  {work:9.3f} TFLOP"
        f" {100 * row['scores'] / max(1, row['products'] + row['scores']):3.0f} %  {row.get('class', '')}{differs}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Count all types, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", metavar="TYPE")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args(arguments)
    known = {row["type"]: row for row in json.loads(TABLE.read_text(encoding="utf-8"))["types"]}
    refused = [kind for kind, row in known.items() if "refused" in row]
    types = options.types or (refused if options.again else mapped_types())
    hugging_face.count(Config("bert", {"model_type": "bert"}), 16)  # what is imported once
    for name in ("timm", "scipy.optimize"):
        with suppress(ImportError):
            import_module(name)
    gc.freeze()
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda kind: limited(kind, options.seconds), types):
            known[row["type"]] = row
            print(line(row), flush=True)
            table = {"transformers": transformers.__version__, "types": [known[kind] for kind in sorted(known)]}
            TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    rows = list(known.values())
    counted = [row for row in rows if "refused" not in row]
    equal = sum("num_parameters" not in row for row in counted)
    defaults = sum(row.get("default", True) for row in rows)
    print(
        f"{len(counted)} of {defaults} types with a default configuration counted ({len(counted) / defaults:.1%}),"
        f" {len(rows)} types in all, {equal} with transformers' number of parameters"
    )


if __name__ == "__main__":
    main()
