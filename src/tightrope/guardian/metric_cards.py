"""One card a metric: name, unit, formula, healthy range, what to do. Docs, tooltips and the doctor read these."""

from __future__ import annotations

from tightrope.records import MetricCard


def _cards(rows: list[tuple[str, str, str, str, str]]) -> dict[str, MetricCard]:
    return {row[0]: MetricCard(*row) for row in rows}


CARDS: dict[str, MetricCard] = _cards(
    [
        # rollout
        ("sequences", "count", "responses of the step", "as configured", "check rollout.prompts_per_step"),
        (
            "response_tokens",
            "tokens",
            "mean actions per response, EOS included",
            "near its value at step 0",
            "drifting up or down: the reward likes length; see reward.length_cost",
        ),
        (
            "response_words",
            "words",
            "mean words per decoded response",
            "near its value at step 0",
            "as response_tokens",
        ),
        (
            "stopped_share",
            "share 0-1",
            "responses the policy ended itself",
            "over 0.5, not falling",
            "raise rollout.max_new_tokens, or reward.missing_eos.value",
        ),
        (
            "entropy_seq",
            "nats/response",
            "mean of -sum of log-probs of the sampled actions",
            "falls slowly",
            "sudden fall: collapse; raise kl.beta or lower the learning rate",
        ),
        (
            "entropy_tok",
            "nats/token",
            "mean exact entropy of the policy's distribution at each action",
            "falls slowly, stays over a third of its start",
            "raise kl.beta or lower the learning rate",
        ),
        (
            "distinct_3",
            "share 0-1",
            "distinct word 3-grams / all word 3-grams of the step's responses",
            "over 0.8 of its value at step 0",
            "falling while the reward rises: the reward is being gamed",
        ),
        # reward
        ("reward", "normalised reward", "mean of what entered the algorithm", "rises", "flat: learning rate, reward"),
        ("reward_raw", "reward source's unit", "mean of the reward source's own number", "rises", "as reward"),
        (
            "reward_normalised",
            "normalised reward",
            "gain x raw + bias, mean 0 and std 1 on the starting policy",
            "rises to 1-3",
            "over 5: look at samples, this is beyond what the reward model saw",
        ),
        (
            "reward_scaled",
            "reward / running std",
            "reward divided by the standard deviation of all rewards so far",
            "rises",
            "as reward",
        ),
        ("reward_clip", "reward", "what reward.clip took or gave", "near 0", "raise reward.clip"),
        ("reward_length", "reward", "what reward.length cost", "small beside the reward", "lower reward.length.cost"),
        (
            "reward_length_cost",
            "normalised reward",
            "-length_cost x response tokens",
            "small beside reward_normalised",
            "lower reward.length_cost",
        ),
        (
            "reward_missing_eos",
            "normalised reward",
            "what cut responses lost",
            "near 0",
            "raise rollout.max_new_tokens",
        ),
        (
            "held_out",
            "judge's unit",
            "mean verdict of a judge nothing is trained on, on the probe",
            "rises with the reward",
            "reward up, this down: reward hacking; stop, raise kl.beta, improve the reward model",
        ),
        # KL
        (
            "kl_seq",
            "nats/response",
            "mean over responses of the sum of log-prob - reference log-prob",
            "near kl_target",
            "over 2 x the target: lower the learning rate or raise kl.beta",
        ),
        ("kl_tok", "nats/token", "mean over actions of log-prob - reference log-prob", "under 0.5", "as kl_seq"),
        ("beta", "reward/nat", "KL coefficient used in the step", "moves slowly", "at its bound: change kl.target"),
        ("kl_target", "nats/response", "what the controller aims at", "constant", "set kl.target"),
        # update
        (
            "ratio",
            "1",
            "mean of exp(log-prob - old log-prob) over all minibatches",
            "0.95-1.05",
            "lower the learning rate or ppo.epochs",
        ),
        ("ratio_error", "1", "mean of |ratio - 1|", "under 0.2", "as ratio"),
        ("clip_fraction", "share 0-1", "actions whose gradient the clip removed", "0.02-0.3", "as ratio"),
        (
            "value_clip_fraction",
            "share 0-1",
            "actions whose value gradient the clip removed",
            "under 0.3",
            "critic rate",
        ),
        ("dual_clip_fraction", "share 0-1", "actions whose loss ppo.dual_clip bounded", "under 0.01", "as ratio"),
        ("approx_kl", "nats/token", "k3 of old against new policy within the step", "under 0.05", "as ratio"),
        ("approx_kl_k2", "nats/token", "k2 of old against new policy within the step", "as approx_kl", "as ratio"),
        ("advantage_std", "reward", "std of advantages before whitening", "steady", "exploding: critic rate too high"),
        ("return_std", "reward", "std of the critic's targets", "steady", "exploding: critic rate too high"),
        (
            "explained_variance",
            "1",
            "1 - Var(returns - values) / Var(returns)",
            "over 0.3 after 10 steps",
            "raise optimizer.critic_learning_rate or ppo.value_warmup_steps",
        ),
        (
            "explained_variance_mse",
            "1",
            "1 - MSE(values, returns) / Var(returns); counts bias too",
            "as explained_variance",
            "as explained_variance",
        ),
        (
            "groups_without_signal",
            "count",
            "groups whose responses all earned the same",
            "under half of the groups",
            "more samples per prompt, harder or easier prompts",
        ),
        ("loss_policy", "reward", "mean clipped surrogate loss", "around 0", "none by itself"),
        ("loss_entropy", "nats/token", "mean of -entropy of the policy", "rises slowly", "ppo.entropy_coef"),
        ("loss_kl", "nats", "mean of a KL loss, over tokens (PPO) or responses (RLOO)", "small", "kl.beta"),
        ("loss_value", "reward²", "mean clipped value loss", "falls", "critic rate"),
        ("loss_nll", "nats/token", "mean negative log-likelihood of trained tokens", "falls", "learning rate"),
        ("loss_preference", "nats/pair", "mean preference loss", "under ln 2, falls", "learning rate, labels"),
        ("loss_centering", "score²", "mean (r_chosen + r_rejected)²", "small", "reward_model.center_coef"),
        (
            "grad_norm_policy",
            "1",
            "gradient norm before clipping, mean over optimizer steps",
            "steady",
            "learning rate",
        ),
        ("grad_norm_critic", "1", "gradient norm before clipping, mean over optimizer steps", "steady", "critic rate"),
        (
            "grad_norm_reward",
            "1",
            "gradient norm before clipping, mean over optimizer steps",
            "steady",
            "learning rate",
        ),
        ("learning_rate_factor", "share 0-1", "schedule's factor on every learning rate", "as configured", "schedule"),
        (
            "optimizer_steps",
            "count",
            "optimizer steps taken",
            "epochs x minibatches",
            "fewer: target_kl ended it early",
        ),
        ("stopped_in_epoch", "count", "epoch (0-based) that target_kl ended", "absent", "lower the learning rate"),
        ("skipped_updates", "count", "optimizer steps refused for non-finite numbers", "absent", "see the note"),
        ("nonfinite", "count", "non-finite numbers caught before an optimizer step", "absent", "see the note"),
        # offline
        ("batch_rows", "count", "rows or pairs of the step", "as configured", "none"),
        ("rows", "count", "held-out rows or pairs", "over 100 for a useful interval", "data.held_out"),
        (
            "nll_tok",
            "nats/token",
            "mean negative log-likelihood of trained tokens",
            "falls, also held out",
            "overfitting",
        ),
        ("loss", "nats/pair", "mean preference loss", "under ln 2 (0.693)", "over it on held-out pairs: overfitting"),
        ("accuracy", "share 0-1", "pairs in the right order, a tie counts one half", "over 0.6 held out", "more pairs"),
        ("margin", "score", "mean r_chosen - r_rejected", "positive", "more pairs, higher rate"),
        (
            "reward_chosen",
            "nats",
            "DPO's beta x (log-prob - reference log-prob) of chosen answers",
            "not below 0 for long",
            "chosen answers are becoming less likely: lower the rate, raise dpo.beta",
        ),
        ("reward_rejected", "nats", "the same of rejected answers", "falls", "none"),
        ("logp_chosen", "nats/answer", "mean log-prob of chosen answers", "not falling far", "as reward_chosen"),
        ("logp_rejected", "nats/answer", "mean log-prob of rejected answers", "falls", "none"),
    ]
)
