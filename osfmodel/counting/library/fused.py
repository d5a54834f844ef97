"""Parts of models of transformers that are one kernel on a GPU, counted by closed forms: attention, experts, scans."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import signature
from math import prod
from typing import Any

from osfmodel.counting.library.counter import Counter
from osfmodel.counting.modules import Product

NAME = "osfmodel"
"""Of attention and experts, as transformers registers them."""
ACTIVATIONS = "transformers.activations"
NORM = re.compile(r".*Norm(Gated)?(1d|2d|3d)?")
"""Names of classes that normalise."""
PACKED = "find_packed_sequence_indices"
"""Name of a function that looks for several texts in the values of positions."""
ROTATION = re.compile(r"apply_rotary_\w+")
"""Names of functions that turn queries and keys by their positions."""


ROUTED = ["hidden_states", "top_k_index", "top_k_weights"]
"""Inputs of the forward of experts in all newer classes."""


class Kernels:
    """Functions that transformers calls in place of its own attention and experts, by NAME; ``counter`` counts."""

    counter: Counter

    def __init__(self) -> None:
        from transformers import AttentionInterface
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
        from transformers.masking_utils import AttentionMaskInterface

        AttentionInterface.register(NAME, self.attend)
        AttentionMaskInterface.register(NAME, self.mask)
        ALL_EXPERTS_FUNCTIONS.register(NAME, self.experts)

    def mask(self, *_: Any, mask_function: Any = None, local_size: int | None = None, **__: Any) -> Any:
        """No mask; for attention that begins anew in each chunk, a note of its tokens."""
        if local_size is None or "chunked" not in _said(mask_function):
            return None
        import torch

        note = torch.empty((), device="meta")
        note.osfmodel_chunk = local_size
        return note

    def attend(  # noqa: PLR0913, PLR0917
        self, module: Any, query: Any, key: Any, value: Any, mask: Any = None, dropout: float = 0.0,
        is_causal: bool | None = None, sliding_window: int | None = None, position_bias: Any = None, **_: Any,
    ) -> tuple[Any, None]:  # fmt: skip
        """The output of attention between queries, keys and values of (samples, heads, tokens, width).

        Half is left out where transformers would: if causal, without a mask or biases of its own.
        """
        import torch

        chunk = getattr(mask, "osfmodel_chunk", 0)
        whole = (mask is not None and not chunk) or position_bias is not None or query.shape[2] == 1
        causal = not whole and bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        with self.counter.paused():
            shape = (query.shape[0], query.shape[2], query.shape[1], value.shape[3])
            output = torch.empty(shape, dtype=query.dtype, device=query.device, requires_grad=True)
        window = sliding_window if isinstance(sliding_window, int) else 0
        self.counter.attend(output, (query, key, value), causal, window, chunk)
        return output, None

    def experts(self, module: Any, hidden: Any, chosen: Any, weights: Any, *_: Any, **__: Any) -> Any:
        """The output of experts, of which each has its even share of the tokens and their choices."""
        return self.routed(module, hidden, prod(chosen.shape))

    def all_experts(self, module: Any, chosen: int, hidden: Any) -> Any:
        """The same of experts that are given all tokens once for each, most of them as zeros (Llama 4)."""
        return self.routed(module, hidden, hidden.shape[0] // module.num_experts * chosen)

    def routed(self, module: Any, hidden: Any, routed: int) -> Any:
        """The output of experts for so many choices of tokens."""
        matrices = [one for one in module.parameters(recurse=False) if one.ndim == 3]
        numbers, width = [one.shape[0] for one in matrices], hidden.shape[-1]
        count, share, inner, products = min(numbers), -(-routed // max(numbers)), 0, []
        for matrix in matrices:
            first, second = matrix.shape[1:]
            down = "down" in _name(module, matrix) or "w2" in _name(module, matrix)
            inner = inner or (second if first == width and not down else first)
            given = (second if first == width else first) if down else width
            products.append(Product(share, given, first * second // given, count))
        made = sum(one.columns for one in products[:-1])
        active = products[-1].inner
        self.counter.use(module)
        moved = routed * (4 * width + made + 3 * active)
        self.counter.add_experts(count, products, moved, routed * (width + made + 2 * active))
        with self.counter.paused():
            return hidden.new_empty(hidden.shape).requires_grad_()

    def one(self, module: Any, plain: Any, *tensors: Any, **named: Any) -> Any:
        """The output of a normalisation or activation, which reads its inputs and keeps them."""
        with self.counter.paused():
            output = plain(*tensors, **named)
        given = [one for one in (*tensors, *named.values()) if getattr(one, "requires_grad", False)]
        if hasattr(output, "shape"):
            self.counter.use(module)
            self.counter.add((*given, output), given)
        return output

    def rotate(self, plain: Any, *tensors: Any, **named: Any) -> Any:
        """The output of a function that keeps nothing but what does not grow with heads."""
        with self.counter.paused():
            outputs = plain(*tensors, **named)
        made = outputs if isinstance(outputs, tuple | list) else (outputs,)
        self.counter.add([one for one in (*tensors, *made) if getattr(one, "requires_grad", False)])
        return outputs

    def selective_scan(self, _plain: Any, *tensors: Any, **named: Any) -> Any:
        """Mamba's scan: for each token the state of every channel, and its product with the token's vector."""
        hidden, step, decay, given, read = tensors[:5]
        samples, width, tokens = hidden.shape
        output = self._scanned(
            (hidden, step, given, read), named, [Product(width, decay.shape[-1], 1, tokens * samples)]
        )
        return (output, None) if named.get("return_last_state") else output

    def chunk_scan(self, _plain: Any, *tensors: Any, **named: Any) -> Any:
        """Mamba 2's scan in chunks: inside each by products of its tokens, and one state for each head between."""
        hidden, step, _, given, read = tensors[:5]
        size = tensors[5] if len(tensors) > 5 else named["chunk_size"]
        samples, tokens, heads, width = hidden.shape
        groups, state = given.shape[2:]
        chunks, length = -(-tokens // size) * samples, min(tokens, size)
        products = [
            Product(length, state, length, groups * chunks), Product(length, length, width, heads * chunks),
            Product(width, length, state, heads * chunks), Product(length, state, width, heads * chunks),
        ]  # fmt: skip
        output = self._scanned((hidden, step, given, read), named, products)
        return (output, None) if named.get("return_final_states") else output

    def delta_rule(self, _plain: Any, *tensors: Any, chunk_size: int = 64, **named: Any) -> Any:
        """The gated delta rule in chunks, with decays for each head or for each of its channels (Kimi's).

        Inside each chunk the products of its keys and queries, and their triangular inverse applied; between chunks one
        state for each head (Yang et al., arXiv:2412.06464, section 3.3). The making of the inverse is not counted.
        """
        names = ("query", "key", "value", "g", "beta")
        query, key, value, decay, rate = (*tensors, *(named[name] for name in names[len(tensors) :]))[:5]
        samples, tokens, heads, width = value.shape
        length, chunks, state = min(chunk_size, tokens), -(-tokens // chunk_size) * samples * heads, key.shape[-1]
        products = [
            Product(length, state, length, 2 * chunks), Product(length, length, width, 2 * chunks),
            Product(length, length, state, chunks), Product(length, state, width, 2 * chunks),
            Product(state, length, width, chunks),
        ]  # fmt: skip
        return self._scanned((value, query, key, decay, rate), named, products), None

    def matrix_memory(self, module: Any, query: Any, key: Any, value: Any, *gates: Any, **named: Any) -> Any:
        """The scan of xLSTM's matrix memory in chunks, and one state for each head between."""
        samples, heads, tokens, width = value.shape
        size, state = module.config.chunk_size, query.shape[-1]
        length, chunks = min(size, tokens), -(-tokens // size) * samples * heads
        products = [
            Product(length, state, length, chunks), Product(length, length, width, chunks),
            Product(length, state, width + 1, chunks), Product(state, length, width, chunks),
        ]  # fmt: skip
        used = [one for one in (value, query, key, *gates, named.get("igate"), named.get("fgate")) if one is not None]
        return self._scanned(tuple(used), {}, products), (None, None, None)

    def channels_scan(self, _plain: Any, *tensors: Any, **named: Any) -> Any:
        """A scan with one state for each channel, without products (RWKV, Griffin)."""
        grown = [one for one in (*tensors, *named.values()) if getattr(one, "ndim", 0) == 3]
        return self._scanned(tuple(grown), {}, []), None

    def _scanned(self, tensors: tuple[Any, ...], named: Mapping[str, Any], products: list[Product]) -> Any:
        """An output like the first of the tensors, which a scan reads and keeps."""
        with self.counter.paused():
            output = tensors[0].new_empty(tensors[0].shape).requires_grad_()
        used = [*tensors, *([named["z"]] if named.get("z") is not None else []), output]
        self.counter.add(used, used, products)
        return output


def _said(function: Any, depth: int = 0) -> str:
    """The names of a mask's function and of those that it is made of."""
    cells = [] if depth > 3 else [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    inner = [one for cell in cells for one in (cell if isinstance(cell, tuple) else (cell,)) if callable(one)]
    return " ".join([getattr(function, "__qualname__", ""), *(_said(one, depth + 1) for one in inner)])


def _name(module: Any, tensor: Any) -> str:
    return next(str(name) for name, one in module._parameters.items() if one is tensor)


@contextmanager
def fused(model: Any, kernels: Kernels) -> Iterator[None]:
    """A context in which the kernels of ``model`` are counted by their closed forms."""
    from transformers import masking_utils

    functions: dict[str, Callable[..., Any]] = {
        "mamba_selective_scan": kernels.selective_scan, "mamba2_chunk_scan": kernels.chunk_scan,
        "torch_chunk_gated_delta_rule": kernels.delta_rule, "chunk_gated_delta_rule": kernels.delta_rule,
        "chunk_kimi_delta_attention": kernels.delta_rule, "rwkv_linear_attention": kernels.channels_scan,
        "torch_compilable_check": lambda *_, **__: None,
    }  # fmt: skip
    from torch.distributions import Distribution

    changed = [(masking_utils, PACKED, getattr(masking_utils, PACKED))]
    changed.append((Distribution, "_validate_args", Distribution._validate_args))
    Distribution.set_default_validate_args(False)  # by the values of tensors
    setattr(masking_utils, PACKED, lambda _positions: None)
    for module in model.modules():
        kind = type(module)
        own = not kind.__module__.startswith("torch.") and not any(module.children())
        if own and (NORM.fullmatch(kind.__name__) or kind.__module__ == ACTIVATIONS):
            module.forward = partial(kernels.one, module, module.forward)
        if kind.__name__.endswith("Experts") and [*signature(kind.forward).parameters][1:4] == ROUTED:
            module.forward = partial(kernels.experts, module)
        if kind.__name__ == "xLSTMBackend":
            module.forward = partial(kernels.matrix_memory, module)
        if hasattr(module, "_rnn_scan"):
            module._rnn_scan = partial(kernels.channels_scan, None)
        for name, held in list(vars(module).items()):
            if callable(held) and getattr(held, "__name__", "") in functions:
                setattr(module, name, partial(functions[held.__name__], held))
        if kind.__name__ == "Llama4TextExperts":
            module.forward = partial(kernels.all_experts, module, model.config.get_text_config().num_experts_per_tok)
    for code in {type(module).__module__: sys.modules[type(module).__module__] for module in model.modules()}.values():
        for name, plain in list(vars(code).items()):
            note = functions.get(name) or (kernels.rotate if ROTATION.fullmatch(name) else None)
            if note and callable(plain):
                changed.append((code, name, plain))
                setattr(code, name, partial(note, plain))
    try:
        yield
    finally:
        for code, name, plain in changed:
            setattr(code, name, plain)
