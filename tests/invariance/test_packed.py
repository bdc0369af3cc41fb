"""Does the packed forward give what transformers gives for each row padded in a batch: values and gradients?

Tolerance 1e-5 throughout: float32 in another order of summation; 1e-6 to 3e-6 was measured.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.tiny import tiny_gpt2, tiny_llama
from tightrope.config.errors import TightropeError
from tightrope.config.schema import ModelSection
from tightrope.models.attention import Scores
from tightrope.models.packed_forward import (
    PackedLayout,
    action_values,
    filled_up,
    hidden_states,
    sequence_scores,
    token_logprobs,
)
from tightrope.models.roles import Role, Roles, offline_roles, online_roles
from tightrope.types import TokenRows

FAMILIES = {
    "llama": lambda folder: tiny_llama(folder),
    "llama_tied": lambda folder: tiny_llama(folder, tied=True, kv_heads=4),
    "llama_one_kv_head": lambda folder: tiny_llama(folder, kv_heads=1),
    "gpt2": lambda folder: tiny_gpt2(folder),
}
TEMPERATURE = 0.7
# Lengths 5, 2, 33, 17, 16, 5, 64: both sides of a bucket's edge, the whole context, and equal lengths apart.
PAIRS = [
    ([5, 6, 7], [8, 9]),
    ([5], [1]),
    ([6] * 20, [10, 11, 0, 12, 1, 13, 14, 15, 16, 17, 18, 19, 1]),
    ([20, 21, 22, 23, 24, 25, 26], list(range(30, 40))),
    ([7, 8], list(range(40, 54))),
    ([9, 9], [1, 1, 1]),
    (list(range(3, 40)), list(range(20, 47))),
]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    return FAMILIES[request.param](tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def roles(folder) -> Roles:
    roles = online_roles(ModelSection(name=folder), critic="shared", reward_model=None, needs_reference=False, seed=0)
    assert roles.critic is not None and roles.critic.head is not None
    torch.nn.init.normal_(roles.critic.head.weight, generator=torch.Generator().manual_seed(1))
    return roles


def padded_batch(pairs) -> dict[str, Tensor]:
    """Padded on the left, with a mask and explicit position ids."""
    longest = max(len(a) + len(b) for a, b in pairs)
    ids = torch.tensor([[0] * (longest - len(a) - len(b)) + a + b for a, b in pairs])
    mask = torch.tensor([[0] * (longest - len(a) - len(b)) + [1] * (len(a) + len(b)) for a, b in pairs])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


def padded_logprobs(model: PreTrainedModel, pairs) -> tuple[Tensor, Tensor]:
    """The shift is written out here once more."""
    batch = padded_batch(pairs)
    ids = batch["input_ids"]
    logits = model(**batch).logits.float() / TEMPERATURE
    logp = logits.log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    chosen = logp[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2)
    counts = [len(b) for _, b in pairs]
    return (
        torch.cat([row[-n:] for row, n in zip(chosen, counts, strict=True)]),
        torch.cat([row[-n - 1 : -1] for row, n in zip(entropy, counts, strict=True)]),
    )


def policy_of(roles: Roles) -> Role:
    assert roles.policy is not None
    return roles.policy


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_equals_the_padded_forward(folder, roles, attention):
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention).eval()
    with torch.no_grad():
        expected, expected_entropy = padded_logprobs(model, PAIRS)
        found = token_logprobs(policy_of(roles), TokenRows.of(PAIRS), TEMPERATURE, with_entropy=True)
    assert found.entropy is not None and found.values is None
    torch.testing.assert_close(found.logprobs, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.entropy, expected_entropy, rtol=0, atol=1e-5)


def test_gradients_equal_the_padded_forward(folder):
    policy = policy_of(offline_roles(ModelSection(name=folder), "sft", 0))
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    weights = torch.linspace(-1.0, 1.0, sum(len(b) for _, b in PAIRS))
    expected, expected_entropy = padded_logprobs(model, PAIRS)
    (weights * expected + 0.3 * expected_entropy).mean().backward()
    found = token_logprobs(policy, TokenRows.of(PAIRS), TEMPERATURE, with_entropy=True)
    assert found.entropy is not None
    (weights * found.logprobs + 0.3 * found.entropy).mean().backward()
    reference = dict(model.named_parameters())
    for name, parameter in policy.network.model.named_parameters():
        grad = reference[name].grad
        assert parameter.grad is not None and grad is not None
        # The padded model never trains its pad row (id 0, which PAIRS contains as a real token).
        rows = slice(1, None) if name.endswith("embed_tokens.weight") else slice(None)
        torch.testing.assert_close(parameter.grad[rows], grad[rows], rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("what", ["values", "scores"])
def test_gradients_of_values_and_scores_equal_the_padded_forward(folder, what):
    """A head on the hidden states of transformers' own padded forward, where an action is predicted or a row ends."""
    roles = online_roles(ModelSection(name=folder), critic="shared", reward_model=None, needs_reference=False, seed=0)
    critic = roles.critic
    assert critic is not None and critic.head is not None and critic.head.bias is not None
    torch.nn.init.normal_(critic.head.weight, std=0.3, generator=torch.Generator().manual_seed(1))
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    weight, bias = (p.detach().clone().requires_grad_() for p in (critic.head.weight, critic.head.bias))
    padded = model.base_model(**padded_batch(PAIRS)).last_hidden_state @ weight + bias
    counts = [len(b) for _, b in PAIRS]
    if what == "values":
        expected = torch.cat([row[-n - 1 : -1] for row, n in zip(padded, counts, strict=True)])
        found = action_values(critic, TokenRows.of(PAIRS))
    else:
        expected, found = padded[:, -1], sequence_scores(critic, TokenRows.of(PAIRS))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    scale = torch.linspace(-1.0, 1.0, len(found))
    (scale * expected).mean().backward()
    (scale * found).mean().backward()
    reference, trained = dict(model.named_parameters()), 0
    for name, parameter in policy_of(roles).network.model.named_parameters():
        grad = reference[name].grad
        if grad is None:
            assert parameter.grad is None or not bool(parameter.grad.any()), name
            continue
        assert parameter.grad is not None
        rows = slice(1, None) if name.endswith("embed_tokens.weight") else slice(None)
        torch.testing.assert_close(parameter.grad[rows], grad[rows], rtol=0, atol=1e-5, msg=name)
        trained += bool(parameter.grad.any())
    assert trained > 10
    torch.testing.assert_close(critic.head.weight.grad, weight.grad, rtol=0, atol=1e-5)
    torch.testing.assert_close(critic.head.bias.grad, bias.grad, rtol=0, atol=1e-5)


@torch.no_grad()
def test_rows_do_not_see_each_other(roles):
    """One by one, in reverse, and in pieces: the same numbers."""
    rows, policy = TokenRows.of(PAIRS), policy_of(roles)
    together = token_logprobs(policy, rows, TEMPERATURE).logprobs
    alone = torch.cat([token_logprobs(policy, rows.select([i]), TEMPERATURE).logprobs for i in range(len(PAIRS))])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    backwards = token_logprobs(policy, TokenRows.of(PAIRS[::-1]), TEMPERATURE).logprobs
    pieces = backwards.split([len(b) for _, b in PAIRS[::-1]])
    torch.testing.assert_close(together, torch.cat(pieces[::-1]), rtol=0, atol=1e-5)


@torch.no_grad()
def test_tokens_that_fill_up_stay_within_the_context(roles):
    """2050 tokens are filled up by 126, in a model that has 64 positions."""
    policy, pair = policy_of(roles), ([5, 6, 7], [8, 9])
    many = token_logprobs(policy, TokenRows.of([pair] * 410), TEMPERATURE).logprobs
    alone = token_logprobs(policy, TokenRows.of([pair]), TEMPERATURE).logprobs
    torch.testing.assert_close(many, alone.repeat(410), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("lengths", "ends"), [([5, 12], [17, 29, 32]), ([9] * 2, [18, 27, 32]), ([16], [16])])
def test_no_sequence_that_fills_up_is_longer_than_a_row(lengths, ends):
    rows = TokenRows.of([([5], [6] * (n - 1)) for n in lengths])
    tokens, offsets = filled_up(rows, torch.device("cpu"))
    assert offsets.tolist()[len(lengths) :] == ends and len(tokens) == ends[-1]


@torch.no_grad()
def test_a_broken_row_breaks_no_other(roles):
    """A NaN in one row's hidden states stays there, forward and backward, though rows share an attention call."""
    rows = TokenRows.of(PAIRS)
    layout = PackedLayout(rows.sequence_offsets)
    x = torch.randn(1, 4, rows.n_tokens, 8, generator=torch.Generator().manual_seed(0))
    spoilt = x.clone()
    begin, end = rows.sequence_offsets[3], rows.sequence_offsets[4]
    spoilt[:, :, begin:end] = float("nan")
    clean, dirty = layout.attend(x, x, x, Scores(0.3))[0], layout.attend(spoilt, spoilt, spoilt, Scores(0.3))[0]
    kept = torch.ones(rows.n_tokens, dtype=torch.bool)
    kept[begin:end] = False
    assert torch.equal(clean[kept], dirty[kept]) and bool(dirty[~kept].isnan().all())


@torch.no_grad()
def test_a_row_never_sees_its_future(roles):
    policy = policy_of(roles)
    first = token_logprobs(policy, TokenRows.of([([5, 6], [7, 8, 9, 10])]), 1.0).logprobs
    other_end = token_logprobs(policy, TokenRows.of([([5, 6], [7, 8, 9, 11])]), 1.0).logprobs
    torch.testing.assert_close(first[:3], other_end[:3], rtol=0, atol=1e-6)
    assert (first[3] - other_end[3]).abs() > 1e-3


@torch.no_grad()
def test_actions_between_other_tokens(roles):
    """Only listed positions count (tool text between two answers), each read one before it."""
    policy = policy_of(roles)
    sequence = [5, 6, 7, 8, 9, 10]
    every = token_logprobs(policy, TokenRows.of([(sequence[:1], sequence[1:])]), 1.0).logprobs
    rows = TokenRows.with_mask([[4, 4], sequence], [[False, True], [False, True, False, False, True, True]])
    some = token_logprobs(policy, rows, 1.0).logprobs[1:]
    torch.testing.assert_close(some, every[[0, 3, 4]], rtol=0, atol=1e-5)


@torch.no_grad()
def test_values_come_from_the_predicting_position(roles):
    rows = TokenRows.of(PAIRS)
    found = token_logprobs(policy_of(roles), rows, 1.0, with_values=roles.critic)
    hidden = hidden_states(policy_of(roles), rows)
    assert roles.critic is not None and roles.critic.head is not None and found.values is not None
    expected = hidden @ roles.critic.head.weight + roles.critic.head.bias
    torch.testing.assert_close(found.values, expected[rows.action_positions - 1], rtol=0, atol=1e-5)
    torch.testing.assert_close(action_values(roles.critic, rows), found.values, rtol=0, atol=1e-6)
    last = sequence_scores(roles.critic, rows)
    torch.testing.assert_close(last, expected[rows.sequence_offsets[1:] - 1], rtol=0, atol=1e-6)


def test_gradient_of_values_reaches_trunk_and_head(folder):
    """d/dh of w.h is w, placed at the predicting position: compared with finite differences of the head's input."""
    roles = online_roles(ModelSection(name=folder), critic="shared", reward_model=None, needs_reference=False, seed=0)
    assert roles.critic is not None and roles.critic.head is not None
    torch.nn.init.ones_(roles.critic.head.weight)
    rows = TokenRows.of(PAIRS)
    values = token_logprobs(policy_of(roles), rows, 1.0, with_values=roles.critic).values
    assert values is not None
    values.sum().backward()
    hidden = hidden_states(policy_of(roles), rows).detach()
    head = roles.critic.head
    assert head.weight.grad is not None and head.bias is not None and head.bias.grad is not None
    torch.testing.assert_close(head.weight.grad, hidden[rows.action_positions - 1].sum(0), rtol=1e-5, atol=1e-4)
    assert head.bias.grad.item() == rows.n_actions
    trunk = [p for p in policy_of(roles).network.trunk.parameters() if p.grad is not None and bool(p.grad.any())]
    assert len(trunk) > 5


@torch.no_grad()
def test_no_rows_and_no_actions(roles):
    nothing = TokenRows.of([])
    assert token_logprobs(policy_of(roles), nothing, 1.0, with_entropy=True).logprobs.shape == (0,)
    assert token_logprobs(policy_of(roles), TokenRows.of([([5, 6], []), ([5], [6])]), 1.0).logprobs.shape == (1,)
    assert token_logprobs(policy_of(roles), TokenRows.of([([5, 6], [])]), 1.0).logprobs.shape == (0,)


def test_an_action_without_context_is_an_error(roles):
    with pytest.raises(TightropeError, match="first token of its sequence"):
        token_logprobs(policy_of(roles), TokenRows.of([([5], [6]), ([], [7, 8])]), 1.0)


def test_a_row_longer_than_the_context_is_an_error(roles):
    with pytest.raises(TightropeError, match="at most 64 tokens, found 65"):
        token_logprobs(policy_of(roles), TokenRows.of([([5] * 64, [6])]), 1.0)


def test_a_critic_on_another_trunk_is_refused(folder, roles):
    other = online_roles(ModelSection(name=folder), critic="separate", reward_model=None, needs_reference=False, seed=0)
    with pytest.raises(ValueError, match="do not share a trunk"):
        token_logprobs(policy_of(roles), TokenRows.of(PAIRS), 1.0, with_values=other.critic)
