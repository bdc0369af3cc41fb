"""Do the axes written in each signature hold when the function runs?

The annotations are read at type-checking time only; here they are brought to life and checked, call by call.
"""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Callable

import jaxtyping
import pytest
import torch
from beartype import beartype

MODULES = (
    "advantages diagnostics kl logprobs penalties policy_losses preference_losses ragged ranking_losses "
    "statistics value_losses"
)
ACTIONS, SEQUENCES, OFFSETS = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([1.0, 2.0]), torch.tensor([0, 2, 3])
GROUP = torch.tensor([0, 0])
LOGITS, TOKENS = torch.zeros(3, 4), torch.tensor([0, 1, 2])

CALLS: dict[str, tuple] = {
    "advantages.token_rewards": (SEQUENCES, ACTIONS, 0.1, OFFSETS),
    "advantages.gae": (ACTIONS, ACTIONS, OFFSETS, 1.0, SEQUENCES, SEQUENCES),
    "advantages.decoupled_gae": (ACTIONS, ACTIONS, OFFSETS, 1.0, SEQUENCES, 1.0, SEQUENCES),
    "advantages.length_adaptive_lambda": (OFFSETS, 0.5),
    "advantages.whiten": (ACTIONS,),
    "advantages.rloo_advantages": (SEQUENCES, GROUP),
    "diagnostics.approx_kl": (ACTIONS, ACTIONS),
    "diagnostics.pair_outcomes": (ACTIONS, ACTIONS),
    "kl.k1": (ACTIONS, ACTIONS),
    "kl.k2": (ACTIONS, ACTIONS),
    "kl.k3": (ACTIONS, ACTIONS),
    "kl.clamp_log_ratio": (LOGITS,),
    "logprobs.logprobs_and_entropy": (LOGITS, TOKENS, 1.0),
    "logprobs.chunked_logprobs": (torch.zeros(3, 2), torch.zeros(4, 2), torch.zeros(4), TOKENS, 1.0),
    "logprobs.output_logits": (torch.zeros(3, 2), torch.zeros(4, 2), torch.zeros(4)),
    "penalties.length_cost": (SEQUENCES, torch.tensor([3, 4]), 0.1),
    "kl.ratio_k3": (ACTIONS, ACTIONS, ACTIONS),
    "penalties.over_budget": (SEQUENCES, torch.tensor([3, 4]), 0.1, 2),
    "penalties.soft_overlong": (SEQUENCES, torch.tensor([3, 4]), 0.1, 4, 2),
    "penalties.stop_properly": (SEQUENCES, torch.tensor([True, False]), 0.5),
    "policy_losses.aggregation_weights": (OFFSETS, "token_mean", 4),
    "penalties.missing_eos": (SEQUENCES, torch.tensor([True, False]), 1.0, "subtract"),
    "policy_losses.ppo_clip": (ACTIONS, ACTIONS, ACTIONS, 0.2, 0.2),
    "policy_losses.sequence_clip": (ACTIONS, ACTIONS, SEQUENCES, OFFSETS, 0.2, 0.2),
    "preference_losses.bradley_terry": (ACTIONS, ACTIONS, ACTIONS),
    "preference_losses.centering": (ACTIONS, ACTIONS),
    "ragged.segment_sum": (ACTIONS, OFFSETS),
    "ragged.segment_ids": (OFFSETS,),
    "ragged.segment_last_index": (OFFSETS,),
    "ragged.discounted_to_go": (ACTIONS, OFFSETS, SEQUENCES),
    "ranking_losses.ranked_pairs": (torch.tensor([1, 2, 3]), torch.tensor([0, 3])),
    "ranking_losses.kwise": (ACTIONS, torch.tensor([1, 2, 3]), torch.tensor([0, 3])),
    "ranking_losses.plackett_luce": (ACTIONS, torch.tensor([1, 2, 3]), torch.tensor([0, 3])),
    "ranking_losses.best_of_n": (ACTIONS, torch.tensor([1]), torch.tensor([0, 3])),
    "statistics.moments": (ACTIONS,),
    "statistics.gain_and_bias": (ACTIONS,),
    "value_losses.clipped_value_loss": (ACTIONS, ACTIONS, ACTIONS, 0.2),
    "value_losses.explained_variance": (ACTIONS, ACTIONS),
}


def annotated_functions() -> dict[str, Callable]:
    """Every public function of ``maths`` whose signature names an axis."""
    found = {}
    for name in MODULES.split():
        module = importlib.import_module(f"tightrope.maths.{name}")
        for label, function in inspect.getmembers(module, inspect.isfunction):
            if (
                function.__module__ == module.__name__
                and not label.startswith("_")
                and "[Tensor" in str(function.__annotations__)
            ):
                found[f"{name}.{label}"] = function
    return found


def checked(function: Callable) -> Callable:
    plain = inspect.unwrap(function)
    names = vars(jaxtyping) | plain.__globals__
    alive = types.FunctionType(plain.__code__, plain.__globals__, plain.__name__, plain.__defaults__)
    alive.__kwdefaults__ = plain.__kwdefaults__
    alive.__annotations__ = {argument: eval(hint, names) for argument, hint in plain.__annotations__.items()}
    return jaxtyping.jaxtyped(typechecker=beartype)(alive)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_axes_hold(name) -> None:
    checked(annotated_functions()[name])(*CALLS[name])


def test_every_annotated_function_is_checked() -> None:
    missing = set(annotated_functions()) - set(CALLS) - {"preference_losses.dpo"}  # its four share one shape
    assert not missing


def test_a_wrong_axis_is_noticed() -> None:
    with pytest.raises(Exception, match="actions"):
        checked(annotated_functions()["kl.k1"])(ACTIONS, SEQUENCES)
