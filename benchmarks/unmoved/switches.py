"""Which optimisations are there, and where is each switched back?

A switch exchanges functions of the product for the length of a run (``originals.py``), here alone: the product has no
options for it. ``quick`` names a function that the product calls and a run with the switch calls less or not at all,
``slow`` one that only such a run calls, or calls more often; tests/unit/test_unmoved.py counts both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora import Linear as PeftLinear
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from benchmarks.proof.faults import Patch
from benchmarks.unmoved import originals
from tightrope import types
from tightrope.assemble import online
from tightrope.kernels import products
from tightrope.maths import logprobs
from tightrope.models import backbone, layers, load, packed_forward, roles, weight_layout
from tightrope.rollout import decode_products, kv_cache, local_engine, lower_states, sampling
from tightrope.scoring import judge, reward_model
from tightrope.training import policy_objective

ADAM = sys.modules["torch.optim.adam"]
Place = tuple[Any, str]


@dataclass(frozen=True)
class Switch:
    """``instead``: what a run with it does. ``is_fault``: a control, which must be found to have moved learning."""

    name: str
    recipe: str
    what: str
    instead: str
    patches: tuple[Patch, ...] = ()
    quick: Place | None = None
    slow: Place | None = None
    is_fault: bool = False


PRODUCT = "product"
"""The setting of a run without a switch."""


def product_of(recipe: str) -> Switch:
    return Switch(PRODUCT, recipe, "as it is", "as it is")


def passes(change: Any) -> tuple[Patch, ...]:
    """Of the policy: while its rollout is judged, and while it is trained."""
    return tuple(Patch(owner, "token_logprobs", change) for owner in (judge, policy_objective))


ONEDNN = (Patch(products, "fast", originals.never),)
NORMS = (Patch(layers, "_exchanged", originals.norms_as_built),)
ADAPTERS = (Patch(layers, "_exchanged", originals.adapters_as_built),)
PADDED = tuple(Patch(owner, "family_of", originals.not_packed) for owner in (load, backbone))
EVERY_LOGIT = passes(originals.every_logit)
VALUES_APART = passes(originals.values_apart)
WITHOUT_CRITIC = (Patch(online, "LocalEngine", originals.without_critic),)
REFERENCE_APART = (Patch(roles, "reference_of", originals.reference_apart),)
FOR_LOOP = (Patch(torch.optim, "AdamW", originals.parameter_by_parameter),)
AS_THEY_ARE = (Patch(local_engine, "decode_products", originals.layers_as_they_are),)
AS_READ = (Patch(roles, "lay_out_frozen", originals.left_as_read),)
ONE_SCAN = (Patch(local_engine, "draw", originals.one_scan),)
PLAIN = (
    *ONEDNN,
    *NORMS,
    *ADAPTERS,
    *PADDED,
    *EVERY_LOGIT,
    *VALUES_APART,
    *WITHOUT_CRITIC,
    *REFERENCE_APART,
    *FOR_LOOP,
    *AS_THEY_ARE,
    *AS_READ,
    *ONE_SCAN,
)
GROUPS = tuple(
    Patch(owner, "microbatch_indices", originals.in_small_groups)
    for owner in (types, judge, local_engine, reward_model)
)
FILLING = tuple(Patch(owner, "recurring", originals.not_filled_up) for owner in (packed_forward, logprobs))

SWITCHES: Sequence[Switch] = (
    Switch("nothing", "whole", "nothing is switched", "the same run again"),
    Switch(
        "products",
        "whole",
        "products by oneDNN, with gradients written out",
        "torch's linear and its gradients",
        ONEDNN,
        (products, "_onednn"),
    ),
    Switch(
        "RMSNorm",
        "whole",
        "RMSNorm that keeps one number a row",
        "transformers' RMSNorm",
        NORMS,
        (layers, "rms_norm"),
        (LlamaRMSNorm, "forward"),
    ),
    Switch(
        "packed",
        "whole",
        "rows back to back, our attention and key-value cache",
        "rows filled up; transformers' attention, masks and cache",
        PADDED,
        (packed_forward.PackedLayout, "attend"),
        (packed_forward, "padded_states"),
    ),
    Switch(
        "logits",
        "whole",
        "logits at the actions alone, gradients of log-softmax and entropy written out",
        "logits of every token, torch's log-softmax and gradients",
        EVERY_LOGIT,
        (packed_forward, "chunked_logprobs"),
    ),
    Switch(
        "recompute",
        "whole",
        "logits that fit into 32 MiB are kept for the backward pass (those of the demo do)",
        f"{originals.FEW_ROWS} rows at a time, computed again in the backward pass",
        (Patch(packed_forward, "chunked_logprobs", originals.in_chunks),),
        slow=(logprobs, "_log_softmax_rows"),
    ),
    Switch(
        "gather",
        "whole",
        "rows are picked with a gradient that copies",
        "torch's indexing, with a gradient that adds",
        (Patch(packed_forward, "gather_rows", originals.by_index),),
        (packed_forward._GatherRows, "forward"),
    ),
    Switch(
        "filling",
        "whole",
        "passes and logits are filled up to numbers of rows that come again",
        "as many rows as there are",
        FILLING,
    ),
    Switch(
        "shared pass",
        "whole",
        "one pass of the trunk gives log-probs and values of an update",
        "the critic's values by a pass of their own, with its own gradients",
        VALUES_APART,
        slow=(packed_forward, "values_and_end_values"),
    ),
    Switch(
        "values while sampling",
        "whole",
        "the critic reads the states that tokens are drawn from; log-probs before the update are the sampler's",
        "the judge computes values and those log-probs in a pass over the finished rollout",
        WITHOUT_CRITIC,
        (local_engine, "head_on"),
        (judge, "token_logprobs"),
    ),
    Switch(
        "optimizer",
        "whole",
        "AdamW in one pass over memory",
        "AdamW parameter by parameter, operation by operation",
        FOR_LOOP,
        (ADAM, "_fused_adam"),
        (ADAM, "_single_tensor_adam"),
    ),
    Switch(
        "micro-batches",
        "whole",
        "a minibatch goes through at once (16,384 tokens would fit)",
        f"at most {originals.FEW_TOKENS} tokens at once: rollout, scores and update in small pieces",
        GROUPS,
        slow=(types.TokenRows, "select"),
    ),
    Switch(
        "decode products",
        "whole",
        "sampling reads each matrix as oneDNN wants it, from a copy",
        "sampling calls the layers as they are",
        AS_THEY_ARE,
        (decode_products, "product_with"),
        (layers.Dense, "forward"),
    ),
    Switch(
        "decode attention",
        "whole",
        "one token's attention as two batched products",
        "torch's fused attention",
        (Patch(kv_cache, "few_queries", originals.torchs_attention),),
        (torch, "baddbmm"),
    ),
    Switch(
        "drawing",
        "whole",
        "the search for a token goes over blocks, then inside one",
        "one cumulative sum over the vocabulary",
        ONE_SCAN,
        (sampling, "_search"),
    ),
    Switch(
        "adapter layers",
        "adapters",
        "layer and adapter as one function with gradients written out",
        "peft's own layer",
        ADAPTERS,
        (layers, "sum_of_products"),
        (PeftLinear, "forward"),
    ),
    Switch(
        "decode adapters",
        "adapters",
        "while sampling, the adapter is added in place",
        "sampling calls the layers as they are",
        AS_THEY_ARE,
        (decode_products, "with_adapter"),
        (layers.Adapted, "forward"),
    ),
    Switch(
        "weight layout",
        "adapters",
        "frozen matrices lie by inputs",
        "frozen matrices lie as they were read",
        AS_READ,
        (weight_layout, "by_inputs"),
    ),
    Switch(
        "shared reference",
        "adapters",
        "the reference is the backbone without adapters",
        "the reference is a copy of the starting policy",
        REFERENCE_APART,
        slow=(backbone.Network, "copy"),
    ),
    Switch(
        "lower layers",
        "upper adapters",
        "what no adapter reaches is computed once a rollout",
        "every pass goes through all layers",
        (Patch(online, "EngineWithLowerStates", originals.without_lower_states),),
        (lower_states, "with_lower_states"),
    ),
    Switch(
        "all at once",
        "adapters",
        "all of it",
        "transformers, peft and torch: products, RMSNorm, packed, logits, shared pass, values while sampling, "
        "optimizer, decode products, drawing, adapter layers, weight layout and shared reference, all switched back",
        PLAIN,
        (layers, "sum_of_products"),
        (packed_forward, "padded_states"),
    ),
    Switch(
        "fault: norm",
        "whole",
        "the gradient of RMSNorm",
        "without the term of the rms: a fault, to see whether one would show",
        (Patch(layers, "rms_norm", originals.norm_without_its_rms),),
        is_fault=True,
    ),
    Switch(
        "fault: stale copies",
        "whole",
        "the copies that sampling reads are made anew in each rollout",
        "they are made once: a fault, to see whether one would show",
        (Patch(local_engine, "decode_products", originals.copied_once),),
        is_fault=True,
    ),
)
