"""Error feedback of sparse buckets: the unsent part of gradients, and the layout of entries in a message.

Of each tensor the entries of the largest magnitude are sent, each with its place; what is not sent is kept, so that it
is sent later (error feedback).
All that is sent of a bucket is one message of bytes: the values, in the type of the gradients, and the indices, int32
unless a tensor has more elements than that counts; the wider of the two first, so that both are aligned.

The indices of the entries of largest magnitude are found in pieces that caches hold. A sample says below which
threshold most of a large tensor lies. The rest is gathered piece by piece and searched alone, so that the time is in
proportion to the elements, several times as short as a search of all, and no memory is needed for as many numbers
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from osfmodel.engine.sparse import ALIGNMENT, WIDE
from osfmodel.entities.compression import top_k
from osfmodel.entities.errors import UsageError
from osfmodel.runtime.executor.separate import Groups

PIECE = 1 << 17
"""Elements in one piece."""
SAMPLE, LEAST_STEP = 1 << 11, 8
"""Elements of a sample, and least ratio of all elements to these for taking a sample."""
MARGIN = 4
"""Standard deviations by which the threshold is set lower than the sample suggests."""
Magnitudes: TypeAlias = Callable[[slice], Any]
"""A function that returns the magnitudes of some of the elements."""


def largest(magnitudes: Magnitudes, elements: int, count: int) -> Any:
    """Indices of the ``count`` largest of ``elements`` elements.

    NaN counts as infinite, so that it does not stay hidden.
    """
    import torch

    places, found = _candidates(magnitudes, elements, count)
    if places is None:
        return found.topk(count, sorted=False).indices
    least = found.topk(count, sorted=False).values.min()
    above = found > least
    sure = places[above]
    return torch.cat([sure, places[found == least][: count - sure.numel()]])


def _candidates(magnitudes: Magnitudes, elements: int, count: int) -> tuple[Any, Any]:
    """Indices and magnitudes of at least ``count`` elements, including the largest; indices None if all come."""
    step = (elements // SAMPLE) | 1  # odd, so that a sample meets all positions of small kernels
    if step >= LEAST_STEP:
        sample = _numbers(magnitudes(slice(None, None, step)))
        rank = rank_of(count * sample.numel() / elements)
        if rank < sample.numel() // 2:
            threshold = sample.topk(rank, sorted=False).values.min()
            places, found = _gathered(magnitudes, elements, threshold)
            if count <= found.numel() <= elements // 2:
                return places, found
            if found.numel() < count and not threshold.any():
                return _filled(places, found, count)
            del places, found  # before as much again is needed
    return None, _numbers(magnitudes(slice(None)))


def _filled(places: Any, found: Any, count: int) -> tuple[Any, Any]:
    """All elements that are not 0, and zeros up to ``count``; the first elements hold enough of them."""
    import torch

    zero = torch.ones(count, dtype=torch.bool, device=places.device)
    zero[places[places < count]] = False
    others = zero.nonzero().view(-1)[: count - found.numel()]
    return torch.cat([places, others]), torch.cat([found, found.new_zeros(len(others))])


def _gathered(magnitudes: Magnitudes, elements: int, threshold: Any) -> tuple[Any, Any]:
    """Indices and magnitudes of all that reach the threshold, or of more than half of all if most do.

    With a threshold of 0, of all above it, since a sparse gradient (an embedding's) is 0 nearly everywhere.
    """
    import torch

    parts: list[tuple[Any, Any]] = []
    number = 0
    for first in range(0, elements, PIECE):
        parts.append(_beyond(magnitudes, first, threshold))
        number += parts[-1][0].numel()
        if number > elements // 2:
            break
    places, found = (torch.cat(rows) for rows in zip(*parts, strict=True))
    return places, found


def rank_of(expected: float) -> int:
    """Entries to take from a sample, if ``expected`` are among the largest, so that hardly ever too few are found."""
    return int(expected + MARGIN * (expected**0.5 + 1))


def _beyond(magnitudes: Magnitudes, first: int, threshold: Any) -> tuple[Any, Any]:
    """Indices and magnitudes of the elements of one piece that reach the threshold."""
    part = _numbers(magnitudes(slice(first, first + PIECE)))
    places = ((part >= threshold) & (part > 0)).nonzero().view(-1)
    return places + first, part[places]


def _numbers(magnitudes: Any) -> Any:
    """Magnitudes with infinity instead of NaN."""
    return magnitudes.nan_to_num_(nan=float("inf"), posinf=float("inf"))


class Residual:
    """The unsent part of one gradient, in memory of its own."""

    def __init__(self, parameter: Any, like: Any) -> None:
        import torch

        self.kept = torch.zeros_like(like, device=parameter.device)

    def add(self, gradient: Any, scale: float) -> None:
        """Add ``scale`` of a gradient to the unsent part."""
        self.kept.add_(gradient, alpha=scale)

    def choose(self, count: int) -> tuple[Any, Any]:
        """Take out the ``count`` entries of the largest magnitude; return them and their places in memory."""
        flat = flat_of(self.kept)
        places = largest(lambda part: flat[part].abs(), flat.numel(), count)
        values = flat[places]
        flat[places] = 0
        return values, places

    def part(self) -> None:
        """Prepare for a change of the parameter, which needs nothing here."""

    def join(self) -> None:
        """Follow the change of the parameter, which needs nothing here."""


class Mirror:
    """The unsent part in a mirror of the weights, which has the values they would have if all had been sent.

    The unsent part is (weights - mirror) / rate, computed only for the chosen entries. While weights
    change their difference is kept, so that the unsent part stays the same.

    rate: the learning rate with which it was made
    """

    def __init__(self, name: str, parameter: Any, like: Any, groups: Groups) -> None:
        import torch

        self.name, self.parameter, self.groups = name, parameter, groups
        self.kept = torch.empty_like(like, device=parameter.device).copy_(parameter.detach())
        self.rate, self._apart, self._fresh, self._version = 0.0, False, False, parameter._version

    def add(self, gradient: Any, scale: float) -> None:
        """Add ``scale`` of a gradient to the unsent part. Raises UsageError if weights were changed."""
        self.join()
        self._require_unchanged()
        rate = rate_of(self.name, self.groups.of(self.name, self.parameter))
        if self.rate not in (0, rate):
            weights = self.parameter.detach()
            self.kept.sub_(weights).mul_(rate / self.rate).add_(weights)
        self.rate = rate
        self.kept.add_(gradient, alpha=-rate * scale)

    def choose(self, count: int) -> tuple[Any, Any]:
        """Take out the ``count`` entries of the largest magnitude; return them and their places in memory."""
        weights, flat = flat_of(self.parameter.detach()), flat_of(self.kept)
        places = largest(lambda part: (weights[part] - flat[part]).abs_(), flat.numel(), count)
        values = (weights[places] - flat[places]) / self.rate
        flat[places] = weights[places]
        return values, places

    def part(self) -> None:
        """Prepare for a change of the parameter. Raises UsageError if it changed before, unannounced."""
        if not self._apart and not self._fresh:
            self._require_unchanged()
            self.kept.sub_(self.parameter.detach())
            self._apart = True

    def join(self) -> None:
        """Make the mirror follow the changed parameter."""
        if self._apart:
            self.kept.add_(self.parameter.detach())
            self._apart, self._version = False, self.parameter._version

    def load(self, kept: Any, rate: float) -> None:
        """Load a saved mirror, for the weights that the next backward finds."""
        self.kept.copy_(kept)
        self.rate, self._apart, self._fresh = rate, False, True

    def _require_unchanged(self) -> None:
        if self._fresh:
            self._fresh, self._version = False, self.parameter._version
        if self.parameter._version != self._version:
            raise UsageError(
                f"{self.name!r} was changed otherwise than by step() or load_state_dict(), which mirror weights would "
                "take for a gradient: run the plan with mirror false, or close() and execute() again"
            )


def follow(model: Any, optimizer: Any, mirrors: Sequence[Mirror], telling: Callable[[Any], Any]) -> list[Any]:
    """Hooks that let mirrors follow changes of weights, in optimizer steps and loading; their handles."""

    def hook(subject: Any, chosen: Sequence[Mirror], before: str, after: str) -> list[Any]:
        def part(*_: Any) -> None:
            for one in chosen:
                one.part()

        def join(*_: Any) -> None:
            for one in chosen:
                one.join()

        return [getattr(subject, before)(telling(part)), getattr(subject, after)(telling(join))]

    handles = [] if optimizer is None else hook(optimizer, mirrors, "register_step_pre_hook", "register_step_post_hook")
    known = {id(one.parameter): one for one in mirrors}
    for module in model.modules():
        own = [known[id(tensor)] for tensor in module.parameters(recurse=False) if id(tensor) in known]
        if own:
            handles += hook(module, own, "register_load_state_dict_pre_hook", "register_load_state_dict_post_hook")
    return handles


def rate_of(name: str, group: dict[str, Any]) -> float:
    """The learning rate of a group. Raises UsageError for 0, with which no mirror works."""
    rate = float(group["lr"])
    if not rate > 0:
        raise UsageError(
            f"the learning rate of {name!r} is {rate:g}, and mirror weights divide by it: keep schedules above 0 "
            "(a warm-up by step + 1), or run the plan with mirror false"
        )
    return rate


def require_mirrored(optimizer: Any, parameters: Mapping[str, Any]) -> None:
    """Raise UsageError if parameters in sparse buckets cannot be mirrored."""
    import torch

    if type(optimizer) is not torch.optim.SGD and not getattr(type(optimizer), "mirrored", False):
        raise UsageError(f"mirror weights need SGD of torch.optim, not {type(optimizer).__name__}: use a residual")
    groups = Groups(optimizer)
    groups.look()
    for name, tensor in parameters.items():
        rate_of(name, groups.of(name, tensor))
        if tensor.dtype not in (torch.float32, torch.float64):
            raise UsageError(f"{name!r} is {str(tensor.dtype)[6:]}, too coarse for mirror weights: use a residual")
        if torch.empty_like(tensor, device="meta").stride() != tensor.stride():
            raise UsageError(f"{name!r} has gaps in memory, which mirror weights have not: use a residual")


def flat_of(tensor: Any) -> Any:
    """A tensor's elements in their order in memory, without gaps."""
    return tensor.as_strided((tensor.numel(),), (1,))


class Packing:
    """The layout of a bucket's chosen entries in the message of one rank.

    sizes:  elements of each tensor
    counts: entries that are sent of each
    bytes:  of the message of one rank
    """

    def __init__(self, sizes: Sequence[int], density: float, dtype: Any) -> None:
        import torch

        self.counts = [top_k(size, density) for size in sizes]
        self._ends = list(accumulate(self.counts))
        types = [dtype, torch.int32 if max(sizes) < WIDE else torch.int64]
        self._sections: dict[Any, tuple[int, int]] = {}
        place = 0
        for kind in sorted(types, key=lambda kind: -kind.itemsize):
            self._sections[kind] = place, place + self._ends[-1] * kind.itemsize
            place += self._ends[-1] * kind.itemsize
        self._types = types
        self.bytes = place + -place % ALIGNMENT

    def put(self, part: Any, number: int, values: Any, places: Any) -> None:
        """Write the entries of a tensor into the message of this rank."""
        for row, entry in zip(self._rows(part, number), (values, places), strict=True):
            row[0].copy_(entry)

    def mean(self, whole: Any, number: int, like: Any) -> Any:
        """The sum of a tensor's entries from the messages of all ranks, the lowest first, so that bits are the same."""
        import torch

        result = torch.zeros_like(like, device=whole.device)
        for values, places in zip(*self._rows(whole, number), strict=True):
            flat_of(result).index_add_(0, places, values)
        return result

    def faults(self, whole: Any) -> Iterator[tuple[int, int]]:
        """(rank, number of the tensor) wherever an entry is not a finite number."""
        if bool(self._section(whole, self._types[0]).isfinite().all()):
            return
        for number in range(len(self.counts)):
            for rank, values in enumerate(self._rows(whole, number)[0]):
                if not bool(values.isfinite().all()):
                    yield rank, number

    def _rows(self, whole: Any, number: int) -> list[Any]:
        """Values and indices of a tensor, one row for each rank."""
        first, last = self._ends[number] - self.counts[number], self._ends[number]
        return [self._section(whole, kind)[:, first:last] for kind in self._types]

    def _section(self, whole: Any, kind: Any) -> Any:
        """All values, or all indices, one row for each rank."""
        first, last = self._sections[kind]
        return whole.view(-1, self.bytes)[:, first:last].view(kind)
