"""Does plain text beside the reward enter the update as the equation says, and nothing else?"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.invariance.test_resume import differing, interrupted_and_resumed, logged, weights
from tests.invariance.whole_step import Outcome, config_of, outcome_of, require_same
from tests.runs import Files, built_run, run_quietly, tiny_config, tiny_files
from tests.tiny import WORDS
from tightrope.config.errors import TightropeError
from tightrope.config.schedule import Schedule, at_start
from tightrope.config.schema import LoraSection, PTXSection
from tightrope.data.corpus import CorpusStream, corpus_files, load_corpus, load_held_out, read_documents
from tightrope.models.load import load_tokenizer
from tightrope.models.packed_forward import token_logprobs
from tightrope.training.mixing import PretrainingMix

LENGTH = 8
NO_WARMUP = {"ppo": {"value_warmup_steps": 0}}
"""The policy moves, and is mixed with text, from the first step."""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return tiny_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Documents of 1 to 30 words."""
    path = tmp_path_factory.mktemp("corpus") / "text.jsonl"
    documents = [" ".join(WORDS[n : 2 * n + 1]) for n in range(30)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def with_ptx(config: Any, corpus: Path | str, **options: Any) -> Any:
    return config.model_copy(update={"ptx": PTXSection(corpus=corpus, sequence_length=LENGTH, **options)})


def one_step(files: Files, folder: Path, corpus: Path, stage: str = "ppo", lora: bool = False, **options: Any):
    config = config_of(stage, files, lora=lora, options={"epochs": 1, "minibatches": 1})
    return outcome_of(with_ptx(config, corpus, **options), folder)


def corpus_gradients(files: Files, corpus: Path, outcome: Outcome, tokens: int) -> dict[str, torch.Tensor]:
    """Of the mean cross-entropy, by transformers' own forward, one piece after the other."""
    config = config_of("ppo", files)
    model = AutoModelForCausalLM.from_pretrained(files.model, attn_implementation="eager")
    start = dict(model.named_parameters())
    for name in start:
        assert f"policy.{name}" in outcome.weights
    generator = torch.Generator().manual_seed(1)  # the policy's group is the second: move_off_the_start
    with torch.no_grad():
        for _, parameter in sorted(start.items()):
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=generator))
    pieces = load_corpus(str(corpus), AutoTokenizer.from_pretrained(files.model), LENGTH, 64)
    rows = CorpusStream(pieces, config.seed).draw(tokens).rows
    total = torch.zeros(())
    for i in range(rows.n_sequences):
        ids = rows.sequence(i)[None]
        total = total + model(ids, labels=ids).loss * (ids.shape[1] - 1)
    (total / rows.n_actions).backward()
    return {name: p.grad for name, p in start.items() if p.grad is not None}


def test_the_gradient_is_the_policys_plus_the_weighted_cross_entropys(files, corpus, tmp_path):
    config = config_of("ppo", files, options={"epochs": 1, "minibatches": 1})
    plain = outcome_of(config, tmp_path / "plain")
    mixed = one_step(files, tmp_path / "mixed", corpus, coefficient=0.7)
    tokens = round(plain.metrics["response_tokens"] * plain.metrics["sequences"])
    expected = corpus_gradients(files, corpus, plain, tokens)
    own = {name: mixed.gradients[f"0 policy.{name}"] - plain.gradients[f"0 policy.{name}"] for name in expected}
    for name, gradient in expected.items():
        torch.testing.assert_close(own[name], 0.7 * gradient, rtol=1e-4, atol=2e-5)
    flat, other = (torch.cat([x.flatten().double() for x in xs]) for xs in (own.values(), plain_gradients(plain, own)))
    assert mixed.metrics["grad_share_ptx"] == pytest.approx(float(flat.norm() / other.norm()), rel=1e-4)
    cosine = float(flat @ other / (flat.norm() * other.norm()))
    assert mixed.metrics["grad_cosine_ptx"] == pytest.approx(cosine, abs=1e-4)
    critic = [name for name in plain.gradients if name.startswith("0 critic.")]
    assert critic and all(torch.equal(plain.gradients[name], mixed.gradients[name]) for name in critic)


def plain_gradients(plain: Outcome, names: Any) -> list[torch.Tensor]:
    return [plain.gradients[f"0 policy.{name}"] for name in names]


@pytest.mark.parametrize("stage", ["ppo", "rloo"])
@pytest.mark.parametrize("from_layer", [None, 0, 1], ids=["full", "lora", "lora from layer 1"])
def test_the_token_budget_changes_nothing(files, corpus, tmp_path, stage, from_layer):
    found = list[Outcome]()
    for budget in (None, 1, 20):
        config = with_ptx(config_of(stage, files, budget=budget), corpus, ratio=1.5)
        if from_layer is not None:
            lora = LoraSection(rank=4, alpha=8.0, from_layer=from_layer)
            config = config.model_copy(update={"model": config.model.model_copy(update={"lora": lora})})
        found.append(outcome_of(config, tmp_path / str(budget)))
    assert {"loss_ptx", "grad_share_ptx", "grad_cosine_ptx"} <= found[0].metrics.keys()
    require_same(found[0], found[1], "token_budget 1")
    require_same(found[0], found[2], "token_budget 20")


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_a_resumed_run_goes_on_in_the_corpus(files, corpus, tmp_path, lora):
    whole, halves = (
        with_ptx(tiny_config("ppo", files, tmp_path / name, lora=lora, changes=NO_WARMUP), corpus)
        for name in ("whole", "halves")
    )
    run_quietly("ppo", whole)
    interrupted_and_resumed("ppo", halves)
    assert logged(whole.output) == logged(halves.output)
    assert any('"loss_ptx"' in line for line in logged(whole.output))
    assert differing(whole.output, halves.output) == []


def test_a_mix_of_weight_0_is_no_mix_and_measuring_moves_nothing(files, corpus, tmp_path):
    settings = {"off": {"coefficient": 0.0}, "seen": {"measure_every": 1}, "unseen": {"measure_every": 0}}
    runs = {"plain": tiny_config("ppo", files, tmp_path / "plain", steps=2, changes=NO_WARMUP)} | {
        name: with_ptx(tiny_config("ppo", files, tmp_path / name, steps=2, changes=NO_WARMUP), corpus, **options)
        for name, options in settings.items()
    }
    for config in runs.values():
        run_quietly("ppo", config)
    plain, off, seen, unseen = (config.output for config in runs.values())
    assert differing(plain, off) == [] and logged(plain)[1:2] == logged(off)[1:2]
    assert differing(seen, unseen) == [] and weights(seen).keys() == weights(plain).keys()
    assert differing(seen, plain)


def mix_of(options: PTXSection, pieces: Any = ((1, 2, 3), (4, 5)), trained: Any = lambda step: ("policy",)):
    return PretrainingMix(options, CorpusStream(pieces, 0), None, {}, at_start, trained)  # type: ignore[arg-type]


def experience(files: Files, folder: Path) -> Any:
    built = built_run(config_of("ppo", files), folder)
    run: Any = built.run
    rollout = run.engine.generate(run.prompts.next_batch(), 1, run.sampling, run.key())
    return run.algorithm.credit(rollout, run.judge.score(rollout))


def test_how_much_is_drawn_and_when(files, tmp_path):
    batch = experience(files, tmp_path)
    drawn = {}
    for ratio in (0.01, 0.5, 2.0):
        mixed = mix_of(PTXSection(corpus="builtin", ratio=ratio)).draw(0, batch)
        assert mixed is not None
        drawn[ratio] = mixed.rows.n_actions - ratio * batch.rows.n_actions
    assert all(0 <= over < 2 for over in drawn.values()), drawn
    every = mix_of(PTXSection(corpus="builtin", every=3))
    assert [every.draw(step, batch) is not None for step in range(5)] == [True, False, False, True, False]
    fixed = PTXSection(corpus="builtin")
    assert mix_of(fixed, trained=lambda step: ("critic",)).draw(0, batch) is None
    later = PTXSection(corpus="builtin", coefficient=Schedule.model_validate({"from": 0.0, "to": 1.0}))
    assert mix_of(later).draw(0, batch) is None


def test_every_token_but_a_documents_first_is_predicted_once_an_epoch(files, corpus):
    tokenizer = load_tokenizer(files.model)
    pieces = load_corpus(str(corpus), tokenizer, LENGTH, 64)
    documents = [tokenizer.encode(text) for text in read_documents(str(corpus))]
    stream = CorpusStream(pieces, seed=3)
    for _ in range(2):
        rows = stream.draw(sum(len(ids) - 1 for ids in documents)).rows
        assert Counter(rows.tokens[rows.action_positions].tolist()) == Counter(x for ids in documents for x in ids[1:])
        assert int(rows.lengths.max()) == LENGTH and stream.position % len(pieces) == 0
    first, second = (CorpusStream(pieces, seed).draw(40).rows.tokens.tolist() for seed in (0, 1))
    assert first != second


def test_documents_do_not_see_each_other(files, corpus, tmp_path):
    built = built_run(with_ptx(config_of("ppo", files), corpus), tmp_path)
    assert built.roles.policy is not None
    pieces = load_corpus(str(corpus), load_tokenizer(files.model), LENGTH, 64)
    together = CorpusStream(pieces, 0).draw(60)
    alone = [token_logprobs(built.roles.policy, together.select([i]).rows, 1.0).logprobs for i in range(len(together))]
    packed = token_logprobs(built.roles.policy, together.rows, 1.0).logprobs
    torch.testing.assert_close(packed, torch.cat(alone), rtol=0, atol=1e-5)


def test_the_loss_is_the_golden_one():
    """ptx_mix of golden.json: losses 2, 1 and 3 a token, coefficient 0.5, beside a policy loss of 0.3."""
    from tightrope.training.learner import scaled_total
    from tightrope.types import Loss, LossTerm

    terms = {"policy": LossTerm(torch.tensor(0.3), 1), "ptx": LossTerm(torch.tensor([2.0, 1.0, 3.0]).sum(), 3, 0.5)}
    assert float(scaled_total(Loss(terms), {"policy": 1, "ptx": 3})) == pytest.approx(1.3)


def test_a_share_by_hand():
    """Gradients (3, 4) before and (3, 4) + (0, 5) after: share 1, cosine 4/5; a parameter of the mix alone counts."""
    parameters = {"a": torch.nn.Parameter(torch.zeros(2)), "b": torch.nn.Parameter(torch.zeros(1))}
    options = PTXSection(corpus="builtin", measure_every=2)
    mix = PretrainingMix(options, None, None, parameters, at_start, lambda step: ())  # type: ignore[arg-type]
    parameters["a"].grad = torch.tensor([3.0, 4.0])
    before = mix.gradients(0)
    assert before is not None and mix.gradients(1) is None
    assert mix.share(before) == {}
    parameters["a"].grad += torch.tensor([0.0, 5.0])
    assert mix.share(before) == {"grad_share_ptx": (1.0, 1.0), "grad_cosine_ptx": (0.8, 1.0)}
    parameters["b"].grad = torch.tensor([12.0])
    share = mix.share(before)
    assert share["grad_share_ptx"][0] == pytest.approx(13 / 5)
    assert share["grad_cosine_ptx"][0] == pytest.approx(20 / (5 * 13))


def test_a_corpus_is_a_file_a_folder_or_the_built_in_one(tmp_path):
    (tmp_path / "b.txt").write_text("one\n\ntwo")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/a.jsonl").write_text('{"text": "three"}\n{"text": "four"}\n')
    (tmp_path / "left.png").write_bytes(b"\x89")
    assert read_documents(str(tmp_path / "b.txt")) == ["one\n\ntwo"]
    assert read_documents(str(tmp_path)) == ["one\n\ntwo", "three", "four"]
    assert len(corpus_files(str(tmp_path))) == 2 and corpus_files("builtin") == []
    assert sum(len(text) for text in read_documents("builtin")) > 100_000


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.txt", b"\xff\xfe\xff", "UTF-8"),
        ("a.txt", b" \n", "empty"),
        ("a.txt", b"film", "holds no text to learn from"),
        ("a.jsonl", b'{"texts": "a b"}\n', "a.jsonl:1"),
        ("none", None, "no text"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_told_before_weights_load(files, tmp_path, name, content, told):
    path = tmp_path / name
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(TightropeError, match=told):
        load_corpus(str(path), load_tokenizer(files.model), LENGTH, 64)


def test_a_piece_longer_than_the_context_and_another_corpus_at_resume_are_refused(files, corpus):
    with pytest.raises(TightropeError, match=r"ptx\.sequence_length"):
        load_corpus(str(corpus), load_tokenizer(files.model), 65, 64)
    state = CorpusStream(((1, 2), (3, 4)), 0).state_dict()
    with pytest.raises(ValueError, match=r"ptx\.corpus"):
        CorpusStream(((1, 2), (3, 5)), 0).load_state_dict(state)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_the_probe_reads_held_out_text_and_moves_nothing(files, corpus, tmp_path, lora):
    text = tmp_path / "held_out.txt"
    text.write_text(" ".join(WORDS[:70]))  # longer than the context of 64: two pieces
    settings: dict[str, Any] = {"lora": lora, "steps": 2}
    plain, probed = (
        with_ptx(tiny_config("ppo", files, tmp_path / name, **settings, changes=NO_WARMUP | changes), corpus)
        for name, changes in (("plain", {}), ("probed", {"evaluation": {"forgetting": str(text)}}))
    )
    for config in (plain, probed):
        run_quietly("ppo", config)
    assert differing(plain.output, probed.output) == []
    records = [json.loads(line) for line in logged(probed.output)]
    found = {r["step"]: r["metrics"]["text_perplexity"] for r in records if "text_perplexity" in r["metrics"]}
    assert sorted(found) == [0, 2] and found[0] != found[2]
    ids = torch.tensor([load_tokenizer(files.model).encode(text.read_text())])
    for folder, step in ((files.model, 0), (probed.output / "export", 2)):
        model = AutoModelForCausalLM.from_pretrained(folder)
        with torch.no_grad():
            total = model(ids[:, :64], labels=ids[:, :64]).loss * 63
            total += model(ids[:, 63:], labels=ids[:, 63:]).loss * (ids.shape[1] - 64)
        assert found[step] == pytest.approx(float((total / (ids.shape[1] - 1)).exp()), rel=1e-4)


def test_text_that_is_trained_on_is_no_held_out_text(files, corpus):
    tokenizer = load_tokenizer(files.model)
    with pytest.raises(TightropeError, match="trains on"):
        load_held_out(str(corpus), str(corpus), tokenizer, 64, 2048)
    assert load_held_out(str(corpus), None, tokenizer, 64, 2048)
    assert load_held_out("builtin", "builtin", tokenizer, 64, 100)
    assert not set(read_documents("builtin")) & set(read_documents("builtin", held_out=True))
    few = load_held_out(str(corpus), None, tokenizer, 8, 20)
    assert 20 <= sum(len(piece) - 1 for piece in few) < 20 + 7
