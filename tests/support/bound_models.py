"""Inputs for bound models, and snapshots to compare a model before and after binding."""

import torch

from ragbias.methods import ChannelScaling, NoMethod, Pine
from support.segments import Segments

METHODS = [NoMethod(), Pine(), ChannelScaling(5, 0.0, layers=(1, 2)), ChannelScaling(9, -1.0, layers=(0, 0))]
SEGMENTS = Segments([8, 5, 11, 7])
IDS, SPANS = SEGMENTS.plain


def snapshot(model):
    """Copy everything that a binding may change: hooks, configs, attributes, weights."""
    return {
        name: (
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            id(getattr(module, "config", None)),
            getattr(getattr(module, "config", None), "_attn_implementation", None),
            sorted(vars(module)),
            sum(float(parameter.detach().double().sum()) for parameter in module.parameters(recurse=False)),
        )
        for name, module in model.named_modules()
    }


@torch.no_grad()
def logits(model, ids=IDS):
    return model(ids).logits
