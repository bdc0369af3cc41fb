"""Does a config say what was written, with defaults for the rest, and come back from disk unchanged?"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tightrope.algorithms.options import CONFIGS, PPOConfig, RLOOConfig, warnings_of
from tightrope.config.errors import TightropeError
from tightrope.config.load import load_config, load_resolved, save_resolved

BASE = "output: runs/x\nmodel:\n  name: base\ndata:\n  train: a.jsonl\nreward:\n  model: rm\n"
EXAMPLES = Path(__file__).parents[2] / "examples"


def load(tmp_path, *overrides, text=BASE, config_class=PPOConfig):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return load_config(path, list(overrides), config_class)


def test_values_of_every_kind(tmp_path):
    text = BASE + (
        "optimizer:\n  learning_rate: 1e-5\n  betas: [0.8, 0.95]\nkl: {beta: 1, mode: fixed}\n"
        "ppo:\n  value_clip: null\n  whiten_advantages: false\ntraining: {token_budget: 10_000}\n"
    )
    config = load(tmp_path, text=text)
    assert config.optimizer.learning_rate == 1e-5
    assert config.optimizer.betas == (0.8, 0.95)
    assert config.kl.beta == 1.0 and config.kl.mode == "fixed"
    assert config.ppo.value_clip is None and config.ppo.whiten_advantages is False
    assert config.training.token_budget == 10_000
    assert config.model.name == "base"
    assert config.ppo.epochs == 4  # untouched default


def test_overrides_win_and_the_last_one_wins(tmp_path):
    config = load(tmp_path, "kl.beta=0.1", "kl.beta=2e-3", "model.lora.rank=8", "optimizer.betas=[0.5, 0.6]")
    assert config.kl.beta == 2e-3
    assert config.model.lora is not None and config.model.lora.rank == 8 and config.model.lora.alpha == 32.0
    assert config.optimizer.betas == (0.5, 0.6)


def test_an_override_may_hold_equal_signs_and_nothing(tmp_path):
    config = load(tmp_path, "data.train=a=b.jsonl", "ppo.target_kl=")
    assert config.data.train == Path("a=b.jsonl") and config.ppo.target_kl is None


def test_an_override_may_be_a_section(tmp_path):
    assert load(tmp_path, "kl={beta: 0.3}", "kl.gain=0.2").kl.gain == 0.2


def test_a_byte_order_mark_and_windows_line_ends(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode())
    assert load_config(path, [], PPOConfig).output == Path("runs/x")


def test_a_file_may_name_its_stage(tmp_path):
    assert load(tmp_path, text="stage: ppo\n" + BASE).output == Path("runs/x")


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
def test_examples_are_valid_and_warn_of_nothing(name):
    stage = name.partition("-")[0]
    config = load_config(EXAMPLES / f"{name}.yaml", [], CONFIGS["rm" if stage == "reward" else stage])
    assert warnings_of(config) == []


def test_the_resolved_file_says_everything(tmp_path):
    config = load(tmp_path)
    save_resolved("ppo", config, tmp_path / "resolved.yaml")
    text = (tmp_path / "resolved.yaml").read_text()
    assert text.startswith("stage: ppo\n")
    for key in ("seed: 0", "clip_range: 0.2", "learning_rate: 1e-05", "allow_zero: false"):
        assert key in text
    assert load_resolved(tmp_path / "resolved.yaml", CONFIGS) == ("ppo", config)
    assert load_config(tmp_path / "resolved.yaml", [], PPOConfig) == config  # a run can be repeated from it
    assert list(tmp_path.glob(".*")) == []


FLOATS = st.floats(min_value=1e-300, max_value=1e300)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=NAMES, rate=FLOATS, seed=st.integers(0, 2**63 - 1), clip=st.none() | FLOATS, cost=st.floats(0, 1e9))
def test_resolved_files_come_back_bit_for_bit(tmp_path, name, rate, seed, clip, cost):
    config = PPOConfig.model_validate(
        {
            "output": Path(name),
            "seed": seed,
            "model": {"name": Path("base") / name},
            "data": {"train": Path(name)},
            "reward": {"model": Path("rm"), "length_cost": cost},
            "optimizer": {"learning_rate": rate},
            "ppo": {"value_clip": clip},
        }
    )
    save_resolved("ppo", config, tmp_path / "resolved.yaml")
    assert load_resolved(tmp_path / "resolved.yaml", CONFIGS) == ("ppo", config)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["optimizer.critic_learning_rate=1e-5"], "critic_learning_rate is not over"),
        (["rollout.prompts_per_step=31"], "31 responses a step are few"),
        (["ppo.clip_range=0.31"], "clip_range 0.31 is wide"),
        (["reward.missing_eos.mode=replace"], "replace raises the reward of bad responses"),
        (["checkpoint.every=101"], "only the end is saved"),
        (["evaluation.every=101"], "only both ends are probed"),
        (["optimizer.warmup_steps=100"], "peak learning rate is never reached"),
        (["kl.beta=0", "kl.mode=fixed", "kl.allow_zero=true"], "nothing keeps the policy near"),
        (["ppo.value_warmup_steps=100"], "the policy is never trained"),
        (["rollout.temperature=0.3"], "explores little"),
        (["guardian.kl_limit=6.0", "kl.target=6.0"], "act on a healthy run"),
    ],
)
def test_what_is_seldom_meant_is_warned_of(tmp_path, changes, says):
    warnings = warnings_of(load(tmp_path, *changes))
    assert len(warnings) == 1 and says in warnings[0]


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["optimizer.critic_learning_rate=2e-5"],
        ["rollout.prompts_per_step=32"],
        ["ppo.clip_range=0.3"],
        ["checkpoint.every=100"],
    ],
)
def test_the_borders_of_the_warnings(tmp_path, changes):
    assert warnings_of(load(tmp_path, *changes)) == []


def test_rloo_warns_of_its_own_clip_range(tmp_path):
    config = load(tmp_path, "rollout.samples_per_prompt=2", "rloo.clip_range=0.5", config_class=RLOOConfig)
    assert warnings_of(config) == ["rloo.clip_range 0.5 is wide (over 0.3): updates may go far"]


def test_errors_are_one_line_whatever_they_quote():
    error = TightropeError("a\nb", where="f:1", found="\x1b[31mred\u2028x", expected="c\r\nd", fix="\td")
    assert str(error).isprintable()
    assert str(error) == "f:1: a b; expected c d, found \ufffd[31mred x; d"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
