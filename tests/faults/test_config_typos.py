"""Is a key that does not exist refused, and is the right one suggested? Misspellings, wrong sections, other tools."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tightrope.algorithms.options import CONFIGS
from tightrope.config.catalogue import options_of
from tightrope.config.errors import TightropeError
from tightrope.config.load import load_config
from tightrope.config.other_tools import KNOWN_NAMES, REASONS, no_counterpart
from tightrope.config.schema import HALF
from tightrope.config.suggestions import all_paths, key_tree

OFFLINE = "output: x\nmodel: {name: base}\ndata: {train: a.jsonl}\n"
BASE = {
    "ppo": OFFLINE + "reward: {model: rm}\n",
    "rloo": OFFLINE + "reward: {model: rm}\nrollout: {samples_per_prompt: 2}\n",
    "sft": OFFLINE,
    "rm": OFFLINE,
    "dpo": OFFLINE,
}
TYPOS = """
ppo  kl.bta                                kl.beta
ppo  kl.Beta                               kl.beta
ppo  kl.betaa                              kl.beta
ppo  kl.taget                              kl.target
ppo  kl.gian                               kl.gain
ppo  kl.max-step                           kl.max_step
ppo  kl.beta_mn                            kl.beta_min
ppo  kl.horizn                             kl.horizon
ppo  kl.allow_zeros                        kl.allow_zero
ppo  kl.kl_coef                            kl.beta
ppo  beta                                  kl.beta
ppo  learning_rate                         optimizer.learning_rate
ppo  ppo.learning_rate                     optimizer.learning_rate
ppo  optimizer.learningrate                optimizer.learning_rate
ppo  optimizer.learning_rat                optimizer.learning_rate
ppo  optimizer.critic_lr                   optimizer.critic_learning_rate
ppo  optimiser                             optimizer
ppo  ouput                                 output
ppo  out                                   output
ppo  sead                                  seed
ppo  modle                                 model
ppo  model.nmae                            model.name
ppo  model.dtpe                            model.dtype
ppo  model.lora.rnk                        model.lora.rank
ppo  model.rank                            model.lora.rank
ppo  data.trian                            data.train
ppo  data.eval                             data.evaluation
ppo  data.heldout                          data.held_out
ppo  data.over_long                        data.overlong
ppo  rollout.temprature                    rollout.temperature
ppo  rollout.prompt_per_step               rollout.prompts_per_step
ppo  rollout.max_tokens                    rollout.max_new_tokens
ppo  rollout.max_new_token                 rollout.max_new_tokens
ppo  temperature                           rollout.temperature
ppo  max_new_tokens                        rollout.max_new_tokens
ppo  reward.fuction                        reward.function
ppo  reward.normalize                      reward.normalise
ppo  reward.missing_eos.mod                reward.missing_eos.mode
ppo  reward.length_penalty                 reward.length_cost
ppo  ppo.cliprange                         ppo.clip_range
ppo  ppo.clip-range                        ppo.clip_range
ppo  ppo.epoch                             ppo.epochs
ppo  ppo.minibatch                         ppo.minibatches
ppo  ppo.lamda                             ppo.lam
ppo  ppo.gama                              ppo.gamma
ppo  ppo.targetkl                          ppo.target_kl
ppo  training.step                         training.steps
ppo  training.token_buget                  training.token_budget
ppo  checkpoint.evry                       checkpoint.every
ppo  chekpoint                             checkpoint
ppo  guardian.kl_limt                      guardian.kl_limit
ppo  guardain                              guardian
ppo  evaluation.prompt                     evaluation.prompts
ppo  sample                                samples
ppo  samples.cuont                         samples.count
ppo  init_kl_coef                          kl.beta
ppo  kl_coef                               kl.beta
ppo  ppo.kl_coef                           kl.beta
ppo  cliprange                             ppo.clip_range
ppo  ppo.cliprange_value                   ppo.value_clip
ppo  cliprange_value                       ppo.value_clip
ppo  vf_coef                               ppo.value_coef
ppo  num_ppo_epochs                        ppo.epochs
ppo  ppo.num_ppo_epochs                    ppo.epochs
ppo  num_mini_batches                      ppo.minibatches
ppo  per_device_train_batch_size           training.token_budget
ppo  training.gradient_accumulation_steps  training.token_budget
ppo  response_length                       rollout.max_new_tokens
ppo  missing_eos_penalty                   reward.missing_eos.value
ppo  reward_model_path                     reward.model
ppo  sft_model_path                        model.name
ppo  model.model_name_or_path              model.name
ppo  model_name_or_path                    model.name
ppo  output_dir                            output
ppo  total_episodes                        training.steps
ppo  num_train_epochs                      training.steps
ppo  gae_lambda                            ppo.lam
ppo  eps_clip                              ppo.clip_range
ppo  clip_ratio                            ppo.clip_range
ppo  lambd                                 ppo.lam
ppo  kl_target                             kl.target
ppo  kl_horizon                            kl.horizon
ppo  kl_ctrl.horizon                       kl.horizon
ppo  pretrain                              model.name
ppo  prompt_data                           data.train
ppo  generate_max_len                      rollout.max_new_tokens
ppo  n_samples_per_prompt                  rollout.samples_per_prompt
ppo  rollout_batch_size                    rollout.prompts_per_step
ppo  micro_train_batch_size                training.token_budget
ppo  actor_learning_rate                   optimizer.learning_rate
ppo  critic_learning_rate                  optimizer.critic_learning_rate
ppo  actor.lr                              optimizer.learning_rate
ppo  optim.lr                              optimizer.learning_rate
ppo  optimizer.lr                          optimizer.learning_rate
ppo  max_norm                              optimizer.max_grad_norm
ppo  save_steps                            checkpoint.every
ppo  data.train_files                      data.train
ppo  data.val_files                        data.evaluation
ppo  data.max_prompt_length                data.max_prompt_tokens
ppo  data.max_response_length              rollout.max_new_tokens
ppo  rollout.n                             rollout.samples_per_prompt
ppo  ppo_mini_batch_size                   ppo.minibatches
ppo  critic_warmup                         ppo.value_warmup_steps
ppo  trainer.save_freq                     checkpoint.every
ppo  trainer.total_training_steps          training.steps
ppo  model.lora_rank                       model.lora.rank
ppo  lora_alpha                            model.lora.alpha
ppo  bf16                                  model.dtype
ppo  lr_scheduler_type                     optimizer.schedule
rloo rloo_k                                rollout.samples_per_prompt
rloo num_generations                       rollout.samples_per_prompt
rloo cliprange                             rloo.clip_range
rloo rloo.num_ppo_epochs                   rloo.epochs
sft  max_steps                             training.steps
sft  batch_size                            sft.batch_size
sft  sft.batchsize                         sft.batch_size
sft  per_device_train_batch_size           training.token_budget
sft  dataset_name                          data.train
rm   center_rewards_coefficient            reward_model.center_coef
rm   rewardmodel                           reward_model
dpo  dpo.beta_                             dpo.beta
dpo  beta                                  dpo.beta
dpo  label_smoothing                       dpo.label_smoothing
dpo  dpo.labelsmoothing                    dpo.label_smoothing
dpo  dpo.lr                                optimizer.learning_rate
"""
CASES = [tuple(line.split()) for line in TYPOS.strip().splitlines()]


def complaint(folder: Path, stage: str, key: str) -> str:
    path = folder / "run.yaml"
    path.write_text(BASE[stage])
    with pytest.raises(TightropeError) as caught:
        load_config(path, [f"{key}=1"], CONFIGS[stage])
    return str(caught.value)


def test_every_wrong_key_is_refused_and_nearly_always_the_right_one_is_named(tmp_path):
    wrong = []
    for stage, key, meant in CASES:
        said = complaint(tmp_path, stage, key)
        assert said.startswith("override ") and "\n" not in said
        if f"did you mean `{meant}`" not in said:
            wrong.append((stage, key, meant, said))
    assert len(CASES) >= 100
    assert len(wrong) <= 0.05 * len(CASES), "\n".join(map(str, wrong))


# An entry of a list is in no override: tests/journeys/test_reward_sources.py has the slips in one.
KEYS = {
    stage: [".".join(path) for path in all_paths(key_tree(config)) if path[:2] != ("reward", "sources") or not path[2:]]
    for stage, config in CONFIGS.items()
}
LETTERS = "abcdefghijklmnopqrstuvwxyz_"
ENOUGH = 0.95


def slips(name: str, rng: random.Random) -> list[str]:
    """One of each kind: a letter missing, one too many, a wrong one, two swapped."""
    at, letter = rng.randrange(len(name)), rng.choice(LETTERS)
    pair = rng.randrange(max(len(name) - 1, 1))
    return [
        name[:at] + name[at + 1 :],
        name[:at] + letter + name[at:],
        name[:at] + letter + name[at + 1 :],
        name[:pair] + name[pair : pair + 2][::-1] + name[pair + 2 :],
    ]


def slipped_keys(stage: str) -> list[tuple[str, str]]:
    """(typo, key) for every key and section of a command; what is a key itself, or another tool's name, is no typo."""
    rng, found = random.Random(f"slips of {stage}"), []
    for key in KEYS[stage]:
        above, dot, name = key.rpartition(".")
        typos = dict.fromkeys(above + dot + slip for slip in slips(name, rng) if slip)
        found += [
            (typo, key) for typo in typos if typo not in KEYS[stage] and typo.rpartition(".")[2] not in KNOWN_NAMES
        ]
    return found


def share_of_wrong(cases: list[tuple[str, str, str]], folder: Path) -> float:
    """Prints every case in which another key, or none, was named first. None may be accepted."""
    wrong = []
    for stage, typo, meant in cases:
        said = complaint(folder, stage, typo)
        assert said.startswith("override ") and "\n" not in said
        if f"did you mean `{meant}`?" not in said:
            wrong.append(f"{stage} {typo} -> {meant}: {said}")
    print(f"{len(cases) - len(wrong)} of {len(cases)} right; misses:", *wrong, sep="\n  ")
    return len(wrong) / len(cases)


@pytest.mark.parametrize("stage", CONFIGS)
def test_a_slip_in_any_key_is_refused_and_the_key_is_named(tmp_path, stage):
    cases = [(stage, typo, key) for typo, key in slipped_keys(stage)]
    assert len(cases) >= 100
    assert share_of_wrong(cases, tmp_path) <= 1 - ENOUGH


def test_names_of_other_tools_are_refused_and_ours_is_named(tmp_path):
    """Each name of the table for every command that has the key, alone and as a flag."""
    cases = []
    for stage, keys in KEYS.items():
        for name, ours in KNOWN_NAMES.items():
            meant = [key for key in ours if key in keys]
            if meant and name not in keys:
                cases.append((stage, name, meant[0]))
    cases += [("ppo", f"--{name}", meant) for stage, name, meant in cases if stage == "ppo" and "." not in name]
    assert len(cases) > 500
    assert share_of_wrong(cases, tmp_path) <= 1 - ENOUGH


VERL = """
actor_rollout_ref.actor.optim.lr              optimizer.learning_rate
critic.optim.lr                               optimizer.critic_learning_rate
actor_rollout_ref.actor.clip_ratio            ppo.clip_range
actor_rollout_ref.actor.ppo_epochs            ppo.epochs
actor_rollout_ref.actor.ppo_mini_batch_size   ppo.minibatches
actor_rollout_ref.actor.grad_clip             optimizer.max_grad_norm
actor_rollout_ref.actor.kl_loss_coef          kl.beta
actor_rollout_ref.rollout.n                   rollout.samples_per_prompt
actor_rollout_ref.rollout.temperature         rollout.temperature
actor_rollout_ref.rollout.response_length     rollout.max_new_tokens
actor_rollout_ref.model.path                  model.name
actor_rollout_ref.model.lora_rank             model.lora.rank
algorithm.gamma                               ppo.gamma
algorithm.lam                                 ppo.lam
algorithm.kl_ctrl.kl_coef                     kl.beta
algorithm.kl_ctrl.type                        kl.mode
algorithm.kl_ctrl.horizon                     kl.horizon
algorithm.kl_ctrl.target_kl                   kl.target
critic.cliprange_value                        ppo.value_clip
data.train_batch_size                         rollout.prompts_per_step
reward_model.model.path                       reward.model
custom_reward_function.path                   reward.function
trainer.critic_warmup                         ppo.value_warmup_steps
trainer.test_freq                             evaluation.every
trainer.default_local_dir                     output
"""
OPENRLHF = """
algo.kl.init_coef        kl.beta
algo.kl.target           kl.target
algo.advantage.lambd     ppo.lam
algo.advantage.gamma     ppo.gamma
actor.eps_clip           ppo.clip_range
actor.model_name_or_path model.name
critic.value_clip        ppo.value_clip
reward.model_name_or_path reward.model
adam.lr                  optimizer.learning_rate
adam.weight_decay        optimizer.weight_decay
ds.lora.rank             model.lora.rank
ckpt.save_steps          checkpoint.every
ckpt.max_num             checkpoint.keep
rollout.batch_size       rollout.prompts_per_step
data.prompt_dataset      data.train
eval.steps               evaluation.every
"""


@pytest.mark.parametrize("line", (VERL + OPENRLHF).strip().replace("\n\n", "\n").splitlines())
def test_a_path_of_another_tool_leads_to_our_key(tmp_path, line):
    theirs, ours = line.split()
    assert f"did you mean `{ours}`?" in complaint(tmp_path, "ppo", theirs)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("vllm_gpu_memory_utilization", "no counterpart: responses are sampled by the weights that are trained"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size", "no counterpart: responses are sampled by"),
        ("zero_stage", "no counterpart: a run is one process on one machine"),
        ("actor_rollout_ref.actor.fsdp_config.param_offload", "no counterpart: a run is one process"),
        ("training.packing", "no counterpart: rows are always packed"),
    ],
)
def test_a_name_without_counterpart_says_why(tmp_path, key, says):
    said = complaint(tmp_path, "ppo", key)
    assert says in said and f"unknown key `{key}`" in said


def test_no_name_both_has_and_lacks_a_counterpart():
    assert set(KNOWN_NAMES).isdisjoint(REASONS)
    assert [name for name in KNOWN_NAMES if no_counterpart(name.split("."))] == []


CHOICES = [
    (stage, option.key, word)
    for stage, config in CONFIGS.items()
    for option in options_of(config)
    for word in option.type.split(" | ")
    if " | " in option.type and len(word) > 3 and word != "null" and option.key in KEYS[stage]
]


def test_a_slip_in_a_value_names_the_value(tmp_path):
    """Every word an option allows, with a letter missing and with two swapped."""
    rng, wrong, count = random.Random("values"), [], 0
    for stage, key, word in CHOICES:
        # bfloat16 without its b is a type of its own, refused with another reason.
        for slip in {slip for slip in slips(word, rng) if slip and slip != word and slip not in HALF}:
            path = tmp_path / "run.yaml"
            path.write_text(BASE[stage])
            with pytest.raises(TightropeError, match=r"wrong value|unknown preset") as caught:
                load_config(path, [f"{key}={slip}"], CONFIGS[stage])
            count += 1
            if f"did you mean {word}?" not in str(caught.value):
                wrong.append(str(caught.value))
    print(*wrong, sep="\n")
    assert count >= 100 and len(wrong) <= (1 - ENOUGH) * count


@pytest.mark.parametrize(
    ("stage", "section", "belongs_to"),
    [
        ("ppo", "dpo", "dpo"),
        ("sft", "rollout", "ppo or rloo"),
        ("dpo", "reward_model", "rm train"),
        ("rloo", "ppo", "ppo"),
    ],
)
def test_a_section_of_another_stage_is_named(tmp_path, stage, section, belongs_to):
    path = tmp_path / "run.yaml"
    path.write_text(BASE[stage] + f"{section}:\n  beta: 1\n")
    with pytest.raises(TightropeError, match=f"section `{section}` belongs to `tightrope {belongs_to}`") as caught:
        load_config(path, [], CONFIGS[stage])
    line = len(BASE[stage].splitlines()) + 1
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_nothing_far_away_is_suggested(tmp_path):
    assert "did you mean" not in complaint(tmp_path, "ppo", "zzzqqq")
