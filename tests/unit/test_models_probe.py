"""Is a network refused, in one line, when it computes something else here than by itself?"""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from tests.tiny import tiny_family
from tightrope.config.errors import TightropeError
from tightrope.config.schema import ModelSection
from tightrope.models import families, padded_forward
from tightrope.models.attention import layout_attention
from tightrope.models.backbone import Network
from tightrope.models.families import PACKED, Family, family_of
from tightrope.models.load import load_network, load_trunk
from tightrope.models.packed_forward import PackedLayout
from tightrope.models.probe import probed


def change(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def load(folder) -> Network:
    return load_network(folder, ModelSection(name=str(folder)))


def test_logits_that_are_made_in_an_unknown_way_are_refused(tmp_path):
    """Llama itself reads no softcap, so its own logits differ from ours as they would with a rule unknown here."""
    folder = tiny_family("llama", tmp_path / "llama")
    change(folder, final_logit_softcapping=1.0)
    with pytest.raises(TightropeError, match=r"llama cannot be used: a row among others differs.*found 0\.\d+"):
        load(folder)
    load_trunk(folder, ModelSection(name=folder))  # a reward model has no logits


@pytest.mark.parametrize("load_it", [load, lambda folder: load_trunk(folder, ModelSection(name=folder))])
def test_attention_that_sees_the_future_is_refused(tmp_path, load_it):
    folder = tiny_family("llama", tmp_path / "bert")
    config = AutoConfig.for_model(
        "bert", vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    (folder / "model.safetensors").unlink()
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    with pytest.raises(TightropeError, match="bert"):
        load_it(folder)


def test_an_architecture_wrongly_thought_to_run_packed_is_refused(tmp_path, monkeypatch):
    """StableLM 's layers do not hand the layout on; GPT-NeoX's would see their neighbours through rotary positions."""
    monkeypatch.setattr(families, "PACKED", (*PACKED, "stablelm"))
    with pytest.raises(TightropeError, match="stablelm cannot be run: TypeError"):
        load(tiny_family("stablelm", tmp_path / "stablelm"))


@pytest.mark.parametrize("kind", ["mistral", "gpt_neox"])
def test_rows_that_see_each_other_are_refused(kind, tmp_path, monkeypatch):
    network = load(tiny_family(kind, tmp_path / kind))
    probed(network, "here")
    one_long_row = lambda offsets: PackedLayout(torch.tensor([0, int(offsets[-1])]))  # noqa: E731
    monkeypatch.setattr("tightrope.models.packed_forward.PackedLayout", one_long_row)
    monkeypatch.setattr(padded_forward, "spans", lambda offsets, rows: torch.arange(int(offsets[-1])).flip(0))
    with pytest.raises(TightropeError, match="a row among others differs"):
        probed(network, "here")


@pytest.mark.parametrize("unknown", [{"s_aux": torch.zeros(4)}, {"dropout": 0.1}, {"attention_mask": torch.zeros(1)}])
def test_attention_refuses_what_it_does_not_understand(unknown):
    x = torch.zeros(1, 2, 3, 4)
    layout = PackedLayout(torch.tensor([0, 3]))
    mask = unknown.pop("attention_mask", None)
    with pytest.raises(TightropeError, match=r"cannot run packed.*is set"):
        layout_attention(nn.Linear(1, 1), x, x, x, mask, layout=layout, **unknown)
    layout_attention(nn.Linear(1, 1), x, x, x, None, layout=layout, use_cache=False, position_ids=torch.zeros(1))


@pytest.mark.parametrize(
    "config, reason",
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "one decoder"),
        ({"model_type": "gemma3", "vision_config": {}}, "more than text"),
        ({"model_type": "mamba"}, "recurrent"),
        ({"model_type": "new", "layer_types": ["full_attention", "linear_attention"]}, "recurrent"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "later tokens"),
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope"}}, "neighbours"),
        ({"model_type": "new", "rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, "neighbours"),
        ({}, "does not name"),
    ],
)
def test_what_cannot_work_is_refused_from_its_config(config, reason):
    with pytest.raises(TightropeError, match=reason):
        family_of(config, "folder")


def test_the_context_length_has_several_names_and_no_default():
    family = Family("new", False)
    assert family.context_length({"max_seq_len": 9}) == 9
    assert family.context_length({"max_position_embeddings": 7, "seq_length": 9}) == 7
    with pytest.raises(TightropeError, match=r"how long a text may be.*max_position_embeddings"):
        family.context_length({"max_position_embeddings": None})


def test_adapters_find_the_matrices_of_any_architecture(tmp_path):
    llama = load(tiny_family("llama", tmp_path / "llama"))
    assert llama.linear_layers == ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    gpt2 = load(tiny_family("gpt2", tmp_path / "gpt2"))
    assert gpt2.linear_layers == ("c_attn", "c_fc", "c_proj") and gpt2.conv1d
    bloom = load(tiny_family("bloom", tmp_path / "bloom"))
    assert bloom.linear_layers == ("dense", "dense_4h_to_h", "dense_h_to_4h", "query_key_value")
