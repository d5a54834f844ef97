"""The memory of a plan's collectives: where gradients live, and what of them each message carries.

Every gradient has a home of its own, in the buffer of its message if it travels whole, and is scaled on its way there:
the memory that autograd added it up in may be that of another gradient still to come. Only pieces of a cut tensor that
travel with others are copied out again. A gradient of a sparse bucket has none: it goes into what was not sent before,
and its mean is made when the entries of all ranks are there, whose memory is given back then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from osfmodel.errors import JobError, UsageError
from osfmodel.plan import Bucket, Plan
from osfmodel.runtime.sparse import Packing, Residual, flat_of


@dataclass(eq=False, slots=True)
class Gradient:
    """The gradient of one parameter.

    like:   a tensor without memory that has its shape, and strides without gaps
    home:   the memory that it lives in: part of a message's buffer, or that of a cut tensor; None for a sparse one
    unsent: what has not been sent of a sparse one, of which each message takes its entries; None for others
    value:  that of this iteration, once it is there
    taken:  whether this backward has given it
    used:   whether a backward gave something since the last that was sent
    absent: whether what is under way is not of this iteration; ``kept`` is what it had been, left so if no rank has one
    """

    name: str
    parameter: Any
    like: Any
    messages: list[Message] = field(default_factory=list)
    home: Any = None
    unsent: Any = None
    value: Any = None
    taken: bool = False
    used: bool = False
    absent: bool = False
    kept: Any = None

    def lack(self, scale: float) -> None:
        """Backward gave nothing: what was there before is this rank's part, or zeros."""
        there = self.parameter.grad
        self.absent, self.kept = True, None if there is None else there.clone()
        if there is None:
            self.parameter.grad = self.home.zero_()
        self.take(scale)

    def take(self, scale: float) -> None:
        """Autograd has added up ``parameter.grad``: put it, scaled, to where it is sent from."""
        import torch

        found = self.parameter.grad
        if found.layout != torch.strided:
            raise UsageError(f"the gradient of {self.name!r} is sparse: make the layer with sparse=False")
        self.taken = True
        if self.unsent is None:
            self.value = self.parameter.grad = torch.mul(found, scale, out=self.home)
        else:
            self.unsent.add(found, scale)
            self.parameter.grad = None
        del found  # given back before entries are chosen, which takes memory
        for message in self.messages:
            message.take(self)


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements ``first`` to ``last`` of a gradient, which stand at ``place`` in a message."""

    gradient: Gradient
    first: int
    last: int
    place: int

    @property
    def whole(self) -> bool:
        """Whether it is all of the gradient."""
        return bool(self.last - self.first == self.gradient.parameter.numel())

    def source(self) -> Any:
        """The elements in the gradient."""
        return flat_of(self.gradient.value)[self.first : self.last]

    def within(self, buffer: Any) -> Any:
        """The elements in the buffer of the message."""
        return buffer[self.place : self.place + self.last - self.first]


@dataclass(eq=False, slots=True)
class Message:
    """One bucket of the plan, and its collective while there is one.

    buffer: None where it is a piece of a cut tensor, sent out of the gradient itself
    shard:  this rank's part between reduce-scatter and all-gather; None for an all-reduce
    """

    number: int
    pieces: tuple[Piece, ...]
    buffer: Any = None
    shard: Any = None
    missing: int = 0
    work: Any = None

    def reset(self) -> None:
        """Another iteration begins."""
        self.missing, self.work = len(self.pieces), None

    def take(self, gradient: Gradient) -> None:
        """A gradient is there."""
        for piece in self.pieces:
            if piece.gradient is gradient:
                self.missing -= 1
                if self.buffer is not None and not piece.whole:
                    piece.within(self.buffer).copy_(piece.source())

    def start(self, channels: Any) -> None:
        """All gradients are there: send them."""
        if self.shard is not None:
            self.work = channels.reduce_scatter(self.shard, self.content())
        else:
            self.work = channels.all_reduce(self.content())

    def content(self) -> Any:
        """What is sent."""
        return self.pieces[0].source() if self.buffer is None else self.buffer

    def land(self) -> None:
        """It has arrived: copy the pieces of cut tensors out."""
        for piece in self.pieces if self.buffer is not None else ():
            if not piece.whole:
                piece.source().copy_(piece.within(self.buffer))


@dataclass(eq=False, slots=True)
class SparseMessage(Message):
    """One sparse bucket: its buffer, that of its all-gather, lives from then until the means are made.

    part: this rank's entries, from the first gradient on
    """

    packing: Packing = None  # type: ignore[assignment]
    world: int = 1
    part: Any = None

    def take(self, gradient: Gradient) -> None:
        """A gradient is there: choose of it and of what is left of those before."""
        import torch

        if self.part is None:
            self.part = torch.empty(self.packing.bytes, dtype=torch.uint8, device=gradient.parameter.device)
        for number, piece in enumerate(self.pieces):
            if piece.gradient is gradient:
                self.missing -= 1
                self.packing.put(self.part, number, *gradient.unsent.choose(self.packing.counts[number]))

    def start(self, channels: Any) -> None:
        """All entries are there: send them."""
        self.buffer = self.part.new_empty(self.world * self.packing.bytes)
        self.work = channels.all_gather(self.buffer, self.part)

    def land(self) -> None:
        """The entries of all ranks have arrived: add them up. Raises JobError where one is no finite number."""
        for rank, number in self.packing.faults(self.buffer):
            raise JobError(
                f"the gradient of {self.pieces[number].gradient.name!r} on rank {rank} is no finite number, nor is "
                "what its sparse bucket has not sent: start again from a checkpoint, with a lower learning rate, say"
            )
        for number, piece in enumerate(self.pieces):
            piece.gradient.value = self.packing.mean(self.buffer, number, piece.gradient.like)
        self.buffer = self.part = None


def messages_of(plan: Plan, parameters: Mapping[str, Any], world: int) -> tuple[list[Message], list[Gradient]]:
    """The messages in the order of the plan, and the gradients in the order of ``parameters``, given by layer."""
    import torch

    gradients = {
        name: Gradient(name, parameter, torch.empty_like(parameter, device="meta").detach())
        for name, parameter in parameters.items()
        if parameter.numel()
    }
    messages = [_message(number, bucket, gradients, world) for number, bucket in enumerate(plan.buckets)]
    for message in messages:
        if not isinstance(message, SparseMessage):
            _allot(message, world if plan.split else 0)
        message.reset()
        for gradient in dict.fromkeys(piece.gradient for piece in message.pieces):
            gradient.messages.append(message)
    for gradient in gradients.values():
        if gradient.home is None and gradient.unsent is None:
            gradient.home = torch.empty_like(gradient.like, device=gradient.parameter.device)
    return messages, list(gradients.values())


def _message(number: int, bucket: Bucket, gradients: Mapping[str, Gradient], world: int) -> Message:
    pieces, place = [], 0
    for block in bucket.blocks:
        gradient = gradients[block.layer]
        size = gradient.parameter.element_size()
        pieces.append(Piece(gradient, block.offset // size, (block.offset + block.bytes) // size, place))
        place += block.bytes // size
    if bucket.density is None:
        return Message(number, tuple(pieces))
    tensors = [piece.gradient.parameter for piece in pieces]
    for piece in pieces:
        piece.gradient.unsent = Residual(piece.gradient.parameter, piece.gradient.like)
    packing = Packing([tensor.numel() for tensor in tensors], bucket.density, tensors[0].dtype)
    return SparseMessage(number, tuple(pieces), packing=packing, world=world)


def _allot(message: Message, shards: int) -> None:
    """Memory for a message, padded to a multiple of ``shards`` where it is cut in so many, and homes in it."""
    last, parameter = message.pieces[-1], message.pieces[0].gradient.parameter
    length = last.place + last.last - last.first
    padded = length + (-length % shards if shards else 0)
    if shards:
        message.shard = parameter.detach().new_zeros(padded // shards)
    if len(message.pieces) == 1 and padded == length and not last.whole:
        return
    message.buffer = parameter.detach().new_zeros(padded)
    for piece in message.pieces:
        if piece.whole:
            like = piece.gradient.like
            piece.gradient.home = piece.within(message.buffer).as_strided(like.size(), like.stride())
