"""Do other tools read from an exported folder the very numbers the run computed?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests.tiny import tiny_gpt2, tiny_llama, tiny_tokenizer
from tightrope.config.errors import TightropeError
from tightrope.config.schema import LoraSection, ModelSection
from tightrope.maths.diagnostics import Interval
from tightrope.models import export
from tightrope.models.export import RewardFacts, export_policy, export_reward
from tightrope.models.manifest import read_manifest, require_kind, tensor_shapes
from tightrope.models.packed_forward import sequence_scores, token_logprobs
from tightrope.models.roles import Role, Roles, offline_roles, online_roles
from tightrope.types import TokenRows

LORA = LoraSection(rank=4, alpha=8.0)
EOS = 1
ROWS = TokenRows.of([([5, 6, 7], [8, 9, EOS]), ([5], [9]), ([6] * 20, [10, 11, 12, EOS])])
FACTS = RewardFacts([0.5, -1.25], mean=0.1, std=2.0, held_out_pairs=10, accuracy=Interval(0.7, 0.4, 0.9))
MODELS = {
    "llama": lambda folder: tiny_llama(folder),
    "llama_tied": lambda folder: tiny_llama(folder, tied=True),
    "gpt2": lambda folder: tiny_gpt2(folder),
}


@pytest.fixture(scope="module", params=MODELS)
def base(request, tmp_path_factory) -> Path:
    return MODELS[request.param](tmp_path_factory.mktemp("base") / request.param)


def trained(folder: Path, stage, lora: bool) -> tuple[Roles, Role]:
    """Roles whose weights have moved, and the role that a stage exports."""
    roles = offline_roles(ModelSection(name=folder, lora=LORA if lora else None), stage, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for group in roles.parameters.values():
            for parameter in group.values():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    result = roles.reward if stage == "rm" else roles.policy
    assert result is not None
    return roles, result


def reloaded_logprobs(folder: Path) -> torch.Tensor:
    policy = offline_roles(ModelSection(name=folder), "sft", 0).policy
    assert policy is not None
    return token_logprobs(policy, ROWS, 1.0).logprobs


@torch.no_grad()
@pytest.mark.parametrize("lora", [True, False])
def test_policy_reloads_with_the_same_logprobs(base, tmp_path, lora):
    _, policy = trained(base, "sft", lora)
    export_policy(policy, base, tmp_path / "export", "sft")
    expected = token_logprobs(policy, ROWS, 1.0).logprobs
    # With an adapter the merged weights sum in another order (2e-6 measured); without, only the memory moved.
    torch.testing.assert_close(reloaded_logprobs(tmp_path / "export"), expected, rtol=0, atol=1e-5 if lora else 1e-6)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    ids = ROWS.sequence(2)
    logp = model(ids[None]).logits[0].log_softmax(-1)[:-1].gather(1, ids[1:, None]).squeeze(1)
    torch.testing.assert_close(logp[-4:], expected[-4:], rtol=0, atol=1e-5)
    assert (expected - reloaded_logprobs(base)).abs().max() > 0.01, "nothing was trained"


@torch.no_grad()
def test_adapter_folder_loads_with_peft(base, tmp_path):
    _, policy = trained(base, "sft", True)
    export_policy(policy, base, tmp_path / "export", "sft")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    over_base = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "export" / "adapter")
    ids = ROWS.sequence(2)[None]
    torch.testing.assert_close(over_base(ids).logits, merged(ids).logits, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("lora", [True, False])
def test_reward_model_loads_as_a_classifier_with_the_same_scores(base, tmp_path, lora):
    """Alone, and in one padded batch on either side (the pad is distinct here)."""
    _, reward = trained(base, "rm", lora)
    export_reward(reward, base, tmp_path / "export", FACTS)
    scores = sequence_scores(reward, ROWS)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "export")
    assert model.config.num_labels == 1
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "export")
    for side in ("left", "right"):
        batch = tokenizer.pad(
            {"input_ids": [ROWS.sequence(i).tolist() for i in range(3)]}, padding_side=side, return_tensors="pt"
        )
        positions = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
        found = model(**batch, position_ids=positions).logits.squeeze(1)
        torch.testing.assert_close(found, scores, rtol=0, atol=1e-5)
    if lora:
        plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
        over_base = PeftModel.from_pretrained(plain, tmp_path / "export" / "adapter")
        found = over_base(ROWS.sequence(2)[None]).logits[0]
        torch.testing.assert_close(found, scores[2:], rtol=0, atol=1e-5)


@torch.no_grad()
def test_pad_that_is_eos_gives_the_same_score(base, tmp_path):
    """B19: the score is read at the last token, the final EOS, whatever the pad is; transformers agrees row by row."""
    same = tmp_path / "pad_is_eos"
    shutil.copytree(base, same)
    tiny_tokenizer(pad_is_eos=True).save_pretrained(same)
    scores = {}
    for folder in (base, same):
        _, reward = trained(folder, "rm", False)
        export_reward(reward, folder, tmp_path / folder.name / "export", FACTS)
        scores[folder] = sequence_scores(reward, ROWS)
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / folder.name / "export")
        found = torch.cat([model(ROWS.sequence(i)[None]).logits[0] for i in range(3)])
        torch.testing.assert_close(found, scores[folder], rtol=0, atol=1e-5)
    assert torch.equal(scores[base], scores[same])
    with pytest.raises(ValueError, match="no padding token"):  # refused, rather than read at the wrong place
        model(ROWS.sequence(0).repeat(2, 1))


def test_a_pad_row_that_is_eos_is_trained(tmp_path):
    """Llama marks the pad row as never trained; where pad is EOS, EOS would stay as it was."""
    base = tiny_llama(tmp_path / "base", pad_is_eos=True)
    policy = offline_roles(ModelSection(name=base), "sft", 0).policy
    assert policy is not None
    token_logprobs(policy, TokenRows.of([([5, EOS], [6, 7])]), 1.0).logprobs.sum().backward()
    embedding = policy.network.model.get_input_embeddings()
    assert isinstance(embedding, torch.nn.Embedding) and embedding.weight.grad is not None
    assert bool(embedding.weight.grad[EOS].any())


@torch.no_grad()
def test_reward_role_reproduces_its_scores(base, tmp_path):
    _, reward = trained(base, "rm", True)
    export_reward(reward, base, tmp_path / "export", FACTS)
    for lora in (None, LORA):
        roles = online_roles(
            ModelSection(name=base, lora=lora),
            critic=None,
            reward_model=tmp_path / "export",
            needs_reference=False,
            seed=0,
        )
        assert roles.reward is not None
        torch.testing.assert_close(
            sequence_scores(roles.reward, ROWS), sequence_scores(reward, ROWS), rtol=0, atol=1e-5
        )


def test_tokenizer_and_template_are_copied_byte_for_byte(base, tmp_path):
    _, policy = trained(base, "sft", False)
    export_policy(policy, base, tmp_path / "export", "sft")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / "export" / name).read_bytes() == (base / name).read_bytes()


def test_manifest_says_what_was_made(base, tmp_path):
    _, reward = trained(base, "rm", True)
    export_reward(reward, base, tmp_path / "reward", FACTS)
    _, policy = trained(base, "sft", False)
    export_policy(policy, base, tmp_path / "sft", "sft")
    export_policy(policy, base, tmp_path / "ppo", "ppo")
    told = read_manifest(tmp_path / "reward")
    assert told is not None
    assert (told.kind, told.head, told.adapter, told.dtype) == ("reward", "score.weight", True, "float32")
    assert (told.fingerprints, told.reward_mean, told.reward_std) == ((0.5, -1.25), 0.1, 2.0)
    assert (told.accuracy, told.accuracy_interval, told.held_out_pairs) == (0.7, (0.4, 0.9), 10)
    sft, ppo = read_manifest(tmp_path / "sft"), read_manifest(tmp_path / "ppo")
    assert sft is not None and ppo is not None
    assert (sft.kind, ppo.kind, sft.head) == ("sft", "policy", None)
    assert sft.base == told.base and sft.tokenizer == told.tokenizer and sft.template == told.template
    assert sft.files != told.files and read_manifest(base) is None
    require_kind(tmp_path / "reward", "reward")
    require_kind(tmp_path / "sft", "policy")
    assert not any("lora" in name or "base_layer" in name for name in tensor_shapes(tmp_path / "reward"))


def test_a_failed_export_leaves_the_old_folder_and_no_rubbish(base, tmp_path, monkeypatch):
    _, policy = trained(base, "sft", False)
    export_policy(policy, base, tmp_path / "export", "sft")
    before = {path.name: path.read_bytes() for path in (tmp_path / "export").iterdir()}

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(export, "save_file", full)
        with pytest.raises(TightropeError, match=r"cannot be written.*No space left"):
            export_policy(policy, base, tmp_path / "export", "ppo")
    rename = export.os.rename

    def fails_for_the_new(source, target):
        if str(source).endswith(".tmp"):
            full()
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(export.os, "rename", fails_for_the_new)
        with pytest.raises(TightropeError, match="No space left"):
            export_policy(policy, base, tmp_path / "export", "ppo")
    assert {path.name: path.read_bytes() for path in (tmp_path / "export").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    export_policy(policy, base, tmp_path / "export", "ppo")
    assert json.loads((tmp_path / "export" / "tightrope.json").read_text())["kind"] == "policy"
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
