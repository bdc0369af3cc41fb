"""Does a preset fill what was not written, and nothing else, and does every mistake point to where it was made?"""

from __future__ import annotations

import pytest

from tightrope.algorithms.options import CONFIGS, PPOConfig, RLOOConfig, warnings_of
from tightrope.config.errors import TightropeError
from tightrope.config.load import load_config, load_resolved, save_resolved
from tightrope.config.presets import FOLDER, NAMES, read_preset

BASE = "output: x\nmodel: {name: base}\ndata: {train: a.jsonl}\n"
REWARD = {"rlhf": "reward: {model: rm}\n", "verifiable": "reward: {function: 'checks.py:right'}\n"}


def load(tmp_path, *overrides, text=BASE + REWARD["rlhf"], config_class=PPOConfig):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return load_config(path, overrides, config_class)


def complaint(tmp_path, *overrides, text=BASE + REWARD["rlhf"], config_class=PPOConfig):
    with pytest.raises(TightropeError) as caught:
        load(tmp_path, *overrides, text=text, config_class=config_class)
    return str(caught.value).replace(str(tmp_path), "")


def test_every_preset_is_a_file_and_every_file_a_preset():
    assert sorted(NAMES) == sorted(path.stem for path in FOLDER.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_works_without_warning_for_every_stage_it_is_for(tmp_path, name):
    source, stages = read_preset(name)
    for stage in stages:
        more = ["rollout.samples_per_prompt=4"] if stage == "rloo" else []
        config = load(tmp_path, f"preset={name}", *more, text=BASE + REWARD[name], config_class=CONFIGS[stage])
        assert config.preset == name and warnings_of(config) == []
        section = config.model_dump(mode="json")[stage]
        assert {key: section[key] for key in source.tree[stage]} == source.tree[stage]


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_explains_itself_in_a_minute(name):
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    assert lines[0].startswith("# For ") and len(lines) < 45 and max(map(len, lines)) <= 120


def test_the_command_line_wins_over_the_file_the_file_over_the_preset_the_preset_over_defaults(tmp_path):
    text = "preset: verifiable\n" + BASE + REWARD["verifiable"] + "ppo:\n  lam: 0.9\n  epochs: 2\n"
    config = load(tmp_path, "ppo.epochs=3", text=text)
    assert (config.ppo.epochs, config.ppo.lam) == (3, 0.9)
    assert config.kl.mode == "fixed" and config.kl.beta == 0.001 and config.reward.normalise == "off"
    assert config.ppo.target_kl is None  # absent in the preset is a value too
    assert config.optimizer == PPOConfig.model_fields["optimizer"].default


def test_the_command_line_chooses_another_preset_and_none_of_the_first_stays(tmp_path):
    text = "preset: rlhf\n" + BASE + REWARD["verifiable"]
    assert load(tmp_path, "preset=verifiable", text=text).ppo.epochs == 1
    assert load(tmp_path, "preset=null", text=text) == load(tmp_path, text=BASE + REWARD["verifiable"])


def test_an_override_of_a_whole_section_is_still_filled(tmp_path):
    kl = load(tmp_path, "preset=verifiable", "kl={beta: 0.3}").kl
    assert (kl.beta, kl.mode) == (0.3, "fixed")


def test_of_two_stages_a_run_takes_its_own_section(tmp_path):
    config = load(
        tmp_path, "preset=verifiable", "rloo.minibatches=2", text=BASE + REWARD["verifiable"], config_class=RLOOConfig
    )
    assert config.rollout.samples_per_prompt == 8 and config.rloo.target_kl is None


def test_the_resolved_file_holds_everything_and_the_name_and_needs_no_preset(tmp_path, monkeypatch):
    config = load(tmp_path, "preset=rlhf")
    save_resolved("ppo", config, tmp_path / "resolved.yaml")
    text = (tmp_path / "resolved.yaml").read_text()
    assert "preset: rlhf\n" in text and "gain: 0.1\n" in text
    assert load_config(tmp_path / "resolved.yaml", [], PPOConfig) == config
    monkeypatch.setattr("tightrope.config.presets.FOLDER", tmp_path / "gone")
    assert load_resolved(tmp_path / "resolved.yaml", CONFIGS) == ("ppo", config)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["preset=rlfh"], "override preset: unknown preset; expected rlhf or verifiable, found 'rlfh'; did you"),
        (["preset=3"], "override preset: unknown preset; expected rlhf or verifiable, found 3"),
        (["prest=rlhf"], "override prest: unknown key `prest`; did you mean `preset`?"),
        # a value of the preset that does not go with the person's: both are named
        (["preset=rlhf", "kl.beta_min=0.5"], "override preset (preset rlhf, line 12): kl.beta starts outside kl"),
        (["preset=rlhf", "rollout.prompts_per_step=2"], "override preset (preset rlhf, line 19): 4 minibatches cannot"),
        # a value of the person's that does not go with the preset's
        (["preset=rlhf", "ppo.minibatches=65"], "override ppo.minibatches: 65 minibatches cannot"),
        (["preset=rlhf", "kl.beta=100"], "override kl.beta: kl.beta starts outside"),
        (["preset=rlhf", "kl=3"], "override kl: wrong value of `kl`"),
    ],
)  # fmt: skip
def test_a_mistake_points_to_where_it_was_made(tmp_path, overrides, says):
    assert complaint(tmp_path, *overrides).startswith(says)


def test_what_is_missing_is_missing_in_the_file_and_not_in_the_preset(tmp_path):
    said = complaint(tmp_path, text="preset: rlhf\n" + BASE)
    assert said == "/run.yaml: nothing gives rewards; set reward.model or reward.function"
    said = complaint(tmp_path, text="preset: rlhf\n" + BASE + "reward: {normalise: manifest}\n")
    assert said.startswith("/run.yaml:5: nothing gives rewards")


def test_a_preset_in_the_file_points_to_its_line(tmp_path):
    said = complaint(tmp_path, "kl.beta_min=0.5", text=BASE + REWARD["rlhf"] + "preset: rlhf\n")
    assert said.startswith("/run.yaml:5 (preset rlhf, line 12): kl.beta starts outside")


@pytest.mark.parametrize(("stage", "command"), [("sft", "sft"), ("dpo", "dpo"), ("rm", "rm train")])
def test_a_preset_for_another_stage_is_one_clear_error(tmp_path, stage, command):
    said = complaint(tmp_path, text=BASE + "preset: rlhf\n", config_class=CONFIGS[stage])
    assert said == (
        f"/run.yaml:4: preset `rlhf` is for `tightrope ppo` and `tightrope rloo`, not for `tightrope {command}`; "
        "remove it"
    )
