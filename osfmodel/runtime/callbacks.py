"""Callbacks to profile or watch training in Lightning and transformers' Trainer; a strategy for plans in Lightning.

Their classes derive from those of the frameworks, which is why they are made inside functions.
"""

from __future__ import annotations

import atexit
import os
import warnings
from contextlib import nullcontext
from importlib import import_module
from typing import Any

from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.plan import Plan
from osfmodel.runtime.executor import Executor, execute
from osfmodel.runtime.profiler import Profile, profile
from osfmodel.runtime.watching import Target, Watch, watch

STEPS = 20
"""Steps with hooks after which a callback removes them."""


class ModelProfiler:
    """A profiler of a model from ``start`` to ``stop``, which writes the workload to ``path``, if any."""

    def __init__(self, path: str | os.PathLike[str] | None = None, **options: Any) -> None:
        self.path, self.options = path, {"steps": STEPS, **options}
        self.profile: Profile | None = None
        self.entered = False

    def start(self, model: Any) -> None:
        """Attach the hooks. Raises UsageError if several workers train: they communicate in backward.

        A training before this one that broke off without a word is stopped first; the last one when the process ends.
        """
        import torch.distributed as dist

        self.stop()
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise UsageError(
                "several workers are training, so times would include communication: profile with one worker"
            )
        self.profile = profile(model, **self.options).__enter__()
        self.entered = True
        atexit.register(self.stop)

    def begin(self, batch: Any) -> None:
        """Note that the forward of a batch begins."""
        if self.profile is not None and self.entered:
            self.profile.begin(batch)

    def look(self) -> None:
        """Note that an iteration ended, and stop after the last one wanted."""
        if self.profile is not None and self.profile.done:
            self.stop()

    def stop(self) -> None:
        """Remove the hooks and write the file; too few steps give only a warning, so that training does not fail."""
        if self.profile is None or not self.entered:
            return
        self.entered = False
        atexit.unregister(self.stop)
        self.profile.__exit__(None, None, None)
        if self.path is not None:
            try:
                profiles.save(self.profile.workload, self.path)
            except DataError as error:
                warnings.warn(f"no profile of this training: {error}", stacklevel=2)


def lightning_callback(path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
    """A callback for a Lightning Trainer; ``.watch.profile.workload`` after fit, and in the file ``path`` if given.

    ``options`` are those of ``osfmodel.profile``; 20 steps by default. Raises UsageError if Lightning is
    not installed.
    """
    base = _base(("lightning.pytorch", "pytorch_lightning"), "Callback", "lightning")

    class LightningProfiling(base):  # type: ignore[misc, valid-type]
        """A callback that begins an iteration with each batch, since Lightning calls parts of a module, not all."""

        def __init__(self) -> None:
            super().__init__()
            self.watch = ModelProfiler(path, **options)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Attach the hooks."""
            self.watch.start(pl_module)

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            """Note that a forward begins."""
            self.watch.look()
            self.watch.begin(batch)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            """Remove the hooks."""
            self.watch.stop()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            """Remove the hooks, and write the measurements so far."""
            self.watch.stop()

    return LightningProfiling()


def lightning_strategy(plan: Plan, **options: Any) -> Any:
    """A strategy for a Lightning Trainer: DDPStrategy with gradients averaged by the executor, under ``plan``.

    ``options`` are those of ``osfmodel.execute``; ``.executor`` is what it returned, while the model is in training.
    Gradients are waited for after backward where the Trainer clips or unscales them. ``fit`` raises what ``execute``
    does, and UsageError for other than one optimizer; this, where Lightning is not installed.
    """
    base = _base(("lightning.pytorch.strategies", "pytorch_lightning.strategies"), "DDPStrategy", "lightning")

    class PlanStrategy(base):  # type: ignore[misc, valid-type]
        """DDPStrategy without DDP: its ranks, samplers, reductions and checkpoints."""

        executor: Executor | None = None

        def configure_ddp(self) -> None:
            """Leave the model unwrapped."""

        def setup(self, trainer: Any) -> None:
            """Put the model under the plan, if it is to be trained."""
            super().setup(trainer)
            if trainer.state.fn == "fit":
                if len(self.optimizers) != 1:
                    raise UsageError(f"the executor trains with one optimizer, not {len(self.optimizers)}")
                self.executor = execute(self.model, self.optimizers[0], plan, **options)

        def block_backward_sync(self) -> Any:
            """A context for all micro-batches of a step but the last."""
            return nullcontext() if self.executor is None else self.executor.no_sync()

        def post_backward(self, closure_loss: Any) -> None:
            """Wait for gradients that Lightning is about to use."""
            scaled = getattr(self.precision_plugin, "scaler", None) is not None
            if self.executor is not None and (scaled or self.lightning_module.trainer.gradient_clip_val):
                self.executor.synchronize()

        def teardown(self) -> None:
            """Restore the model as it was, with its trained parameters."""
            executor, self.executor = self.executor, None
            if executor is not None:
                executor.close()
            super().teardown()

    return PlanStrategy()


def transformers_callback(path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
    """A callback for the Trainer of transformers; as ``lightning_callback``."""
    base = _base(("transformers",), "TrainerCallback", "transformers")

    class TrainerProfiling(base):  # type: ignore[misc, valid-type]
        """A callback with hooks from the beginning of training to its end."""

        def __init__(self) -> None:
            self.watch = ModelProfiler(path, **options)

        def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            """Attach the hooks."""
            self.watch.start(named["model"])

        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            """Remove the hooks, once there are enough steps."""
            self.watch.look()

        def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            """Remove the hooks."""
            self.watch.stop()

    return TrainerProfiling()


def lightning_watch(*targets: Target, **options: Any) -> Any:
    """A callback for a Lightning Trainer that watches training; ``.watch`` is what ``osfmodel.watch`` returned.

    ``targets`` and ``options`` are those of ``osfmodel.watch``. Raises UsageError if Lightning is not installed.
    """
    base = _base(("lightning.pytorch", "pytorch_lightning"), "Callback", "lightning", "watch")

    class LightningWatching(base):  # type: ignore[misc, valid-type]
        """A callback that ends a step with each of the optimizer, whatever the number of micro-batches."""

        watch: Watch | None = None
        steps = 0

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Attach the hooks to the model as the strategy wrapped it."""
            self.watch = watch(trainer.strategy.model, *targets, **options)
            self.steps = trainer.global_step

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            """End a step, if the optimizer made one."""
            if self.watch is not None and trainer.global_step > self.steps:
                self.steps = trainer.global_step
                self.watch.step()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            """Remove the hooks."""
            if self.watch is not None:
                self.watch.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            """Remove the hooks, and write the steps so far."""
            if self.watch is not None:
                self.watch.__exit__(type(exception), exception, None)

    return LightningWatching()


def transformers_watch(*targets: Target, **options: Any) -> Any:
    """A callback for the Trainer of transformers, and what derives from it; as ``lightning_watch``."""
    base = _base(("transformers",), "TrainerCallback", "transformers", "watch")

    class TrainerWatching(base):  # type: ignore[misc, valid-type]
        """A callback with hooks from the beginning of training to its end."""

        watch: Watch | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            """Attach the hooks."""
            if self.watch is not None:  # a training before this one broke off
                self.watch.close()
            self.watch = watch(named["model"], *targets, **options)

        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            """End a step."""
            if self.watch is not None:
                self.watch.step()

        def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            """Remove the hooks."""
            if self.watch is not None:
                self.watch.close()

    return TrainerWatching()


def _base(modules: tuple[str, ...], name: str, package: str, instead: str = "profile") -> Any:
    for module in modules:
        try:
            return getattr(import_module(module), name)
        except ImportError:
            continue
    raise UsageError(f"{package} is not installed: pip install {package}, or use osfmodel.{instead} in your own loop")
