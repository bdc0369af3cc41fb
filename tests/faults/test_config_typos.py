"""Is a key that does not exist refused, and is the right one suggested? Misspellings, wrong sections, other tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from tightrope.algorithms.options import CONFIGS
from tightrope.config.errors import TightropeError
from tightrope.config.load import load_config

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
