"""Two stand-ins for the built-in ``sum``: that of Python 3.12 and later, and one that our code must not call.

python -m tests.sums pytest ...      run something under the compensated sum, on an older Python too
"""

from __future__ import annotations

import builtins
import runpy
import sys
from collections.abc import Iterable
from typing import Any

BUILT_IN = builtins.sum


def compensated(numbers: Iterable[Any], /, start: Any = 0) -> Any:
    """The result of ``sum`` from Python 3.12 on: Neumaier's compensated sum, from the first float on."""
    total, lost = start, 0.0
    for number in numbers:
        if type(total) is float and type(number) in (float, int, bool):
            added = total + number
            if type(number) is float:
                lost += (total - added) + number if abs(total) >= abs(number) else (number - added) + total
            total = added
        else:
            total, lost = (total + lost if lost else total) + number, 0.0
    return total + lost if lost and lost - lost == 0 else total


def refused(numbers: Iterable[Any], /, start: Any = 0) -> Any:
    """The sum; AssertionError where our code has asked for one of floats, which hangs on the Python."""
    found = BUILT_IN(numbers, start)
    caller = sys._getframe(1).f_globals.get("__name__", "")
    assert type(found) is not float or not caller.startswith("osfmodel."), (
        f"{caller} adds up floats with sum, whose rounding hangs on the Python: take plain_sum"
    )
    return found


if __name__ == "__main__":
    builtins.sum = compensated
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
