"""Verdicts and harm: each statistic against numbers worked out by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from fedkd_flwr.analysis.harm import (
    estimated_share,
    harm_of,
    mcnemar,
    mcnemar_at_most_differing,
    noise_of_independent,
    noise_of_paired,
    precision_of,
    shown_by_false_discovery_rate,
)
from fedkd_flwr.analysis.significance import Outcome, effect_of, effects_of, holm, smallest_effect


def test_holm_multiplies_by_what_is_left_and_never_falls():
    # 0.01 · 3, 0.02 · 2, and 0.03 · 1, which is raised to what is before it.
    assert holm([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([]) == []


def test_the_paired_t_test_is_that_of_the_text_books():
    effect = effect_of([0.01, 0.02, 0.03, 0.04, 0.05])
    # Mean 0.03, deviation √0.00025, standard error √0.00005: t = 4.243 with four degrees.
    assert effect.gain == pytest.approx(0.03)
    assert effect.deviation == pytest.approx(math.sqrt(0.00025))
    assert effect.p_value == pytest.approx(0.01324, abs=1e-5)
    # t(0.975, 4) = 2.776.
    assert (effect.low, effect.high) == pytest.approx((0.01037, 0.04963), abs=1e-5)
    assert (effect.above, effect.below, effect.seeds) == (5, 0, 5)


def test_two_seeds_show_nothing_however_clear():
    effects = effects_of({"clear": [0.5, 0.5], "tested": [0.09, 0.10, 0.11]})
    assert effects["clear"].outcome is Outcome.NOT_SHOWN
    assert math.isnan(effects["clear"].smallest_visible)
    assert effects["tested"].family == 1


def test_equal_gains_are_decided_by_the_sign_test():
    assert effects_of({"same": [0.0, 0.0, 1e-17]})["same"].p_value == 1
    few = effects_of({"few": [0.1] * 3})["few"]
    assert few.p_value == pytest.approx(2 * 0.5**3)
    assert few.outcome is Outcome.NOT_SHOWN
    assert math.isnan(few.low) and math.isnan(few.high) and math.isnan(few.smallest_visible)
    assert effects_of({"six": [0.1] * 6})["six"].outcome is Outcome.BETTER
    assert effects_of({"six": [-0.1] * 6})["six"].outcome is Outcome.WORSE


@pytest.mark.parametrize(("seeds", "level"), [(3, 0.05 / 31), (5, 0.05), (10, 0.05 / 31)])
def test_the_smallest_detectable_gain_has_80_percent_power(seeds, level):
    effect = smallest_effect(seeds, level)
    draws = np.random.default_rng(0).normal(effect, 1, (20_000, seeds))
    found = stats.ttest_1samp(draws, 0, axis=1, alternative="two-sided").pvalue <= level
    assert found.mean() == pytest.approx(0.8, abs=0.015)


def test_mcnemar_counts_the_images_on_which_two_models_differ():
    # Of five images all are lost: 1/32. Of four, three are lost: (4 + 1) / 16.
    assert mcnemar(np.array([5.0, 3.0]), np.array([0.0, 1.0])) == pytest.approx([1 / 32, 5 / 16])
    two_sided = statsmodels_mcnemar([[0, 15], [4, 0]], exact=True).pvalue
    assert 2 * mcnemar(np.array([15.0]), np.array([4.0]))[0] == pytest.approx(two_sided)


def test_counts_alone_give_the_largest_p_value_of_all_answers_that_fit_them():
    right, before, images = 70, 80, 100
    bound = mcnemar_at_most_differing(*(np.array([float(n)]) for n in (right, before, images)))
    possible = [
        mcnemar(np.array([float(won + 10)]), np.array([float(won)]))[0] for won in range(21)
    ]
    # At most 30 images are wrong now, so at most 30 were lost and 20 won.
    assert bound[0] == pytest.approx(max(possible)) == pytest.approx(possible[-1])


def test_false_discoveries_are_controlled_step_by_step():
    # Thresholds 0.0125, 0.025, 0.0375, 0.05: the third is below its own, the fourth is not.
    p_values = np.array([0.06, 0.01, 0.03, 0.037])
    assert shown_by_false_discovery_rate(p_values).tolist() == [False, True, True, True]


def share_of_independent(right, before, images):
    return estimated_share((right - before) / images, noise_of_independent(right, before, images))


def test_the_estimate_of_harm_takes_the_noise_out():
    generator = np.random.default_rng(0)
    images = np.full(400, 180.0)
    alike = [generator.binomial(180, 0.8, 400).astype(float) for _ in range(2)]
    assert (alike[0] < alike[1]).mean() > 0.4
    assert share_of_independent(*alike, images) < 0.1
    # True gains are normal with mean 2 and deviation 4 points: P(gain ≤ -1) = Φ(-0.75) = 0.227.
    gains = generator.normal(0.02, 0.04, 400)
    right = generator.binomial(180, 0.75 + gains).astype(float)
    before = generator.binomial(180, 0.75, 400).astype(float)
    assert share_of_independent(right, before, images) == pytest.approx(0.227, abs=0.06)


def test_the_noise_of_a_pair_is_that_of_a_mean_of_minus_one_zero_and_one():
    # Two images of ten are lost and one is won: shares of 2.5/11 and 1.5/11 with half an answer
    # more on either side.
    noise = noise_of_paired(np.array([2.0]), np.array([1.0]), np.array([10.0]))
    assert noise[0] == pytest.approx((4 / 11 - (1 / 11) ** 2) / 10)
    draws = np.random.default_rng(0).choice([-1, 0, 1], p=[0.2, 0.7, 0.1], size=(50_000, 100))
    large = noise_of_paired(np.array([20.0]), np.array([10.0]), np.array([100.0]))
    assert large[0] == pytest.approx(draws.mean(axis=1).var(), rel=0.05)


def test_without_a_variance_between_clients_the_estimate_keeps_the_error_of_the_mean():
    gains, noise = np.full(20, -0.01), np.full(20, 0.0004)
    assert estimated_share(gains, noise) == pytest.approx(0.5)
    # A standard error of √(0.0004 / 20): Student's t with 18 degrees of freedom at ±√5.
    assert estimated_share(gains + 0.01, noise) == pytest.approx(stats.t.cdf(-(5**0.5), 18))
    assert estimated_share(gains - 0.01, noise) == pytest.approx(stats.t.cdf(5**0.5, 18))
    assert math.isnan(estimated_share(gains[:2], noise[:2]))


def clients_of(accuracies, local, images):
    frame = pd.DataFrame({"accuracy": accuracies, "local_accuracy": local})
    frame["gain"] = frame["accuracy"] - frame["local_accuracy"]
    counted = frame.assign(seed=0, test_images=images, local_test_images=images)
    return counted.assign(lost=math.nan, won=math.nan)


def test_a_large_loss_is_significant_and_inside_its_interval():
    harm = harm_of(clients_of([0.5, 0.8, 0.8, 0.8], [0.9, 0.8, 0.78, 0.79], 200))
    assert harm["harmed_shown"] == 1 / 4
    assert 0.2 < harm["worst_loss_low"] < 0.4 < harm["worst_loss_high"] < 0.6


def test_answers_show_a_loss_that_counts_alone_cannot_show():
    # 12 answers are lost and none is won: p = 2⁻¹². Counts of 148 and 160 of 200 allow 52 lost
    # and 40 won, where p is 0.13.
    clients = clients_of([0.74, 0.8, 0.8], [0.8, 0.8, 0.8], 200)
    assert harm_of(clients)["harmed_shown"] == 0
    assert harm_of(clients.assign(lost=[12, 4, 0], won=[0, 4, 0]))["harmed_shown"] == pytest.approx(
        1 / 3
    )
    some = clients.assign(lost=[math.nan, 4, 0], won=[math.nan, 4, 0])
    assert harm_of(some)["harmed_shown"] == 0


def test_harm_needs_counts_of_the_same_size():
    assert math.isnan(harm_of(clients_of([0.5], [0.9], math.nan))["harmed_shown"])
    other = clients_of([0.5], [0.9], 200).assign(local_test_images=180)
    assert math.isnan(harm_of(other)["harmed_shown"])


def test_the_precision_of_a_client_is_wilsons_interval():
    images, half_width = precision_of(clients_of([0.75] * 3, [0.75] * 3, 180))
    # z √(p q / n + z² / 4 n²) / (1 + z² / n) with z = 1.96.
    assert (images, half_width) == (180, pytest.approx(0.0628, abs=1e-4))
