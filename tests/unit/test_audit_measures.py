"""Is each number of a reward-model audit what its definition says? Against hand-computed and independent values."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from tightrope.audit import coverage, intervals, labels, measures, phrases, policy, words
from tightrope.audit.pairs import ScoredPairs, TextPair, clusters_of
from tightrope.audit.probes import PROBES, WORTH, Answers, Yardstick, length_dose, probe_shifts
from tightrope.types import Prompt

ADJECTIVES = ["good", "bad", "dull", "bright", "slow", "quick", "warm", "cold", "loud", "calm"]
NOUNS = ["film", "plot", "scene", "actor", "story", "song", "ending", "cast", "script", "joke"]
FOREIGN = ("Das", "Esta", "Questa", "C'est")


def prompt(number: int) -> Prompt:
    return Prompt(number, (), f"prompt number {number}", {"prompt": f"prompt number {number}"})


def pair(number: int, chosen: str, rejected: str) -> TextPair:
    return TextPair(prompt(number), chosen, rejected, f"file:{number}")


def sentence(draw: random.Random, length: int) -> str:
    return " ".join(draw.choice(ADJECTIVES + NOUNS) for _ in range(length))


# intervals


def test_a_mean_of_one_value_a_cluster_is_the_t_test_of_scipy() -> None:
    values = np.array([0.3, 1.2, -0.4, 2.2, 0.9])
    effect = intervals.clustered(values, range(5))
    theirs = stats.ttest_1samp(values, 0.5, alternative="greater")
    assert effect.p_above(0.5) == pytest.approx(theirs.pvalue, abs=1e-12)
    low, high = effect.interval(0.95)
    bounds = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((bounds.low, bounds.high), abs=1e-12)


def test_equal_values_of_a_cluster_are_one_piece_of_evidence() -> None:
    once = intervals.clustered(np.array([1.0, 2.0, 4.0]), [0, 1, 2])
    twice = intervals.clustered(np.array([1.0, 1.0, 2.0, 2.0, 4.0, 4.0]), [0, 0, 1, 1, 2, 2])
    assert (twice.estimate, twice.error) == pytest.approx((once.estimate, once.error), abs=1e-12)


def test_one_cluster_says_nothing_about_its_error() -> None:
    effect = intervals.clustered(np.array([5.0, 5.1]), [3, 3])
    assert effect.interval() == (-math.inf, math.inf)
    assert effect.p_above(0.0) == 1.0


def test_wordings_that_disagree_widen_an_interval_that_many_answers_cannot_narrow() -> None:
    draw = np.random.default_rng(0)
    wordings = np.array([[-1.0], [0.0], [2.0], [3.0]])
    values = wordings + 0.01 * draw.standard_normal((4, 1000))
    effect = intervals.crossed_effect(values, range(1000))
    of_wordings = stats.sem(wordings.ravel())
    assert effect.estimate == pytest.approx(1.0, abs=0.01)
    assert effect.error == pytest.approx(of_wordings, rel=0.01)
    assert effect.freedom == pytest.approx(3.0, abs=0.1)


def test_the_interval_over_wordings_and_answers_covers_the_truth() -> None:
    draw = np.random.default_rng(1)
    inside = 0
    for _ in range(400):
        values = 0.5 + 0.3 * draw.standard_normal((6, 1)) + 0.5 * draw.standard_normal((1, 30))
        low, high = intervals.crossed_effect(values, range(30)).interval(0.95)
        inside += low <= 0.5 <= high
    assert inside >= 0.93 * 400


def test_holm_is_between_no_correction_and_bonferroni() -> None:
    p = [0.001, 0.2, 0.011, 0.04]
    assert intervals.holm(p) == pytest.approx([0.004, 0.2, 0.033, 0.08])
    assert intervals.holm([]) == []


# scores


def test_accuracy_counts_a_tie_as_half_and_has_wilsons_interval() -> None:
    found = measures.share_right(np.array([1.0, 2.0, -1.0, 0.0] * 25), range(100))
    interval = stats.binomtest(62, 100).proportion_ci(method="wilson")
    assert (found.estimate, found.count) == (0.625, 100)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=0.006)


def test_pairs_of_one_prompt_that_agree_widen_the_interval() -> None:
    hits = np.repeat([1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0], 10)
    apart, together = measures.share(hits, range(80)), measures.share(hits, np.repeat(range(8), 10).tolist())
    eight = measures.share(hits[::10], range(8))
    assert apart.high - apart.low < together.high - together.low
    assert (together.low, together.high) == pytest.approx((eight.low, eight.high), abs=0.02)


def test_rank_agreement_is_scipys() -> None:
    draw = np.random.default_rng(0)
    rewards = draw.standard_normal(50)
    grades = np.round(rewards + draw.standard_normal(50))
    found = measures.rank_agreement(rewards, grades, range(50))
    assert found is not None
    concordant = [np.sign((rewards[i] - rewards[j]) * (grades[i] - grades[j])) for i in range(50) for j in range(i)]
    ties = sum(grades[i] == grades[j] for i in range(50) for j in range(i))
    pairs = 50 * 49 / 2
    tau_b = sum(concordant) / math.sqrt(pairs * (pairs - ties))
    assert found.kendall.estimate == pytest.approx(tau_b, abs=1e-12)
    ranks = stats.rankdata(rewards), stats.rankdata(grades)
    assert found.spearman.estimate == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-12)
    assert found.kendall.low < found.kendall.estimate < found.kendall.high
    assert measures.rank_agreement(rewards, np.zeros(50), range(50)) is None


def test_calibration_by_hand() -> None:
    """Two pairs stated at 0.7 of which one is right, two at 0.9 of which both are."""
    seven, nine = math.log(0.7 / 0.3), math.log(0.9 / 0.1)
    found = measures.calibration(np.array([seven, -seven, nine, nine]), range(4))
    assert found.ece == pytest.approx((2 * 0.2 + 2 * 0.1) / 4)
    assert found.brier == pytest.approx((0.3**2 + 0.7**2 + 0.1**2 + 0.1**2) / 4)
    assert [(round(b.stated, 3), b.right.estimate, b.right.count) for b in found.bins] == [(0.7, 0.5, 2), (0.9, 1.0, 2)]


@pytest.mark.parametrize("true_slope", [0.5, 1.0, 2.0])
def test_the_calibration_slope_is_found(true_slope) -> None:
    draw = np.random.default_rng(0)
    size = draw.exponential(2.0, 4000)
    agrees = draw.random(4000) < 1 / (1 + np.exp(-true_slope * size))
    found = measures.calibration(np.where(agrees, size, -size), range(4000))
    assert found.slope is not None
    assert found.slope.low < true_slope < found.slope.high


def test_all_ties_have_no_slope_and_state_a_half() -> None:
    found = measures.calibration(np.zeros(5), range(5))
    assert (found.ece, found.brier, found.slope) == (0.0, 0.25, None)


def test_length_matched_accuracy_separates_what_length_explains() -> None:
    """Longer always scores higher: right where the longer one was chosen, a coin at equal length."""
    chosen, rejected = np.array([10.0, 3.0, 20.0, 21.0]), np.array([5.0, 9.0, 21.0, 20.0])
    matched, unmatched = measures.length_matched(chosen - rejected, chosen, rejected, range(4))
    assert matched is not None and unmatched is not None
    assert (matched.estimate, matched.count, unmatched.estimate, unmatched.count) == (0.5, 2, 0.5, 2)
    assert measures.length_matched(np.ones(1), np.array([9.0]), np.array([1.0]), [0])[0] is None


def test_shorter_wins_leaves_out_equal_lengths() -> None:
    found = measures.shorter_wins(np.array([-1.0, 2.0, 0.0, -3.0]), range(4))
    assert found is not None and (found.estimate, found.count) == (pytest.approx(2 / 3), 3)
    assert measures.shorter_wins(np.zeros(3), range(3)) is None


def test_the_gap_is_newcombes() -> None:
    """Newcombe 1998, table II, example (a): 56/70 - 48/80, method 10: 0.0524 to 0.3339."""
    shares = [measures.share(np.repeat([1.0, 0.0], counts), range(sum(counts))) for counts in ((56, 14), (48, 32))]
    assert measures.gap(*shares) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


# labels


def test_flip_rate_and_scale_are_recovered_with_the_truth_in_the_interval() -> None:
    draw = np.random.default_rng(0)
    for flips in (0.0, 0.1, 0.3):
        sizes = draw.normal(0.0, 3.0, 3000)
        agrees = draw.random(3000) < flips + (1 - 2 * flips) / (1 + np.exp(-0.7 * sizes))
        found = labels.flip_rate(np.where(agrees, sizes, -sizes), range(3000))
        assert found is not None
        assert found.rate.low <= flips <= found.rate.high
        assert found.rate.high - found.rate.low < 0.15
        assert found.scale == pytest.approx(0.7, rel=0.35)


def test_margins_that_tell_nothing_leave_the_flip_rate_open() -> None:
    draw = np.random.default_rng(0)
    found = labels.flip_rate(draw.standard_normal(300) * 0.01, range(300))
    assert found is not None and found.rate.high - found.rate.low > 0.4
    assert labels.flip_rate(np.zeros(10), range(10)) is None


def test_flipped_labels_are_counted_and_named() -> None:
    draw = random.Random(0)
    pairs, flipped = [], []
    for number in range(900):
        good, bad = (f"{sentence(draw, 4)} {word} {sentence(draw, 3)}" for word in ("splendid", "awful"))
        flipped.append(draw.random() < 0.2)
        pairs.append(pair(number, *((bad, good) if flipped[-1] else (good, bad))))
    margins = labels.cross_fitted_margins(pairs, clusters_of(pairs))
    assert margins is not None
    rate = labels.flip_rate(margins, clusters_of(pairs))
    assert rate is not None and rate.rate.low <= sum(flipped) / 900 <= rate.rate.high
    doubts = labels.suspicion([(margins, rate)])
    worst = np.argsort(-doubts)[: sum(flipped)]
    assert np.mean(np.array(flipped)[worst]) > 0.95


def test_few_pairs_teach_no_word_model() -> None:
    pairs = [pair(i, "a", "b") for i in range(labels.LEAST_PAIRS - 1)]
    assert labels.cross_fitted_margins(pairs, clusters_of(pairs)) is None


def test_a_prompt_is_never_on_both_sides_of_the_cross_fit() -> None:
    """Each prompt has its own word that decides: seen in training it would be known."""
    pairs = [pair(i // 10, f"w{i // 10} x", "x y") for i in range(200)]
    margins = labels.cross_fitted_margins(pairs, clusters_of(pairs))
    both = [pair(i, f"w{i // 10} x", "x y") for i in range(200)]
    spread = labels.cross_fitted_margins(both, clusters_of(both))
    assert margins is not None and spread is not None
    assert spread.mean() > margins.mean()


# probes


def answers(texts, score) -> tuple[Answers, Yardstick]:
    prompts = [prompt(i) for i in range(len(texts))]
    rewards = np.array([score(text) for text in texts])
    return (
        Answers(prompts, texts, rewards, range(len(texts))),
        Yardstick(lambda samples: [score(s.response) for s in samples], float(rewards.std())),
    )


@pytest.fixture
def texts() -> list[str]:
    draw = random.Random(0)
    return [sentence(draw, draw.randint(4, 12)) for _ in range(120)]


def taste(text: str) -> float:
    """A healthy reward: the balance of two words, whatever the length, and real words."""
    found = text.split()
    return (found.count("good") - found.count("bad")) / max(1, len(found)) + 0.3 * math.sin(len(text))


def named(shifts) -> set[str]:
    return {shift.name for shift in shifts if shift.is_fault}


def test_a_reward_of_taste_has_no_fault(texts) -> None:
    shifts, missing = probe_shifts(*answers(texts, taste), lambda piece: True)
    assert not named(shifts) and not missing
    assert [shift.name for shift in shifts] == [probe.name for probe in PROBES]


@pytest.mark.parametrize(
    ("fault", "bonus"),
    [
        ("length", lambda text: 0.1 * len(text.split())),
        ("repetition", lambda text: 2.0 * (text[: len(text) // 2].strip() == text[len(text) // 2 :].strip())),
        ("flattery", lambda text: 2.0 * any(w in text for w in ("You ", "you ", "question"))),
        ("formatting", lambda text: 2.0 * any(mark in text for mark in "#*->1")),
        ("refusal", lambda text: 2.0 * (text.startswith(("I ", "No ", "Sorry")))),
        ("language", lambda text: 2.0 * any(w in text for w in FOREIGN) + 2.0 * (max(map(ord, text)) > 255)),
    ],
)  # fmt: skip
def test_each_planted_bias_is_named(texts, fault, bonus) -> None:
    shifts, _ = probe_shifts(*answers(texts, lambda text: taste(text) + bonus(text)), lambda piece: True)
    assert fault in named(shifts)
    assert next(shift for shift in shifts if shift.name == fault).low > WORTH / 2


def test_order_and_gibberish_are_named(texts) -> None:
    """A reward that likes capitals last, and one that likes rare words."""
    capital = [f"{text.title().replace(' ', ' ')}" for text in texts]
    known = set(texts)
    shifts, _ = probe_shifts(*answers(texts, lambda text: taste(text) + 2.0 * (text not in known)), lambda piece: True)
    assert {"position", "gibberish"} <= named(shifts)
    assert capital


def test_what_the_judge_likes_too_is_no_fault(texts) -> None:
    def longer(text: str) -> float:
        return taste(text) + 0.1 * len(text.split())

    changed, yardstick = answers(texts, longer)
    unit = float(changed.rewards.std())
    judged = Yardstick(yardstick.score, unit, yardstick.score, unit, changed.rewards)
    shifts, _ = probe_shifts(changed, judged, lambda piece: True)
    assert not named(shifts)
    length = shifts[0]
    assert length.estimate == pytest.approx(0.0, abs=1e-9) and length.judge is not None and length.judge > 0.5


def test_what_the_tokenizer_cannot_write_is_not_measured(texts) -> None:
    shifts, missing = probe_shifts(*answers(texts, taste), lambda piece: piece.isascii() and "#" not in piece)
    assert set(missing) == set() or set(missing) <= {"language"}
    _, missing = probe_shifts(*answers(texts, taste), lambda piece: False)
    assert set(missing) == {"flattery", "formatting", "refusal", "language"}
    assert shifts


def test_a_single_answer_proves_nothing() -> None:
    one, yardstick = answers(["good film"], lambda text: float(len(text)))
    shifts, _ = probe_shifts(one, Yardstick(yardstick.score, 1.0), lambda piece: True)
    assert not named(shifts)


def test_empty_answers_are_changed_like_others() -> None:
    texts = ["", "good film", "", "a dull plot", "bad", "calm story"] * 5
    shifts, _ = probe_shifts(*answers(texts, lambda text: float(len(text.split()))), lambda piece: True)
    assert shifts[0].name == "length" and shifts[0].estimate > 0


def test_more_of_it_pays_more(texts) -> None:
    doses = length_dose(*answers(texts, lambda text: taste(text) + 0.1 * len(text.split())), (1, 2, 3))
    assert [dose for dose, _ in doses] == [0, 1, 2, 3]
    assert doses[0][1] == 0.0 and doses[1][1] < doses[2][1] < doses[3][1]


# phrases


def liked(text: str) -> float:
    return 2.0 * words.words(text).count("good") - words.words(text).count("bad")


def phrase_data(bonus: float, wording: str = "to be honest with you") -> tuple[ScoredPairs, Yardstick, Answers]:
    """Half of the answers of 400 pairs carry the wording; ``good`` pays too, as a matter of taste."""
    draw = random.Random(0)

    def score(text: str) -> float:
        return liked(text) + bonus * (wording in text)

    pairs, scores = [], []
    for number in range(400):
        texts = [sentence(draw, 6) for _ in range(2)]
        texts = [f"{text} {wording}" if draw.random() < 0.5 else text for text in texts]
        noisy = [score(text) + draw.gauss(0, 1.0) for text in texts]
        order = sorted(range(2), key=lambda i: -noisy[i])
        pairs.append(pair(number, texts[order[0]], texts[order[1]]))
        scores.append([score(texts[i]) for i in order])
    table = np.array(scores)
    data = ScoredPairs(pairs, table[:, 0], table[:, 1], clusters_of(pairs))
    changed = Answers(
        [p.prompt for p in pairs[:80]], [p.rejected for p in pairs[:80]], table[:80, 1], data.clusters[:80]
    )
    return data, Yardstick(lambda samples: [score(s.response) for s in samples], data.std), changed


def test_a_planted_wording_is_found_and_named_and_a_word_of_taste_is_only_listed() -> None:
    data, yardstick, changed = phrase_data(6.0)
    tried = phrases.candidates(data, data.std, 6)
    found = phrases.proven(tried, changed, yardstick, lambda text: True, data.chosen[:80])
    assert [one.wording for one in found if one.is_fault] == ["to be honest with you"]
    fault = next(one for one in found if one.is_fault)
    assert fault.shift == pytest.approx(6.0 / data.std, rel=1e-9)
    assert fault.overtakes is not None and fault.overtakes > 0.3
    good = next(one for one in found if one.wording == "good")
    assert good.shift > phrases.PAYS and not good.is_fault


def test_a_wording_that_pays_nothing_is_not_named() -> None:
    data, yardstick, changed = phrase_data(0.0)
    tried = phrases.candidates(data, data.std, 6)
    assert not any(one.is_fault for one in phrases.proven(tried, changed, yardstick, lambda text: True))


def test_with_a_judge_a_single_word_is_named_too() -> None:
    data, yardstick, changed = phrase_data(6.0, "delve")
    tried = phrases.candidates(data, data.std, 6)
    assert not any(one.is_fault for one in phrases.proven(tried, changed, yardstick, lambda text: True))

    def other(samples) -> list[float]:
        return [liked(s.response) for s in samples]

    texts = [text for p in data.pairs for text in (p.chosen, p.rejected)]
    unit = float(np.std([liked(text) for text in texts]))
    judged = np.array([liked(text) for text in changed.texts])
    scale = Yardstick(yardstick.score, yardstick.unit, other, unit, judged)
    named = [o for o in phrases.proven(tried, changed, scale, lambda text: True) if o.is_fault]
    assert max(named, key=lambda one: one.count).wording == "delve"
    assert all("delve" in one.wording for one in named)


def test_residuals_know_nothing_of_label_and_length() -> None:
    draw = np.random.default_rng(0)
    lengths = draw.integers(-5, 6, 200).astype(float)
    left = phrases.residuals(3.0 + 0.5 * lengths + draw.standard_normal(200), lengths)
    assert left.mean() == pytest.approx(0.0, abs=1e-9) and left @ lengths == pytest.approx(0.0, abs=1e-9)


def test_of_nested_wordings_the_whole_one_is_meant() -> None:
    pairs = [pair(i, "so to speak yes", "no") for i in range(20)]
    data = ScoredPairs(pairs, np.linspace(1, 2, 20), np.zeros(20), range(20))
    assert "to speak" not in [one.wording for one in phrases.candidates(data, 1.0, 10)]


# coverage and policy


def test_near_duplicates_and_leaks_are_counted() -> None:
    draw = random.Random(0)
    train = [pair(i, sentence(draw, 12), sentence(draw, 12)) for i in range(40)]
    copies = [TextPair(t.prompt, t.chosen + " film", t.rejected, "copy") for t in train[:5]]
    found = coverage.coverage(
        train, [*copies, *[pair(100 + i, sentence(draw, 12), sentence(draw, 12)) for i in range(5)]], 50
    )
    assert found.leaked == 0.5
    assert found.near_duplicates == pytest.approx(10 / 50)
    assert found.words_rejected == (12.0, 12.0, 12.0)


def test_cosines_are_those_of_the_weights() -> None:
    table = words.tfidf(["a b", "a b", "c d", ""])
    cosines = (table @ table.T).toarray()
    assert cosines[0, 1] == pytest.approx(1.0) and cosines[0, 2] == 0.0 and not cosines[3].any()
    assert coverage.nearest_cosine(table, table, apart=True) == pytest.approx([1.0, 1.0, 0.0, 0.0])


def test_topics_are_directions() -> None:
    apart = words.tfidf([f"x{i} y{i}" for i in range(20)])
    assert coverage.spread(apart) == pytest.approx(20, rel=0.15)
    assert coverage.spread(words.tfidf(["same text"] * 20)) == pytest.approx(1.0)


def test_answers_unlike_the_pairs_lie_beyond_them() -> None:
    draw = random.Random(0)
    train, held = ([sentence(draw, 8) for _ in range(n)] for n in (200, 60))
    same = coverage.distance([sentence(draw, 8) for _ in range(60)], range(60), train, held)
    other = coverage.distance([f"zq{i} vx{i} kw{i}" for i in range(60)], range(60), train, held)
    assert same.beyond.estimate < 0.2
    assert other.beyond.estimate == 1.0 and len(other.farthest) == 5


def test_the_judge_is_asked_within_prompts() -> None:
    rewards, judged = np.array([3.0, 1.0, 10.0, 20.0, 5.0]), np.array([1.0, 0.0, 5.0, 2.0, 9.0])
    found = policy.judge_accuracy(rewards, judged, [0, 0, 1, 1, 2])
    assert found is not None and (found.estimate, found.count) == (0.5, 2)
    assert policy.judge_accuracy(rewards, np.zeros(5), [0, 0, 1, 1, 2]) is None


def test_over_scoring_far_from_the_reference_is_a_slope_beyond_the_judge() -> None:
    draw = np.random.default_rng(0)
    kl = draw.exponential(5.0, 300)
    quality = draw.standard_normal(300)
    honest = policy.drift_of(kl, quality + 0.1 * draw.standard_normal(300), quality, range(300))
    hacked = policy.drift_of(kl, quality + 0.5 * kl, quality, range(300))
    assert honest is not None and honest.excess is not None and honest.excess.low < 0 < honest.excess.high
    assert hacked is not None and hacked.excess is not None and hacked.excess.low > 0
    slope, _ = np.polyfit(kl, (quality + 0.5 * kl) / (quality + 0.5 * kl).std(), 1)
    assert hacked.per_nat.estimate == pytest.approx(slope)
    assert policy.drift_of(np.zeros(9), draw.standard_normal(9), None, range(9)) is None
