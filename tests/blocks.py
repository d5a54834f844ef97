"""A model in blocks that says what it keeps: four blocks of three layers, an input layer and a classifier."""

from __future__ import annotations

from osfmodel import Layer, Segment, Workload

MIB = 1 << 20


def blocks(batch_size=16, count=4, **more):
    """Times and activations grow in proportion to the batch."""
    layers = [layer("stem", 2, MIB, 8, batch_size)]
    segments = []
    for block in range(count):
        names = [f"block{block}.{part}" for part in ("one", "two", "three")]
        layers += [layer(name, 4, 2 * MIB, 12, batch_size) for name in names]
        segments.append(Segment(f"block{block}", names[0], names[-1], 20 * MIB * batch_size))
    layers.append(layer("classifier", 1, 8 * MIB, 2, batch_size))
    known, below = [], 0
    for one in layers:
        below += one.activation_bytes
        known.append(with_peak(one, below + 4 * MIB * batch_size))
    weights = sum(one.gradient_bytes for one in layers)
    facts = {"state_bytes": weights, "update_bytes": MIB, "fixed_bytes": MIB, **more}
    return Workload("blocks", tuple(known), batch_size, 2e-3, segments=tuple(segments), **facts)


def layer(name, milliseconds, gradient_bytes, mebibytes, batch_size):
    """Per sample a sixteenth of ``milliseconds`` forward, twice that backward, and so many MiB kept."""
    forward = milliseconds * 1e-3 * batch_size / 16
    return Layer(name, forward, 2 * forward, gradient_bytes, activation_bytes=mebibytes * MIB * batch_size // 2)


def with_peak(one, peak_bytes):
    """The same layer with a peak."""
    return Layer(
        one.name, one.forward_time, one.backward_time, one.gradient_bytes, activation_bytes=one.activation_bytes,
        peak_bytes=peak_bytes,
    )  # fmt: skip
