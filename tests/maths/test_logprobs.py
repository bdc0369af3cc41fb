"""Is a log-prob the same whatever the chunk, in value and in gradient, and never narrower than float32?"""

from __future__ import annotations

import math

import pytest
import torch

from tightrope.kernels import products
from tightrope.maths import logprobs as module
from tightrope.maths.logprobs import LogitRule, chunked_logprobs, logprobs_and_entropy, output_logits

ROWS, HIDDEN, VOCAB = 7, 3, 5


def problem(dtype: torch.dtype = torch.float64):
    make = torch.Generator().manual_seed(3)
    shapes = (ROWS, HIDDEN), (VOCAB, HIDDEN), (VOCAB,)
    hidden, weight, bias = (torch.randn(*shape, generator=make) for shape in shapes)
    tokens = torch.randint(VOCAB, (ROWS,), generator=make)
    return hidden.to(dtype), weight.to(dtype), bias.to(dtype), tokens


def by_hand(logits: list[float], token: int, temperature: float) -> tuple[float, float]:
    z = [logit / temperature for logit in logits]
    logsumexp = math.log(sum(math.exp(x) for x in z))
    logp = [x - logsumexp for x in z]
    return logp[token], -sum(math.exp(x) * x for x in logp)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_logprob_and_entropy_are_those_of_a_loop(temperature) -> None:
    hidden, weight, bias, tokens = problem()
    logits = hidden @ weight.T + bias
    rows = [by_hand(row, token, temperature) for row, token in zip(logits.tolist(), tokens.tolist(), strict=True)]
    for found in (
        logprobs_and_entropy(logits, tokens, temperature),
        chunked_logprobs(hidden, weight, bias, tokens, temperature, chunk_size=2),
    ):
        for i in range(2):
            assert found[i].tolist() == pytest.approx([row[i] for row in rows], abs=1e-12)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_size", [1, 2, 3, ROWS, 100, None])
def test_any_chunk_size_gives_the_unchunked_numbers_and_gradients(chunk_size, temperature, with_bias) -> None:
    hidden, weight, bias, tokens = problem()
    leaves = [x.requires_grad_() for x in ((hidden, weight, bias) if with_bias else (hidden, weight))]
    logits = hidden @ weight.T + (bias if with_bias else 0.0)
    plain = logprobs_and_entropy(logits, tokens, temperature)
    chunked = chunked_logprobs(hidden, weight, bias if with_bias else None, tokens, temperature, chunk_size=chunk_size)
    on_logprobs, on_entropy = torch.randn(2, ROWS, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    def gradients(pair):
        return torch.autograd.grad((pair[0] * on_logprobs + pair[1] * on_entropy).sum(), leaves)

    for i in range(2):
        torch.testing.assert_close(chunked[i], plain[i], rtol=1e-12, atol=1e-12)
    for found, expected in zip(gradients(chunked), gradients(plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("chunk_size", [2, 100])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_gradients_equal_finite_differences(chunk_size, with_entropy) -> None:
    hidden, weight, bias, tokens = problem()
    leaves = [x.requires_grad_() for x in (hidden, weight, bias)]

    def run(h, w, b):
        pair = chunked_logprobs(h, w, b, tokens, 0.7, chunk_size=chunk_size, with_entropy=with_entropy)
        return pair if with_entropy else pair[0]

    assert torch.autograd.gradcheck(run, leaves)


def test_entropy_alone_passes_its_gradient() -> None:
    """An entropy bonus that is measured but detached trains nothing."""
    hidden, weight, bias, tokens = problem()
    hidden.requires_grad_()
    _, entropy = chunked_logprobs(hidden, weight, bias, tokens, 1.0, chunk_size=2)
    assert entropy is not None
    entropy.sum().backward()
    assert hidden.grad is not None
    assert float(hidden.grad.abs().max()) > 1e-3


def test_logits_over_the_limit_are_computed_again_with_the_same_numbers(monkeypatch) -> None:
    hidden, weight, bias, tokens = problem()
    hidden.requires_grad_()
    found = []
    for keep_bytes in (module.KEEP_BYTES, 0):
        monkeypatch.setattr(module, "KEEP_BYTES", keep_bytes)
        logprobs, entropy = chunked_logprobs(hidden, weight, bias, tokens, 0.7, chunk_size=100)
        assert entropy is not None
        found.append(torch.autograd.grad((2 * logprobs + entropy).sum(), hidden)[0])
    assert torch.equal(found[0], found[1])


def rows_at_a_time(
    monkeypatch,
    rows: int,
    chunk_size: int | None,
    keep_bytes: int,
    *,
    filled_up: bool = False,
    dtype: torch.dtype = torch.float32,
) -> list[int]:
    """How many rows of logits exist at a time, in the forward pass and then in the backward pass, for a vocab of 8."""
    seen: list[int] = []

    def watched(hidden, weight, bias, rule):
        seen.append(len(hidden))
        return output_logits(hidden, weight, bias, rule)

    monkeypatch.setattr(module, "output_logits", watched)
    monkeypatch.setattr(module, "KEEP_BYTES", keep_bytes)
    monkeypatch.setattr(products, "WIDE_VECTORS", filled_up)
    hidden, weight = torch.zeros(rows, 1, dtype=dtype, requires_grad=True), torch.zeros(8, 1, dtype=dtype)
    logprobs, _ = chunked_logprobs(hidden, weight, None, torch.zeros(rows).long(), 1.0, chunk_size=chunk_size)
    logprobs.sum().backward()
    return seen


@pytest.mark.parametrize(
    ("rows", "chunk_size", "keep_bytes", "expected"),
    [
        (100, None, 100 * 8 * 4, [100]),  # one chunk of what may be kept: computed once
        (50, 99, 100 * 8 * 4, [50]),  # less than a chunk, and less than what may be kept
        (101, None, 100 * 8 * 4, [100, 1, 100, 1]),
        (101, 200, 100 * 8 * 4, [101, 101]),  # one chunk, but over what may be kept
        (100, 99, 200 * 8 * 4, [99, 1, 99, 1]),  # little, but two chunks
        (65, None, 1, [64, 1, 64, 1]),  # never fewer than 64 rows when nobody asked for fewer
        (65, None, 65 * 8 * 4 - 1, [64, 1, 64, 1]),
    ],
)
def test_a_chunk_is_what_may_be_kept_and_only_that_is_kept(monkeypatch, rows, chunk_size, keep_bytes, expected) -> None:
    assert rows_at_a_time(monkeypatch, rows, chunk_size, keep_bytes) == expected


def test_the_last_chunk_is_filled_up_and_never_beyond_a_chunk(monkeypatch) -> None:
    room = 1000 * 8 * 4
    assert rows_at_a_time(monkeypatch, 50, None, room, filled_up=True) == [64]
    assert rows_at_a_time(monkeypatch, 50, None, room, filled_up=True, dtype=torch.float64) == [50]
    assert rows_at_a_time(monkeypatch, 99, 100, room, filled_up=True) == [100]
    assert rows_at_a_time(monkeypatch, 103, 100, room, filled_up=True) == [100, 16, 100, 16]


def test_a_second_derivative_is_refused_not_wrong() -> None:
    hidden, weight, bias, tokens = problem()
    logprobs, _ = chunked_logprobs(hidden.requires_grad_(), weight, bias, tokens, 1.0)
    (slope,) = torch.autograd.grad(logprobs.square().sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_no_logits_are_kept_when_there_is_more_than_one_chunk() -> None:
    """Nor the slope of their softcap: of 7 rows in chunks of 2, only two numbers a row beside what was given."""
    hidden, weight, bias, tokens = problem()
    hidden.requires_grad_()
    for chunk_size, with_entropy, kept in ((2, False, []), (2, True, [ROWS]), (ROWS, False, [ROWS * VOCAB] * 2)):
        rule = LogitRule(1.0, 2.0)
        logprobs, _ = chunked_logprobs(
            hidden, weight, bias, tokens, 1.0, rule=rule, chunk_size=chunk_size, with_entropy=with_entropy
        )
        given = {x.data_ptr() for x in (hidden, weight, bias, tokens)}
        saved = [x for x in logprobs.grad_fn.saved_tensors if x is not None and x.data_ptr() not in given]
        assert [x.numel() for x in saved if x.numel()] == kept


def test_only_gradients_of_what_trains_are_worked_out() -> None:
    """torch would throw the others away, after a product as large as that of the forward pass."""
    hidden, weight, bias, tokens = problem()
    given = [hidden, weight, bias]
    for i in range(3):
        leaves = [x.clone().requires_grad_(i == j) for j, x in enumerate(given)]
        logprobs, entropy = chunked_logprobs(*leaves, tokens, 1.0)
        found = logprobs.grad_fn.apply(torch.ones_like(logprobs), torch.ones_like(entropy))
        assert [x is not None for x in found[:3]] == [i == j for j in range(3)]


def test_32_mib_of_logits_are_kept() -> None:
    assert module.KEEP_BYTES == 33_554_432


def test_gradients_of_bfloat16_weights_are_added_up_in_float32() -> None:
    """1000 rows, each 1 − π = 0.5 on its token: 500. In bfloat16, 128 + 0.5 is 128 and the sum ends there."""
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    bias = torch.zeros(2, dtype=torch.bfloat16, requires_grad=True)
    hidden, tokens = torch.ones(1000, 1, dtype=torch.bfloat16), torch.zeros(1000).long()
    chunked_logprobs(hidden, weight, bias, tokens, 1.0, chunk_size=1)[0].sum().backward()
    for found in (weight.grad, bias.grad):
        assert found is not None
        assert found.dtype == torch.bfloat16
        assert found.flatten().tolist() == [500.0, -500.0]


def test_hidden_states_may_be_wider_than_the_weights() -> None:
    """A final norm that runs in float32: the product is taken in the type of the weights."""
    hidden, weight, bias, tokens = problem(torch.bfloat16)
    hidden, weight = hidden.float().requires_grad_(), weight.requires_grad_()
    logprobs, _ = chunked_logprobs(hidden, weight, bias, tokens, 1.0)
    logprobs.sum().backward()
    narrow = hidden.detach().bfloat16().requires_grad_()
    expected, _ = chunked_logprobs(narrow, weight.detach(), bias, tokens, 1.0)
    expected.sum().backward()
    assert torch.equal(logprobs, expected)
    assert hidden.grad is not None
    assert narrow.grad is not None
    assert hidden.grad.dtype == torch.float32
    assert torch.equal(hidden.grad, narrow.grad.float())


def test_entropy_is_absent_when_it_was_not_asked_for() -> None:
    hidden, weight, bias, tokens = problem()
    assert chunked_logprobs(hidden, weight, bias, tokens, 1.0, with_entropy=False)[1] is None


def test_only_what_trains_gets_a_gradient() -> None:
    hidden, weight, bias, tokens = problem()
    hidden.requires_grad_()
    chunked_logprobs(hidden, weight, bias, tokens, 1.0)[0].sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_an_output_bias_can_train_alone() -> None:
    hidden, weight, bias, tokens = problem()
    bias.requires_grad_()
    chunked_logprobs(hidden, weight, bias, tokens, 1.0)[0].sum().backward()
    p = (hidden @ weight.T + bias.detach()).softmax(-1)
    expected = torch.nn.functional.one_hot(tokens, VOCAB).double().sum(0) - p.sum(0)
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad, expected, rtol=0, atol=1e-12)


def test_options_are_given_by_their_names() -> None:
    hidden, weight, bias, tokens = problem()
    with pytest.raises(TypeError):
        chunked_logprobs(hidden, weight, bias, tokens, 1.0, LogitRule())  # type: ignore[misc]


def test_only_a_scale_of_one_is_skipped() -> None:
    for scale in (0.0, 0.5, 1.0, 2.0):
        found = output_logits(torch.ones(1, 1), torch.tensor([[8.0], [-1.0]]), None, LogitRule(scale))
        assert found.tolist() == [[8.0 * scale, -scale]]


def test_nearly_one_is_not_one() -> None:
    """A temperature or a scale of 1 is skipped; 1.01 is not."""
    hidden, weight, bias, tokens = problem()
    logits = hidden @ weight.T + bias
    for temperature, scale in ((1.01, 1.0), (1.0, 1.01)):
        found, _ = chunked_logprobs(hidden, weight, bias, tokens, temperature, rule=LogitRule(scale))
        expected, _ = logprobs_and_entropy(scale / temperature * logits, tokens, 1.0)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_bfloat16_models_get_float32_numbers() -> None:
    hidden, weight, bias, tokens = problem(torch.bfloat16)
    logprobs, entropy = chunked_logprobs(hidden.requires_grad_(), weight, bias, tokens, 1.0, chunk_size=2)
    assert entropy is not None
    assert logprobs.dtype == entropy.dtype == torch.float32
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16
    exact, _ = chunked_logprobs(*(x.detach().double() for x in (hidden, weight, bias)), tokens, 1.0)
    # the logits themselves are rounded to bfloat16 by the model: 2^-8 of a logit of size 4
    torch.testing.assert_close(logprobs.double(), exact, rtol=0, atol=0.05)


def test_an_impossible_token_has_no_share_in_the_entropy() -> None:
    bias = torch.tensor([0.0, 0.0, -math.inf])
    weight, hidden, tokens = torch.zeros(3, 1), torch.ones(1, 1), torch.tensor([0])
    for logprobs, entropy in (
        chunked_logprobs(hidden, weight, bias, tokens, 1.0),
        logprobs_and_entropy(bias[None], tokens, 1.0),
    ):
        assert entropy is not None
        assert logprobs.item() == pytest.approx(-math.log(2))
        assert entropy.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_impossible_token_has_the_lowest_finite_logprob_of_its_type(dtype) -> None:
    bias = torch.tensor([0.0, -math.inf], dtype=dtype)
    weight, hidden = torch.zeros(2, 1, dtype=dtype), torch.ones(1, 1, dtype=dtype)
    logprobs, _ = chunked_logprobs(hidden, weight, bias, torch.tensor([1]), 1.0)
    assert logprobs.item() == torch.finfo(dtype).min


def test_large_logits_do_not_overflow() -> None:
    logprobs, entropy = logprobs_and_entropy(torch.tensor([[1000.0, 0.0]]), torch.tensor([1]), 1.0)
    assert logprobs.item() == -1000.0
    assert entropy.item() == 0.0


def test_no_rows_are_legal() -> None:
    none = torch.empty(0).long()
    hidden, weight = torch.empty(0, 2, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    logprobs, entropy = chunked_logprobs(hidden, weight, None, none, 1.0)
    logprobs.sum().backward()
    assert entropy is not None
    assert len(logprobs) == len(entropy) == 0
    assert weight.grad is not None
    assert weight.grad.tolist() == [[0.0, 0.0]] * 3


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_positive_is_refused(temperature) -> None:
    hidden, weight, bias, tokens = problem()
    with pytest.raises(ValueError, match="temperature"):
        chunked_logprobs(hidden, weight, bias, tokens, temperature)
    with pytest.raises(ValueError, match="temperature"):
        logprobs_and_entropy(hidden @ weight.T, tokens, temperature)


def test_shapes_and_chunks_that_do_not_fit_are_refused() -> None:
    hidden, weight, bias, tokens = problem()
    with pytest.raises(ValueError, match="chunk_size"):
        chunked_logprobs(hidden, weight, bias, tokens, 1.0, chunk_size=0)
    with pytest.raises(ValueError, match="one token a row"):
        chunked_logprobs(hidden, weight, bias, tokens[:-1], 1.0)
    assert len(hidden) == len(tokens) == ROWS
    for rows, columns in (
        (hidden[None], tokens),
        (hidden[:, :, None], tokens),
        (hidden[:, 0], tokens),
        (hidden, tokens[:, None]),
        (hidden, tokens[0]),
        (hidden, tokens[:-1]),
        (hidden[:-1], tokens),
    ):
        with pytest.raises(ValueError, match="one token a row"):
            logprobs_and_entropy(rows, columns, 1.0)


@pytest.mark.parametrize("chunk_size", [2, 100])
@pytest.mark.parametrize("rule", [LogitRule(0.5), LogitRule(1.0, 2.0), LogitRule(3.0, 1.5)])
def test_scale_and_softcap_reach_values_and_gradients(rule, chunk_size):
    """Against the formula written out in torch, in float64; the logits are large enough that the cap bends them."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 4), (7, 4), (7,))
    one = [(2 * torch.randn(s, generator=generator, dtype=torch.float64)).requires_grad_() for s in shapes]
    two = [x.detach().clone().requires_grad_() for x in one]
    tokens = torch.tensor([0, 6, 2, 2, 5])
    y = rule.scale * (one[0] @ one[1].T + one[2])
    y = y if rule.softcap is None else rule.softcap * torch.tanh(y / rule.softcap)
    logp = (y / 0.7).log_softmax(-1)
    expected = (logp.gather(1, tokens[:, None]).squeeze(1), -(logp.exp() * logp).sum(-1))
    hidden, weight, bias = two
    found = chunked_logprobs(hidden, weight, bias, tokens, 0.7, rule=rule, chunk_size=chunk_size)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    scales = torch.arange(1.0, 6.0, dtype=torch.float64)
    ((scales * expected[0]).sum() + (expected[1] * scales.flip(0)).sum()).backward()
    assert found[1] is not None
    ((scales * found[0]).sum() + (found[1] * scales.flip(0)).sum()).backward()
    for ours, theirs in zip(two, one, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-9)
