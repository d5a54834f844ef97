"""The memory of a plan's collectives: the home of each gradient, and the parts that each message carries.

Every gradient has a home of its own, in the buffer of its message if it travels whole, and is scaled on its way there:
the memory that autograd added it up in may be that of another gradient still to come. Only pieces of a cut tensor that
travel with others are copied out again. A gradient of a sparse bucket has none: it is added to its unsent rest. Its
mean is computed when the entries of all ranks have arrived, and their memory is freed then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from osfmodel.entities.errors import JobError, UsageError
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.records import dataclass, field
from osfmodel.runtime.executor.error_feedback import Mirror, Packing, Residual, flat_of
from osfmodel.runtime.executor.separate import Groups, veil_type, veiled

SENT = (
    "the gradients of this backward are on their way to other ranks while it runs: look at those of other parameters, "
    "or change them, when backward() has returned"
)


@dataclass(eq=False, slots=True)
class Gradient:
    """The gradient of one parameter.

    like:   a tensor without memory that has its shape, and strides without gaps
    home:   its memory: part of a message's buffer, or that of a cut tensor; None for a sparse one, and
            between iterations if it is released
    unsent: the unsent part of a sparse one, from which each message takes its entries; None for others
    value:  the value of this iteration; of a sparse one, once its message has arrived
    veil:   the type of the parameter's ``grad`` until backward has ended
    taken:  whether it was taken from ``parameter.grad`` in this backward
    released: whether its memory is freed as soon as the parameter is updated
    used:   whether a backward has produced it since it was last sent
    absent: whether this rank sends something else, as its backward produced none; ``kept`` is the earlier ``grad``,
            restored if no rank has one
    form:   shape, type and strides of the parameter when homes were made
    """

    name: str
    parameter: Any
    like: Any
    messages: list[Message] = field(default_factory=list)
    home: Any = None
    unsent: Any = None
    value: Any = None
    veil: Any = None
    taken: bool = False
    released: bool = False
    used: bool = False
    absent: bool = False
    kept: Any = None
    form: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.form = self._form()

    def _form(self) -> tuple[Any, ...]:
        return tuple(self.parameter.shape), str(self.parameter.dtype)[6:], self.parameter.stride()

    def settle(self) -> None:
        """Give the gradient a home: in the buffers of messages, or of its own if it does not travel whole."""
        import torch

        if self.home is None:
            for message in self.messages:
                message.allot()
            if self.home is None:
                self.home = torch.empty_like(self.like, device=self.parameter.device)

    def lack(self, scale: float) -> None:
        """Handle a gradient that backward did not give: its part is its earlier value, or zeros."""
        there = self.parameter.grad
        self.absent, self.kept = True, None if there is None else there.clone()
        if there is None:
            self.parameter.grad = self.home.zero_()
        self.take(scale)

    def take(self, scale: float) -> None:
        """Put ``parameter.grad``, which autograd has accumulated, scaled into the memory that is sent."""
        import torch

        found = self.parameter.grad
        if found.layout != torch.strided:
            raise UsageError(f"the gradient of {self.name!r} is sparse: make the layer with sparse=False")
        if self._form() != self.form:  # fused optimizers would take elements for others
            raise UsageError(
                f"{self.name!r} has shape, type and strides {self._form()}, and had {self.form} at execute(): convert "
                "the model before, or close() the executor and call execute() again"
            )
        self.taken = True
        if self.unsent is None:
            self.settle()
            self.value = torch.mul(found, scale, out=self.home)
        else:
            self.unsent.add(found, scale)
        there = without_memory(self.parameter) if self.released or self.value is None else self.value
        self.parameter.grad = veiled(there, self.veil)
        del found  # given back before entries are chosen, which takes memory
        for message in self.messages:
            message.take(self)

    def require_first(self, *_: Any) -> None:
        """Raise UsageError if this backward has already produced it."""
        if self.taken:
            raise UsageError(
                f"{self.name!r} got a second gradient in one backward, as where reentrant checkpoints share it: "
                "checkpoint with use_reentrant=False"
            )

    def uncover(self) -> None:
        """Remove a veil that an error left in place of the gradient."""
        if isinstance(self.parameter.grad, self.veil):
            self.parameter.grad = None


@dataclass(frozen=True, slots=True)
class MessagePiece:
    """Elements ``first`` to ``last`` of a gradient, at ``place`` in a message."""

    gradient: Gradient
    first: int
    last: int
    place: int

    @property
    def whole(self) -> bool:
        """Whether it is the whole gradient."""
        return bool(self.last - self.first == self.gradient.parameter.numel())

    def source(self) -> Any:
        """The elements in the gradient."""
        return flat_of(self.gradient.value)[self.first : self.last]

    def within(self, buffer: Any) -> Any:
        """The elements in the buffer of the message."""
        return buffer[self.place : self.place + self.last - self.first]


@dataclass(eq=False, slots=True)
class Message:
    """One bucket of the plan, and its collective while it runs.

    buffer: None for a piece of a cut tensor, sent out of the gradient itself
    shards: number of parts to which a split one is padded
    shard:  this rank's part between reduce-scatter and all-gather; None for an all-reduce
    """

    number: int
    pieces: tuple[MessagePiece, ...]
    buffer: Any = None
    shards: int = 0
    shard: Any = None
    missing: int = 0
    work: Any = None

    @property
    def gradients(self) -> list[Gradient]:
        """The gradients whose pieces it carries."""
        return list(dict.fromkeys(piece.gradient for piece in self.pieces))

    def allot(self) -> None:
        """Allocate memory, padded to a multiple of the shards, and homes in it for gradients that travel whole."""
        last, parameter = self.pieces[-1], self.pieces[0].gradient.parameter
        length = last.place + last.last - last.first
        padded = length + (-length % self.shards if self.shards else 0)
        if self.shards and self.shard is None:
            self.shard = parameter.detach().new_zeros(padded // self.shards)
        if self.buffer is not None or (len(self.pieces) == 1 and padded == length and not last.whole):
            return
        self.buffer = parameter.detach().new_zeros(padded)
        for piece in self.pieces:
            if piece.whole:
                like = piece.gradient.like
                piece.gradient.home = piece.within(self.buffer).as_strided(like.size(), like.stride())

    def reset(self) -> None:
        """Prepare for another iteration."""
        self.missing, self.work = len(self.pieces), None

    def take(self, gradient: Gradient) -> None:
        """Take a gradient that is ready."""
        for piece in self.pieces:
            if piece.gradient is gradient:
                self.missing -= 1
                if self.buffer is not None and not piece.whole:
                    piece.within(self.buffer).copy_(piece.source())

    def start(self, channels: Any) -> None:
        """Start sending: all gradients are ready."""
        if self.shard is not None:
            self.work = channels.reduce_scatter(self.shard, self.content())
        else:
            self.work = channels.all_reduce(self.content())

    def content(self) -> Any:
        """The tensor to send."""
        return self.pieces[0].source() if self.buffer is None else self.buffer

    def land(self) -> None:
        """Copy the pieces of cut tensors out of the message that has arrived."""
        for piece in self.pieces if self.buffer is not None else ():
            if not piece.whole:
                piece.source().copy_(piece.within(self.buffer))


@dataclass(eq=False, slots=True)
class SparseMessage(Message):
    """One sparse bucket; the buffer of its all-gather lives from there until the means are made.

    part: this rank's entries, from the first gradient on
    """

    packing: Packing = None  # type: ignore[assignment]
    world: int = 1
    part: Any = None

    def take(self, gradient: Gradient) -> None:
        """Choose entries of a gradient that is ready and of its unsent part."""
        import torch

        if self.part is None:
            self.part = torch.empty(self.packing.bytes, dtype=torch.uint8, device=gradient.parameter.device)
        for number, piece in enumerate(self.pieces):
            if piece.gradient is gradient:
                self.missing -= 1
                self.packing.put(self.part, number, *gradient.unsent.choose(self.packing.counts[number]))

    def start(self, channels: Any) -> None:
        """Start sending: all entries are chosen."""
        self.buffer = self.part.new_empty(self.world * self.packing.bytes)
        self.work = channels.all_gather(self.buffer, self.part)

    def land(self) -> None:
        """Add up the entries of all ranks, which have arrived. Raises JobError if one is not a finite number."""
        for rank, number in self.packing.faults(self.buffer):
            raise JobError(
                f"the gradient of {self.pieces[number].gradient.name!r} on rank {rank} is NaN or infinite, and so is "
                "the unsent rest of its sparse bucket: start again from a checkpoint, for example with a lower "
                "learning rate"
            )
        for number, piece in enumerate(self.pieces):
            piece.gradient.value = self.packing.mean(self.buffer, number, piece.gradient.like)
        self.buffer = self.part = None


def without_memory(parameter: Any) -> Any:
    """A tensor in the parameter's shape with the memory of one element."""
    return parameter.detach().new_zeros(()).expand(parameter.shape)


@contextmanager
def following(gradients: Iterable[Gradient]) -> Iterator[None]:
    """A context for an update of their parameters, in which unsent parts stay the same."""
    kept = [gradient.unsent for gradient in gradients if gradient.unsent is not None]
    for unsent in kept:
        unsent.part()
    yield
    for unsent in kept:
        unsent.join()


def messages_of(
    plan: Plan, parameters: Mapping[str, Any], world: int, groups: Groups | None
) -> tuple[list[Message], list[Gradient]]:
    """The messages in the order of the plan, and the gradients in the order of ``parameters``, given by layer.

    groups: of the optimizer, for the learning rates of mirrors
    """
    import torch

    veil = veil_type(SENT)
    gradients = {
        name: Gradient(
            name, parameter, torch.empty_like(parameter, device="meta").detach(), veil=veil, released=plan.release
        )
        for name, parameter in parameters.items()
        if parameter.numel()
    }
    messages = []
    for number, bucket in enumerate(plan.buckets):
        pieces = tuple(_pieces(bucket, gradients))
        if bucket.density is None:
            messages.append(Message(number, pieces, shards=world if plan.split else 0))
        else:
            messages.append(_sparse(number, pieces, bucket.density, world))
            for piece in pieces:
                piece.gradient.unsent = _kept(piece.gradient, groups if plan.mirror else None)
    for message in messages:
        message.reset()
        for gradient in message.gradients:
            gradient.messages.append(message)
    for gradient in gradients.values():
        if gradient.unsent is None and not plan.release:
            gradient.settle()
    return messages, list(gradients.values())


def _pieces(bucket: Bucket, gradients: Mapping[str, Gradient]) -> Iterator[MessagePiece]:
    place = 0
    for block in bucket.blocks:
        gradient = gradients[block.layer]
        size = gradient.parameter.element_size()
        yield MessagePiece(gradient, block.offset // size, (block.offset + block.bytes) // size, place)
        place += block.bytes // size


def _sparse(number: int, pieces: tuple[MessagePiece, ...], density: float, world: int) -> SparseMessage:
    tensors = [piece.gradient.parameter for piece in pieces]
    packing = Packing([tensor.numel() for tensor in tensors], density, tensors[0].dtype)
    return SparseMessage(number, pieces, packing=packing, world=world)


def _kept(gradient: Gradient, groups: Groups | None) -> Residual | Mirror:
    if groups is None:
        return Residual(gradient.parameter, gradient.like)
    return Mirror(gradient.name, gradient.parameter, gradient.like, groups)
