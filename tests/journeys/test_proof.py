"""Is what `make proof` measures against right, and does it turn red? The whole of it runs by that command."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.learning.experiments import FRONTIER
from benchmarks.learning.ledger import Entry, Ledger, Results
from benchmarks.learning.settings import SEEDS, TRUE
from benchmarks.proof import __main__ as proof
from benchmarks.proof.checks import self_test, small, step_accounts
from benchmarks.proof.claims import Chapter, Claim
from benchmarks.proof.faults import Fault, Patch, broken
from benchmarks.proof.learning import CLAIMS, errors_behind, frontier_claims
from benchmarks.proof.problem import Problem, Scale, optimum, outcome, share_of_optimum
from benchmarks.proof.runs import Table, Variant
from benchmarks.proof.seeded_faults import FAULTS, Verdict, aims_at_j, in_words, verdict_of_broken, verdict_of_fault
from tightrope.algorithms import ppo

TINY = 4
"""Words of the tiny problem, the end token among them."""
SCALE = Scale(gain=0.7, bias=0.3)


def tiny_problem() -> Problem:
    draw = np.random.default_rng(7)
    prompts, cap = ((0,), (1, 2)), 3
    return Problem(
        prompts=prompts,
        vocabulary=TINY,
        end=TINY - 1,
        cap=cap,
        beta=0.3,
        temperature=0.7,
        cut_penalty=0.5,
        reference=draw.normal(size=(2, 2 + cap, TINY, TINY)),
        rewards=draw.normal(size=(2, cap, TINY)),
    )


def responses(problem: Problem, prompt: int, logits) -> Iterator[tuple[float, float, float]]:
    """(log-prob, log-prob under the reference, score) of every response there is, one by one."""

    def logprob(table, position, before, token):
        row = table[prompt, position, before] / problem.temperature
        return row[token] - math.log(sum(math.exp(x) for x in row))

    def walk(step, before, logp, log_reference, raw):
        position = len(problem.prompts[prompt]) - 1 + step
        for token in range(problem.vocabulary):
            p = logp + logprob(logits, position, before, token)
            r = log_reference + logprob(problem.reference, position, before, token)
            earned = raw + problem.rewards[prompt, step, token]
            if token == problem.end:
                yield p, r, SCALE.gain * earned + SCALE.bias
            elif step + 1 == problem.cap:
                yield p, r, SCALE.gain * earned + SCALE.bias - problem.cut_penalty
            else:
                yield from walk(step + 1, token, p, r, earned)

    return walk(0, problem.prompts[prompt][-1], 0.0, 0.0, 0.0)


def test_the_optimum_is_beta_log_z_over_all_responses() -> None:
    problem, logits = tiny_problem(), tiny_problem().reference
    values = []
    for prompt in range(len(problem.prompts)):
        everything = list(responses(problem, prompt, logits))
        assert math.isclose(sum(math.exp(r) for _, r, _ in everything), 1.0)
        z = sum(math.exp(r + score / problem.beta) for _, r, score in everything)
        values.append(problem.beta * math.log(z))
    assert math.isclose(optimum(problem, SCALE), sum(values) / len(values), rel_tol=1e-12)


def test_what_a_policy_earns_is_the_mean_over_all_responses() -> None:
    problem = tiny_problem()
    logits = np.random.default_rng(8).normal(size=problem.reference.shape)
    scores, kls = [], []
    for prompt in range(len(problem.prompts)):
        everything = list(responses(problem, prompt, logits))
        scores.append(sum(math.exp(p) * score for p, _, score in everything))
        kls.append(sum(math.exp(p) * (p - r) for p, r, _ in everything))
    found = outcome(problem, logits, SCALE)
    assert math.isclose(found.score, sum(scores) / len(scores), rel_tol=1e-12)
    assert math.isclose(found.kl, sum(kls) / len(kls), rel_tol=1e-12)
    assert math.isclose(found.objective, found.score - problem.beta * found.kl, rel_tol=1e-12)
    assert found.objective < optimum(problem, SCALE)


def test_the_reference_has_share_zero_and_the_best_policy_one() -> None:
    problem = tiny_problem()
    assert share_of_optimum(problem, problem.reference, SCALE) == 0.0
    best = problem.reference.copy()
    for n, prompt in enumerate(problem.prompts):  # the optimal policy in closed form, by the values after each token
        after = np.full(problem.vocabulary, -problem.cut_penalty)
        for step in reversed(range(problem.cap)):
            after[TINY - 1] = 0.0
            at, worth = len(prompt) - 1 + step, SCALE.gain * problem.rewards[n, step] + after
            best[n, at] += problem.temperature * worth / problem.beta
            reference = problem.reference[n, at] / problem.temperature
            z = np.exp(reference + worth / problem.beta).sum(-1) / np.exp(reference).sum(-1)
            after = problem.beta * np.log(z)
    assert math.isclose(share_of_optimum(problem, best, SCALE), 1.0, rel_tol=1e-12)


@pytest.mark.parametrize("stage", ["ppo", "rloo"])
def test_a_short_run_gets_nearer_to_the_optimum(stage) -> None:
    variant = Variant(form="variable", stage=stage, steps=12).but("rollout", prompts_per_step=9, samples_per_prompt=8)
    table = Table.of(variant.but("reward", normalise_samples=64))
    table.prepare()
    assert table.result().share == pytest.approx(0.0, abs=1e-6)  # float32 weights against float64
    for _ in range(variant.steps):
        table.step()
    assert table.result().share > 0.3


def test_sound_code_passes_the_accounts_of_a_step() -> None:
    failed = [m for m in step_accounts(small(Variant(form="variable"))) if not m.passed]
    assert not failed


@pytest.mark.parametrize(
    ("what", "checker", "noticed"),
    [
        ("temperature forgotten by the sampler", self_test, "self-test: sampler"),
        ("score one action early", step_accounts, "accounts: rewards of the actions"),
        ("last action counted twice", step_accounts, "accounts: responses whose actions are not what was sampled"),
    ],
)
def test_a_fault_is_noticed_and_gone_afterwards(what, checker, noticed) -> None:
    (fault,) = (fault for fault in FAULTS if fault.what == what)
    before = [vars(patch.owner)[patch.name] for patch in fault.patches]
    with broken(fault) as hits:
        failed = [m.name for m in checker(small(fault.variant)) if not m.passed]
    assert hits.count and noticed in failed
    assert [vars(patch.owner)[patch.name] for patch in fault.patches] == before


def test_a_fault_that_is_never_reached_is_an_error(monkeypatch) -> None:
    unreached = Fault("nobody calls this", (), Variant(form="variable", steps=1))
    monkeypatch.setattr("benchmarks.proof.seeded_faults.FAULTS", (unreached,))
    monkeypatch.setattr("benchmarks.proof.seeded_faults.SHORT", 1)
    monkeypatch.setattr("benchmarks.proof.seeded_faults.checkers_of", lambda variant: ())
    with pytest.raises(RuntimeError, match="never reached"):
        verdict_of_fault("nobody calls this")


def test_a_fault_that_does_not_fit_the_code_is_an_error_and_not_noticed() -> None:
    def without_arguments(_original):
        return lambda: None

    misfit = Fault(
        "of another signature", (Patch(ppo, "decoupled_gae", without_arguments),), Variant(form="variable", steps=1)
    )
    with pytest.raises(RuntimeError, match="'of another signature' does not fit the code"):
        verdict_of_broken(misfit)


def test_a_fault_is_reached_when_each_of_its_patches_is() -> None:
    names = ("kl_in_reward", "token_rewards")
    patches = tuple(Patch(ppo, name, lambda original: lambda: None) for name in names)
    with broken(Fault("two places", patches, Variant())) as hits:
        vars(ppo)["kl_in_reward"]()
        assert hits.count == 0
        vars(ppo)["token_rewards"]()
        assert hits.count == 1


def test_faults_have_names_of_their_own_and_real_targets() -> None:
    assert len({fault.what for fault in FAULTS}) == len(FAULTS) >= 20
    assert all(patch.name in vars(patch.owner) for fault in FAULTS for patch in fault.patches)
    assert any(patch.owner is ppo for fault in FAULTS for patch in fault.patches)


def test_the_table_takes_an_adapter_though_its_config_counts_no_layers() -> None:
    assert Table.of(Variant(lora=True)).config.model.lora is not None


def test_a_low_share_is_a_sign_only_where_the_run_aims_at_j() -> None:
    bootstrapped = Variant(form="variable").but("ppo", bootstrap_truncated=True)
    assert aims_at_j(Variant()) and not aims_at_j(bootstrapped)
    assert Verdict(0.4, (), aims_at_j(Variant())).ways == 1
    assert Verdict(0.4, (), aims_at_j(bootstrapped)).ways == 0
    assert Verdict(math.nan, ("a check",), True).ways == 2
    assert Verdict(0.95, (), True).ways == Verdict(None, (), True).ways == 0


def test_variants_are_named_by_what_differs() -> None:
    assert in_words(Variant(stage="rloo").but("training", token_budget=512)) == "fixed length, RLOO, token_budget 512"
    assert len({in_words(fault.variant) for fault in FAULTS}) == len({repr(fault.variant) for fault in FAULTS})


def test_each_claim_about_learning_has_its_runs_in_the_ledger() -> None:
    results = Results(Ledger().read())
    assert all(math.isfinite(claim.value) for claims in CLAIMS.values() for claim in claims(results))
    assert not any(claim.passed for claims in CLAIMS.values() for claim in claims(Results([])) if "miss" in claim.name)


def test_the_frontier_is_claimed_of_one_setting_on_its_worst_seed() -> None:
    first, second = [s.name for s in FRONTIER.settings if s.reward == TRUE and s.kind == "ppo"][:2]
    ends = {first: [(0.9, 7.0), (0.8, 7.0), (0.9, 7.0)], second: [(0.99, 9.0), (0.99, 7.0), (0.99, 7.0)]}
    entries = [
        Entry(
            "frontier",
            name,
            seed,
            f"{name} {seed}",
            figures={"start": {"true": [0.4]}, "end": {"true": [true], "kl": kl}},
        )
        for name, by_seed in ends.items()
        for seed, (true, kl) in zip(SEEDS, by_seed, strict=True)
    ]
    start, end = frontier_claims(Results(entries))
    assert (start.value, end.value) == (0.4, 0.8)  # the second goes too far on one seed
    assert all(math.isnan(claim.value) for claim in frontier_claims(Results(entries[:2])))


def test_how_far_one_setting_lies_behind_another_in_standard_errors() -> None:
    assert math.isclose(errors_behind([0.0, 2.0], [3.0, 5.0]), 3.0 / math.sqrt(2.0))  # variances 2 / 2 runs, twice
    assert errors_behind([1.0, 2.0], [1.0, 2.0]) == 0.0
    assert math.isnan(errors_behind([1.0], [2.0, 3.0]))


@pytest.mark.parametrize(("value", "code"), [(0.99, 0), (0.97, 1), (math.nan, 1), (math.inf, 1)])
def test_a_missed_claim_ends_with_exit_code_one(monkeypatch, capsys, value, code) -> None:
    chapter = Chapter(
        "title", "text", ["a"], [["b"]], [Claim("share", value, 0.98), Claim("checks", 0, 0, at_most=True)]
    )
    monkeypatch.setattr(proof, "CHAPTERS", (lambda work: chapter,))
    assert proof.main([]) == code
    claims = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert claims["share"]["passed"] is (code == 0) and claims["share"]["threshold"] == 0.98
    assert claims["checks"]["passed"] is True


def test_nothing_claimed_is_not_a_proof(monkeypatch) -> None:
    monkeypatch.setattr(proof, "CHAPTERS", ())
    assert proof.main([]) == 1


def test_the_page_keeps_its_words_and_gets_new_tables(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"words\n{proof.BEGIN}\nold\n{proof.END}\nmore words\n")
    proof.write_tables(page, [Chapter("title", "text", ["a"], [["b"]], [])])
    written = page.read_text()
    assert written.startswith("words\n") and written.endswith("\nmore words\n")
    assert "| b |" in written and "old" not in written
    page.write_text("no place")
    with pytest.raises(ValueError, match="no lines"):
        proof.write_tables(page, [])


def test_a_part_does_not_replace_the_tables_of_the_whole(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        proof.main(["--only", "RLOO", "--page", str(tmp_path / "page.md")])
    assert "takes no --only" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_proves_a_part(capsys) -> None:
    assert proof.main(["--only", "fixed length, PPO lam 0.95, critic", "--seeds", "1"]) == 0
    (claim,) = json.loads(capsys.readouterr().out.splitlines()[-1]).values()
    assert claim["passed"] and claim["value"] >= 0.96
