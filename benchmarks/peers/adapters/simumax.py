"""SimuMax (github.com/MooreThreads/SimuMax): PerfLLM on its file of B200, whose kernels it measured for these models.

It is in no package index. Its file of A100 is of cards on PCIe, which no run here had.
"""

import sys
from functools import lru_cache
from typing import Any

from rows import PeerRow

from adapters import Answer, Peer, cloned, need

COMMIT = "4dcaae513ba7679d56c116a17cd4a691ec41e252"
SYSTEM = "configs/system/b200_bf16_ceperm.json"


def _folder() -> Any:
    return cloned("SimuMax", "https://github.com/MooreThreads/SimuMax", COMMIT, "simumax/core/perf_llm.py")


def _open() -> str:
    folder = str(_folder())
    if folder not in sys.path:
        sys.path.append(folder)
    import simumax.core.perf_llm  # noqa: F401
    from simumax.version import __version__

    return f"{__version__} ({COMMIT[:8]})"


@lru_cache(maxsize=1)
def _system() -> Any:
    from simumax.core.config import SystemConfig

    return SystemConfig.init_from_config_file(str(_folder() / SYSTEM))


def _ask(row: PeerRow) -> Answer:
    from simumax.core.config import ModelConfig, StrategyConfig
    from simumax.core.perf_llm import PerfLLM

    sizes, groups = row.sizes, row.groups
    need(row.setting.gpu == "b200", "it has no such system")
    need(not row.fp8, "its file of B200 has kernels in bfloat16 alone")
    need(row.zero == 1 and not sizes.experts, "asked for ZeRO-1 of dense models alone")
    model = ModelConfig(
        model_type="dense",
        model_name="model",
        hidden_size=sizes.width,
        head_num=sizes.heads,
        kv_head_num=sizes.key_heads,
        head_size=sizes.head_width,
        intermediate_size=sizes.inner,
        layer_num=sizes.layers,
        vocab_size=sizes.vocabulary,
        use_swiglu=sizes.gated,
    )
    strategy = StrategyConfig(
        seq_len=row.tokens,
        micro_batch_size=row.setting.batch,
        micro_batch_num=row.stated.micro_batches,
        world_size=row.stated.gpus,
        tp_size=groups.tensor,
        pp_size=groups.pipeline,
        cp_size=groups.context,
        zero_state=1,
        enable_recompute=row.setting.checkpointing == "full",
        cross_entropy_loss_fusion=True,
        te_version="2.11.0",  # of its guide to these runs
    )
    predictor = PerfLLM()
    predictor.configure(strategy_config=strategy, model_config=model, system_config=_system())
    predictor.run_estimate()
    memory = predictor.analysis_mem().data
    stages = [memory, *(one for one in memory.values() if isinstance(one, dict))]
    peaks = [_bytes(stage["peak_mem"]) for stage in stages if "peak_mem" in stage]
    return Answer(_seconds(predictor.analysis_cost().data["duration_time_per_iter"]), max(peaks))


UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def _seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * UNITS[unit]


_bytes = _seconds
PEER = Peer(_open, _ask, "`PerfLLM` on its B200, measured for its own runs", "peak of allocated memory")
