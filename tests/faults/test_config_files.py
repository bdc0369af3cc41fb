"""What does a person read when a config file is broken or a value is wrong? One line, the place first."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tightrope.algorithms.options import CONFIGS, PPOConfig
from tightrope.config.errors import TightropeError
from tightrope.config.load import load_config, load_resolved

BASE = "output: runs/x\nmodel:\n  name: base\ndata:\n  train: a.jsonl\nreward:\n  model: rm\n"
N = len(BASE.splitlines())
BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in ("ab", "bc", "cd", "de")
)
"""Five lines that mean 100,000 values."""


def complaint(tmp_path, content, overrides=(), stage="ppo"):
    path = tmp_path / "run.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TightropeError) as caught:
        load_config(path, list(overrides), CONFIGS[stage])
    said = str(caught.value)
    assert "\n" not in said
    return said.replace(str(path), "run.yaml")


@pytest.mark.parametrize(
    ("content", "begins", "says"),
    [
        ("", "run.yaml:1:", "empty"),
        ("# nothing\n", "run.yaml:1:", "empty"),
        ("- a\n- b\n", "run.yaml:1:", "found a list"),
        ("just words\n", "run.yaml:1:", "not a config"),
        (BASE + "kl:\n\tbeta: 1\n", f"run.yaml:{N + 2}:", "tabs"),
        (BASE + "output: y\n", f"run.yaml:{N + 1}:", 'duplicate key "output"'),
        (BASE + "kl: {beta: 1\n", "run.yaml:", "broken YAML"),
        (BASE + "kl: 'open\n", "run.yaml:", "broken YAML"),
        (BASE + "  seed: 1\n kl: 2\n", "run.yaml:", "broken YAML"),
        (BASE + "---\noutput: y\n", f"run.yaml:{N + 1}:", "broken YAML"),
        (BASE.encode() + b"seed: \xff\n", f"run.yaml:{N + 1}:", "not UTF-8"),
        (BASE + "seed: \x07\n", f"run.yaml:{N + 1}:", "letter"),
        (BASE + "3: 4\n", f"run.yaml:{N + 1}:", "a key that is not text"),
        (BASE + "seed: !!python/object:os.system x\n", f"run.yaml:{N + 1}:", "plain value"),
        (BASE + "kl:\n  beta: .nan\n", f"run.yaml:{N + 2}:", "finite"),
        (BASE + "kl: {beta: *x}\n", f"run.yaml:{N + 1}:", "broken YAML"),
        (BOMB, "run.yaml:", "too many values"),
        (BASE + "stage: sft\n", f"run.yaml:{N + 1}:", "a config for another command; expected ppo, found sft"),
        # values
        (BASE + "kl:\n  beta: low\n", f"run.yaml:{N + 2}:", "wrong value of `kl.beta`; expected number, found 'low'"),
        (BASE + "kl:\n  beta: -1\n", f"run.yaml:{N + 2}:", "greater than or equal to 0, found -1"),
        (BASE + "kl:\n  beta: '1e-5'\n", f"run.yaml:{N + 2}:", "without quotes"),
        (BASE + "kl:\n  beta: true\n", f"run.yaml:{N + 2}:", "found true"),
        (BASE + "kl:\n  beta:\n", f"run.yaml:{N + 2}:", "found null"),
        (BASE + "kl:\n  mode: adaptve\n", f"run.yaml:{N + 2}:", "did you mean adaptive?"),
        (BASE + "kl: 0.1\n", f"run.yaml:{N + 1}:", "a section of `key: value` lines, found 0.1"),
        (BASE + "seed: 1.0\n", f"run.yaml:{N + 1}:", "wrong value of `seed`"),
        (BASE + "seed: -1\n", f"run.yaml:{N + 1}:", "wrong value of `seed`"),
        (BASE + "ppo:\n  whiten_advantages: yes\n", f"run.yaml:{N + 2}:", "write true"),
        (BASE + "ppo:\n  value_clip: None\n", f"run.yaml:{N + 2}:", "write null"),
        (BASE + "optimizer:\n  betas: [0.9]\n", f"run.yaml:{N + 2}:", "too few values"),
        (BASE + "optimizer:\n  betas: [0.9, 1.0]\n", f"run.yaml:{N + 2}:", "less than 1"),
        (BASE + "evaluation:\n  function: my judge\n", f"run.yaml:{N + 2}:", "module:function"),
        (BASE + "ppo:\n  minibatches: 65\n", f"run.yaml:{N + 2}:", "65 minibatches cannot be made of 64"),
        ("output: x\nmodel: {}\ndata: {train: a}\nreward: {model: r}\n", "run.yaml:2:", "`model.name` is missing"),
        ("output: x\nmodel: {name: b}\ndata: {train: a}\n", "run.yaml:", "`reward` is missing"),
    ],
)  # fmt: skip
def test_a_broken_file_is_one_line_with_its_place(tmp_path, content, begins, says):
    said = complaint(tmp_path, content)
    assert said.startswith(begins)
    assert says in said


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("kl.beta", "not an override"),
        ("=3", "not an override"),
        ("kl..beta=3", "not an override"),
        ("kl.beta=[", "not YAML"),
        ("kl={beta: .inf}", "override kl: not a finite number"),
        ("kl={beta: low}", "override kl: wrong value of `kl.beta`"),
        ("kl.beta=?", "override kl.beta: a key that is not text"),
        ("kl.beta=x", "override kl.beta: wrong value of `kl.beta`"),
        ("model.name.x=1", "override model.name.x: `name` is no section"),
        ("kl.beta.x=1", "override kl.beta.x: "),
        ("--kl.beta=1", "unknown key"),
    ],
)
def test_a_broken_override_names_itself(tmp_path, override, says):
    said = complaint(tmp_path, BASE, [override])
    assert said.startswith("override ") and says in said


def test_the_first_mistake_is_told_and_the_others_are_named(tmp_path):
    said = complaint(tmp_path, BASE + "kl:\n  beta: low\n  mode: adaptve\nseed: x\n")
    assert "and 2 more mistakes" in said and "kl.mode" in said and "seed" in said


def test_a_misspelled_section_is_one_mistake_and_not_two(tmp_path):
    said = complaint(tmp_path, BASE.replace("model:\n  name", "modle:\n  name"))
    assert said == "run.yaml:2: unknown key `modle`; did you mean `model`?"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            ["rollout.top_p=0.9"],
            "rollout.top_p is refused in RL, because the sampled distribution must be the scored one",
        ),
        (["rollout.top_k=50"], "rollout.top_k is refused in RL"),
        (["rollout.top_p=1.0"], "rollout.top_p is refused in RL"),
        (["kl.beta=0"], "zero KL with a learned reward model"),
        (["kl.beta=0", "kl.mode=fixed"], "zero KL with a learned reward model"),
        (["kl.beta={from: 0, to: 0}", "kl.mode=fixed"], "zero KL with a learned reward model"),
        (["kl.beta=0", "kl.allow_zero=true"], "can never leave 0"),
        (["kl.beta=0", "reward.model=null", "reward.function=a.py:f"], "can never leave 0"),
        (["reward.function=a.py:f"], "both reward.model and reward.function"),
        (["reward.model=null"], "nothing gives rewards"),
        (["reward.model=null", "reward.function=a.py:f", "reward.normalise=manifest"], "reward.function has none"),
        (["kl.beta={from: 0.1, to: 0.2}"], "both move kl.beta"),
        (["kl.mode=fixed", "kl.beta={from: 0.1, to: 0.2, start: 5, end: 5}"], "ends before it has begun"),
        (["kl.mode=fixed", "kl.beta={from: -0.1, to: 0.2}"], "kl.beta.from"),
        (["kl.mode=fixed", "kl.beta={from: 0.1, to: 0.2, shape: round}"], "linear, cosine or constant"),
        (["ppo.clip_range={from: 0.2, to: 0}"], "reaches 0"),
        (["ppo.clip_range=1.0"], "less than 1"),
        (["ppo.clip_range=wide"], "wrong value of `ppo.clip_range`; expected number"),
        (["ppo.clip_range_high=0.1"], "under ppo.clip_range"),
        (["ppo.dual_clip=1.0"], "greater than 1"),
        (["ppo.lam=0.9", "ppo.lam_alpha=0.05"], "both say what lambda is"),
        (["kl.estimator=k3"], "does not lead to the KL-regularised optimum"),
        (["kl.placement=loss"], "holds nothing"),
        (["reward.length.kind=over_budget"], "has no budget"),
        (["reward.length.budget=5"], "does nothing"),
        (["reward.length={kind: soft_overlong, budget: 5, buffer: 6}"], "longer than"),
        (["kl.beta_min=0.1", "kl.beta_max=0.01"], "above kl.beta_max"),
        (["kl.beta=20"], "outside"),
        (["kl.target=0"], "greater than 0"),
        (["kl.horizon=0"], "greater than 0"),
        (["model.lora.dropout=0.1"], "less than or equal to 0"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, changes, says):
    assert says in complaint(tmp_path, BASE, changes)


def test_groups_of_one_are_refused(tmp_path):  # FAULTS B44
    assert "rollout.samples_per_prompt" in complaint(tmp_path, BASE, stage="rloo")


@pytest.mark.parametrize(
    "changes",
    [
        ["kl.beta=0", "kl.mode=fixed", "kl.allow_zero=true"],
        ["kl.beta=0", "kl.mode=fixed", "reward.model=null", "reward.function=a.py:f"],
        ["kl.beta={from: 0, to: 0.1}", "kl.mode=fixed"],
        ["kl.mode=fixed", "kl.beta={from: 0.1, to: 0}"],
        ["kl.beta=100", "kl.mode=fixed"],
    ],
)
def test_what_can_work_is_allowed(tmp_path, changes):
    path = tmp_path / "run.yaml"
    path.write_text(BASE)
    config = load_config(path, changes, PPOConfig)
    assert config.kl != load_config(path, [], PPOConfig).kl


def test_missing_file_and_folder(tmp_path):
    for path, says in ((tmp_path / "none.yaml", "no such config file"), (tmp_path, "cannot be read")):
        with pytest.raises(TightropeError, match=says):
            load_config(path, [], PPOConfig)


@pytest.mark.parametrize("content", ["output: x\n", "stage: nonsense\n", "stage: [1]\n"])
def test_a_resolved_file_without_its_stage_is_refused(tmp_path, content):
    path = tmp_path / "resolved.yaml"
    path.write_text(content)
    with pytest.raises(TightropeError, match="no known stage"):
        load_resolved(path, CONFIGS)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_bytes_break_the_reader(tmp_path, content):
    path = tmp_path / "fuzz.yaml"
    path.write_bytes(content)
    with pytest.raises(TightropeError) as caught:
        load_config(path, [], PPOConfig)
    assert str(caught.value).isprintable()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=30))
def test_no_override_breaks_the_reader(tmp_path, value):
    path = tmp_path / "run.yaml"
    path.write_text(BASE)
    try:
        load_config(path, [f"kl.beta={value}"], PPOConfig)
    except TightropeError as error:
        assert str(error).startswith("override kl.beta: ")
