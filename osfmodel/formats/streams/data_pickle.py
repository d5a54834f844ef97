"""Pickles of plain data: dictionaries, lists, numbers and texts. Anything that could run code is refused.

Every opcode is checked before the pickle is loaded. Those that name a class or call anything are not among the known,
and an index of the memo cannot ask for more memory than the pickle has bytes.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

from osfmodel.entities.errors import DataError

KNOWN = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT",
    "BININT1", "BININT2", "LONG", "LONG1", "BINFLOAT", "FLOAT", "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_DICT",
    "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM",
    "SETITEMS", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET",
})  # fmt: skip
"""Opcodes that make plain data."""
MEMO = ("PUT", "LONG_BINPUT")
MOST_STEPS = 3_000_000
"""Maximum opcodes of a pickle: each makes at most one object of some 64 bytes."""
MANY = "more objects than a dump has: record with a smaller TORCH_FR_BUFFER_SIZE"


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that knows no class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every class."""
        raise pickle.UnpicklingError(f"names {module}.{name}")


def is_pickle(head: str) -> bool:
    """Whether a file whose text begins so may be a pickle of protocol 2 to 5."""
    return head[:1] == "\ufffd" and "\x02" <= head[1:2] <= "\x05"


def plain_data(content: bytes) -> Any:
    """The data in a pickle. Raises DataError for one that is damaged, too large, or holds more than plain data."""
    try:
        fault = _fault(content)
        data = None if fault else _PlainUnpickler(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle may raise nearly any
        raise DataError(f"is a pickle that is cut off or damaged: {type(error).__name__}") from None
    if fault:
        raise DataError(f"is a pickle {fault}")
    return data


def _fault(content: bytes) -> str:
    """The reason not to load a pickle, as the end of a sentence; "" for one of plain data."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if opcode.name not in KNOWN:
            return f"that holds more than plain data ({opcode.name}), which is not loaded"
        if count > MOST_STEPS or (opcode.name in MEMO and int(argument or 0) > len(content)):
            return f"with {MANY}"
    return ""
