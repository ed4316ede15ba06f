"""Verdicts and harm: each statistic against numbers worked out by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from fedkd_flwr.analysis.harm import (
    harmed,
    mcnemar,
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


def test_false_discoveries_are_controlled_step_by_step():
    # Thresholds 0.0125, 0.025, 0.0375, 0.05: the third is below its own, the fourth is not.
    p_values = np.array([0.06, 0.01, 0.03, 0.037])
    assert shown_by_false_discovery_rate(p_values).tolist() == [False, True, True, True]


def test_a_loss_is_shown_by_the_answers_of_both_models():
    # 12 answers are lost and none is won: p = 2⁻¹².
    clients = pd.DataFrame({"lost": [12, 4, 0, math.nan], "won": [0, 4, 0, math.nan]})
    assert harmed(clients).tolist() == [True, False, False]
    assert math.isnan(harmed(clients[3:]).mean())


def test_the_precision_of_a_client_is_wilsons_interval():
    clients = pd.DataFrame({"accuracy": [0.75] * 3, "test_images": 180})
    images, half_width = precision_of(clients)
    # z √(p q / n + z² / 4 n²) / (1 + z² / n) with z = 1.96.
    assert (images, half_width) == (180, pytest.approx(0.0628, abs=1e-4))
