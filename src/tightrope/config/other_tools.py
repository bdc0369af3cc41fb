"""What do TRL, OpenRLHF and verl call our options, and which of theirs have no counterpart here, and why?

Names with dots stand for themselves and for anything above them: ``critic.optim.lr`` is also
``actor_rollout_ref.critic.optim.lr``. A name that belongs to several of our keys means the first one a command has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

THEIR_NAMES: Mapping[str, str] = {
    # KL
    "kl.beta": "init_kl_coef init_kl_coeff kl_coef kl_coeff kl_loss_coef kl_penalty kl_ctrl.kl_coef algo.kl.init_coef",
    "kl.mode": "kl_ctl adap_kl_ctrl adaptive_kl_ctrl kl_ctrl.type",
    "kl.target": "kl_target target_kl_coef kl_ctrl.target_kl algo.kl.target",
    "kl.estimator": "kl_estimator kl_loss_type kl_penalty_type",
    "kl.placement": "use_kl_loss use_kl_in_reward",
    "kl.horizon": "kl_horizon kl_ctrl.horizon algo.kl.horizon",
    # update
    "ppo.clip_range": "cliprange clip_eps eps_clip clip_ratio clip_epsilon clip_ratio_low epsilon_low epsilon",
    "ppo.clip_range_high": "clip_ratio_high epsilon_high eps_clip_high",
    "ppo.dual_clip": "clip_ratio_c actor.dual_clip",
    "ppo.loss_aggregation": "loss_agg_mode loss_type",
    "ppo.entropy_coef": "entropy_coeff ent_coef entropy_loss_coef entropy_bonus",
    "ppo.whiten_rewards": "whiten_reward",
    "ppo.advantage_clip": "adv_clip clip_advantages",
    "rloo.clip_range": "cliprange clip_eps eps_clip clip_ratio clip_epsilon clip_ratio_low epsilon_low epsilon",
    "ppo.value_clip": "cliprange_value value_clip_range cliprange_critic critic.value_clip",
    "ppo.value_coef": "vf_coef value_loss_coef",
    "ptx.coefficient": "ptx_coef",
    "ppo.gamma": "discount advantage.gamma algorithm.gamma",
    "ppo.lam": "gae_lambda lambd lambda lmbda advantage.lambd algorithm.lam",
    "ppo.epochs": "num_ppo_epochs ppo_epochs noptepochs num_iterations max_epochs train.max_epochs",
    "rloo.epochs": "num_ppo_epochs ppo_epochs num_iterations max_epochs train.max_epochs",
    "ppo.minibatches": "num_mini_batches ppo_mini_batch_size mini_batch_size local_mini_batch_size",
    "rloo.minibatches": "num_mini_batches ppo_mini_batch_size mini_batch_size local_mini_batch_size",
    "ppo.whiten_advantages": "normalize_advantages whiten_adv norm_adv_by_std_in_grpo",
    "ppo.value_warmup_steps": "critic_warmup freezing_actor_steps",
    "ppo.critic": "critic_pretrain critic.enable critic.model.path critic.model_name_or_path reward_model_as_critic",
    "dpo.beta": "model.beta beta",
    "dpo.label_smoothing": "label_smoothing_factor",
    "reward_model.center_coef": "center_rewards_coefficient",
    # batch
    "training.token_budget": "per_device_train_batch_size per_device_eval_batch_size per_gpu_train_batch_size "
    "micro_train_batch_size micro_rollout_batch_size micro_batch_size micro_batch_size_per_gpu train.micro_batch_size "
    "ppo_micro_batch_size ppo_micro_batch_size_per_gpu ppo_max_token_len_per_gpu forward_max_token_len_per_gpu "
    "log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_max_token_len_per_gpu "
    "forward_micro_batch_size forward_micro_batch_size_per_gpu gradient_accumulation_steps "
    "local_rollout_forward_batch_size rollout.micro_batch_size train_max_tokens_per_gpu rollout_max_tokens_per_gpu "
    "max_tokens_per_gpu precompute_ref_batch_size",
    "sft.batch_size": "batch_size train_batch_size train.batch_size global_batch_size",
    "reward_model.batch_size": "batch_size train_batch_size train.batch_size global_batch_size",
    "dpo.batch_size": "batch_size train_batch_size train.batch_size global_batch_size",
    "rollout.prompts_per_step": "rollout_batch_size rollout.batch_size gen_batch_size generation_batch_size "
    "local_batch_size batch_size train_batch_size train.batch_size global_batch_size",
    "training.steps": "max_steps total_steps total_training_steps num_steps total_episodes num_episodes "
    "num_train_epochs num_epochs total_epochs num_total_batches max_epochs train.max_epochs train.num_episodes",
    # rollout
    "rollout.max_new_tokens": "response_length max_response_length max_completion_length generate_max_len max_tokens "
    "max_new_token generation_max_length",
    "rollout.samples_per_prompt": "num_generations n_samples_per_prompt rloo_k rollout.n rollout_n n group_size",
    "rollout.temperature": "sampling_temperature",
    # reward
    "reward.model": "reward_model_path reward_pretrain reward.model_name_or_path reward_model.model.path "
    "reward_model_id",
    "reward.function": "reward_funcs reward_fn custom_reward_function custom_reward_function.path remote_rm_url "
    "reward.remote_url reward_manager",
    "reward.missing_eos.value": "missing_eos_penalty non_eos_penalty",
    "reward.normalise": "normalize_reward normalize scale_rewards",
    "reward.clip": "reward_clip_range reward.clip_range cliprange_reward",
    "rollout.truncate.token": "stop_token stop_token_id eos_token stop",
    "model.gradient_checkpointing": "enable_gradient_checkpointing gradient_checkpointing_enable "
    "use_gradient_checkpointing",
    "reward.scale": "use_reward_scaling reward_scaling scale_reward",
    "reward.length_cost": "overlong_penalty_factor reward.overlong_penalty_factor",
    # optimiser
    "optimizer.critic_learning_rate": "critic_lr critic.optim.lr critic.adam.lr critic.lr",
    "optimizer.learning_rate": "lr actor_learning_rate actor_lr optim.lr adam.lr",
    "optimizer.schedule": "lr_scheduler_type lr_scheduler warmup_style",
    "optimizer.warmup_steps": "lr_warmup_steps warmup_ratio lr_warmup_ratio lr_warmup_steps_ratio num_warmup_steps",
    "optimizer.betas": "adam_betas adam_beta1 adam_beta2 adam.betas",
    "optimizer.eps": "adam_epsilon adam_eps adam.eps epsilon",
    "optimizer.weight_decay": "l2 adam.weight_decay",
    "optimizer.max_grad_norm": "max_norm grad_clip clip_grad gradient_clipping grad_norm_clip",
    # model
    "model.name": "path model_name_or_path model_name pretrain sft_model_path partial_pretrain hf_path "
    "actor.model_name_or_path model_path model_id base_model",
    "model.dtype": "torch_dtype bf16 fp16 tf32 param_dtype mixed_precision model_dtype",
    "model.device": "device_map use_cpu trainer.device",
    "model.lora": "use_peft peft_config ds.lora",
    "model.lora.rank": "lora_r lora_rank lora.rank r",
    "model.lora.alpha": "lora_alpha lora.alpha",
    "model.lora.dropout": "lora_dropout lora.dropout",
    # data
    "data.train": "dataset dataset_name train_files train_file prompt_data prompt_dataset train_dataset data_path "
    "dataset_train_split prompt_split",
    "data.evaluation": "eval_dataset val_files validation_file eval.dataset dataset_test_split eval_split",
    "data.max_prompt_tokens": "max_prompt_length prompt_max_len max_length max_len prompt_length max_seq_length",
    "data.overlong": "truncation truncation_mode filter_overlong_prompts",
    "data.limit": "max_samples train_max_samples max_train_samples",
    "data.held_out": "val_max_samples val_size test_size eval_size",
    # run
    "output": "output_dir save_path default_local_dir ckpt_path ckpt.path ckpt.output_dir run_name",
    "seed": "random_seed data_seed data_loader_seed train.seed",
    "checkpoint.every": "save_steps save_freq save_interval save_strategy",
    "checkpoint.keep": "save_total_limit max_ckpt_num ckpt.max_num max_ckpt_to_keep max_actor_ckpt_to_keep "
    "max_critic_ckpt_to_keep",
    "evaluation.every": "eval_steps test_freq eval.steps eval_strategy",
    "sft.evaluate_every": "eval_steps test_freq eval.steps eval_strategy",
    "reward_model.evaluate_every": "eval_steps test_freq eval.steps eval_strategy",
    "dpo.evaluate_every": "eval_steps test_freq eval.steps eval_strategy",
    "samples.every": "num_sample_generations log_completions",
    "samples.count": "num_completions_to_print log_val_generations",
}
"""Our key -> what others call it."""

NO_VLLM = "responses are sampled by the weights that are trained, without a second engine"
ONE_MACHINE = "a run is one process on one machine"
NO_QUANTISATION = "weights are float32 or bfloat16 (model.dtype); model.lora saves memory"
WITHOUT_COUNTERPART: Mapping[str, str] = {
    NO_VLLM: "use_vllm gpu_memory_utilization enforce_eager tensor_model_parallel_size enable_prefix_caching "
    "free_cache_engine max_num_batched_tokens max_num_seqs enable_chunked_prefill load_format max_model_len "
    "use_transformers_paged",
    ONE_MACHINE: "zero_stage local_rank nnodes n_gpus_per_node num_gpus_per_node num_nodes num_processes "
    "actor_num_nodes critic_num_nodes actor_num_gpus_per_node critic_num_gpus_per_node ref_num_nodes "
    "ref_num_gpus_per_node reward_num_nodes reward_num_gpus_per_node colocate_all_models colocate_actor_ref "
    "colocate_critic_reward async_train async_queue_size ring_attn_size zpg adam_offload strategy world_size "
    "overlap_comm ulysses_sequence_parallel_size param_offload optimizer_offload hybrid_engine nccl_timeout",
    "rows are always packed without padding; training.token_budget bounds a pass": "packing packing_samples "
    "padding_free use_remove_padding packing_strategy eval_packing pad_to_multiple_of use_dynamic_bsz "
    "use_dynamic_batch pad_token group_by_length dynamic_batch_enable",
    NO_QUANTISATION: "load_in_4bit load_in_8bit quantization use_bnb_nested_quant",
    "code that comes with a model is never run": "trust_remote_code external_lib",
    "the distribution sampled from must be the one scored; use rollout.temperature": "min_p repetition_penalty "
    "do_sample generation_kwargs",
    "chat format and columns are read from the tokenizer and the rows": "prompt_key input_key output_key label_key "
    "chosen_key rejected_key response_key image_key input_template dataset_text_field dataset_kwargs dataset_num_proc "
    "apply_chat_template chat_template_path custom_chat_template tokenizer_chat_template chat_template_kwargs "
    "completion_only_loss assistant_only_loss remove_unused_columns multiturn return_raw_chat",
    "`tightrope resume RUN` goes on with a run; its folder holds all it needs": "resume_mode resume_from_path "
    "resume_from_checkpoint load_checkpoint",
    "every step is recorded in the run folder": "logging_steps logging_first_step logging_strategy logging_dir",
    "the reference is where the policy started, and stays": "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps "
    "ref_model",
    "attention and kernels are chosen for the device": "use_liger_kernel use_liger attn_implementation flash_attn "
    "use_torch_compile torch_compile use_fused_kernels",
    "adapters sit on every linear layer of the blocks": "lora_target_modules target_modules lora_modules_to_save "
    "use_dora use_rslora exclude_modules",
    "there is no average of the weights; checkpoint.keep keeps several": "enable_ema ema_beta",
    "the command chooses: `tightrope ppo` or `tightrope rloo`": "adv_estimator advantage_estimator",
    "nothing is sent anywhere; the run folder's `export` is a folder others load": "push_to_hub hub_model_id hub_token",
    "dropout is always off, or the first ratio would not be 1": "disable_dropout",
    "the reference is scored as it is needed": "precompute_ref_log_probs",
}
"""Why there is nothing like it here -> their names."""
STARTS_WITHOUT_COUNTERPART: Mapping[str, str] = {
    "vllm": NO_VLLM,
    "sglang": NO_VLLM,
    "fsdp": ONE_MACHINE,
    "deepspeed": ONE_MACHINE,
    "ds_": ONE_MACHINE,
    "ds3_": ONE_MACHINE,
    "ray_": ONE_MACHINE,
    "bnb_": NO_QUANTISATION,
}


def inverted(table: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for key, names in table.items():
        for name in names.split():
            found[name] = (*found.get(name, ()), key)
    return found


KNOWN_NAMES: Mapping[str, tuple[str, ...]] = inverted(THEIR_NAMES)
"""Their name -> our keys; the first one the command has is meant."""
REASONS: Mapping[str, tuple[str, ...]] = inverted(WITHOUT_COUNTERPART)


def their_name(path: Sequence[str]) -> str | None:
    """The longest ending of a path that another tool has an option of."""
    tails = (".".join(path[start:]) for start in range(len(path)))
    return next((tail for tail in tails if tail in KNOWN_NAMES), None)


def our_keys(path: Sequence[str]) -> tuple[str, ...]:
    """The keys another tool's path means."""
    name = their_name(path)
    return () if name is None else KNOWN_NAMES[name]


def no_counterpart(path: Sequence[str]) -> str | None:
    """Why another tool's option does not exist here. None for a name that is nobody's."""
    for name in reversed(path):
        if name in REASONS:
            return REASONS[name][0]
        for start, reason in STARTS_WITHOUT_COUNTERPART.items():
            if name.startswith(start):
                return reason
    return None
