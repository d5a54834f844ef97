"""The predictors, in the order of the page."""

from collections.abc import Mapping

from adapters import (
    Peer,
    accelerate,
    aiconfigurator,
    calculon,
    deepspeed,
    llm_analysis,
    megatron,
    mlsysim,
    ours,
    roofline,
    simumax,
)

PEERS: Mapping[str, Peer] = {
    "osfmodel": ours.AS_IT_COMES,
    "osfmodel, held out": ours.HELD_OUT,
    "roofline": roofline.PEER,
    "mlsysim": mlsysim.PEER,
    "llm-analysis": llm_analysis.PEER,
    "aiconfigurator-core": aiconfigurator.PEER,
    "deepspeed": deepspeed.PEER,
    "accelerate": accelerate.PEER,
    "calculon": calculon.PEER,
    "SimuMax": simumax.PEER,
    "Megatron-LM's formula": megatron.PEER,
}
NOT_ASKED: Mapping[str, str] = {
    "hetu-galvatron 2.4.0": "its cost model takes layer times that its own profiler measured on the GPU",
    "vTrain": "it replays kernels that its own profiler traced on a GPU",
}
"""Predictors that published figures alone cannot ask."""
