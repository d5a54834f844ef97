"""Make defaults.json, what the classes of transformers take for fields that a config.json leaves out.

    python profiles/make_defaults.py [OUTPUT_FOLDER]

Of the types in MODEL_FAMILIES, and of their parts; of these, the fields that osfmodel/counting/families reads.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import transformers  # type: ignore[import-not-found, unused-ignore]
from transformers import CONFIG_MAPPING

from osfmodel.counting import families
from osfmodel.counting.families import MODEL_FAMILIES

KINDS = (bool, int, float, str)
"""Kinds of values that are numbers, flags and words."""
SAME = {"kimi_k2": "deepseek_v3"}
"""Types without a class in transformers, whose own class has the defaults of another."""


def fields_read() -> frozenset[str]:
    """All names that the families could read."""
    sources = Path(families.__file__).parent.glob("*.py")
    return frozenset(word for path in sources for word in re.findall(r'"(\w+)"', path.read_text("utf-8")))


def defaults_of(kind: str, read: frozenset[str]) -> dict[str, Any]:
    """The defaults of a type, and the types of its parts."""
    made = CONFIG_MAPPING[kind]
    values = {one.name: one.default for one in fields(made)}
    parts = {name: {"model_type": part} for name, part in parts_of(made)}
    known = {name: value for name, value in values.items() if name in read and isinstance(value, KINDS)}
    return dict(sorted({**known, **parts}.items()))


def parts_of(made: Any) -> Iterator[tuple[str, str]]:
    """Names and types of the parts of a class of configurations."""
    for name, part in (getattr(made, "sub_configs_defaults", None) or {}).items():
        yield name, part.model_type


def main() -> None:
    """Write the file."""
    read, todo, made = fields_read(), sorted(set(MODEL_FAMILIES) & set(CONFIG_MAPPING)), {}
    while todo:
        kind = todo.pop()
        made[kind] = defaults_of(kind, read)
        todo += {part["model_type"] for part in made[kind].values() if isinstance(part, dict)} - set(made)
    source = f"classes of configurations in transformers {transformers.__version__}"
    made |= {kind: made[other] for kind, other in SAME.items()}
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "profiles") / "defaults.json"
    document = {"source": source, "defaults": dict(sorted(made.items()))}
    path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
