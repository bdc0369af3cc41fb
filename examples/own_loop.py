"""PPO in a loop of one's own: the parts of a run, put together by hand.

python examples/own_loop.py MODEL_FOLDER PROMPTS.jsonl examples/own_loop.py:brevity
"""

import sys

from tightrope import api


def brevity(samples):
    """A reward: short answers are good."""
    return [-float(sample.n_tokens) for sample in samples]


def train(config):
    run = api.parts(config)
    for step in range(config.training.steps):
        rollout = run.engine.generate(run.prompts.next_batch(), run.samples_per_prompt, run.sampling, run.key())
        scores = run.judge.score(rollout)  # rewards, reference log-probs, values
        experience = run.algorithm.credit(rollout, scores)  # token rewards, advantages, returns
        report = run.learner.update(experience)  # epochs, minibatches, optimizer steps
        kl = (rollout.behaviour_logprobs - scores.ref_logprobs).double().sum() / rollout.n_sequences
        run.dial.after_step(step, float(kl), rollout.n_sequences)  # beta follows the KL
        run.core.progress.advance()
        print(
            f"step {step}: reward {scores.reward.mean():+.3f}, KL {kl:.3f}, loss {report.metrics['loss_policy']:+.4f}"
        )


if __name__ == "__main__":
    model, prompts, reward = sys.argv[1:]
    content = {"output": "unused", "model": {"name": model}, "data": {"train": prompts}, "reward": {"function": reward}}
    train(api.config_from("ppo", content | {"training": {"steps": 4}, "rollout": {"max_new_tokens": 16}}))
