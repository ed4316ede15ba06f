"""DS-FL (Itahara et al. 2021): the sharpened mean, FedMD where nothing is sharpened."""

import numpy as np
import pytest
from helpers import Witness, random_simplex, reply_with, run_with, state_of

import fedkd_flwr
from fedkd_flwr.config import ConfigError, read_config
from strategies.core.plan import RunPlan
from strategies.core.probabilities import softmax
from strategies.ds_fl import DSFL, DSFLSettings


def entropies(rows):
    return -(rows * np.log(rows)).sum(axis=-1)


# ---- The update ----------------------------------------------------------------------


def test_the_teacher_of_two_clients_by_hand():
    first, second = [[0.9, 0.1, 0.0]], [[0.5, 0.2, 0.3]]
    plan = RunPlan(num_clients=2, num_classes=3, public_size=1)
    strategy = DSFL(plan, DSFLSettings(era_temperature=0.1))
    strategy.state = strategy.begin({})
    assert strategy.train_payload(1, 0) == {}
    replies = {
        n: reply_with({"predictions": np.array(rows, dtype=np.float32)})
        for n, rows in enumerate((first, second))
    }
    strategy.state = strategy.aggregate(1, replies)
    exponentials = np.exp(np.array([0.7, 0.15, 0.15]) / 0.1)
    expected = exponentials / exponentials.sum()
    for n in (0, 1):
        np.testing.assert_allclose(strategy.train_payload(2, n)["teacher"], [expected], rtol=1e-5)


def test_sharpening_lowers_the_entropy_and_keeps_the_order():
    mean = random_simplex(np.random.default_rng(0), 50, 10)
    sharp, sharper = softmax(mean, 0.1), softmax(mean, 0.02)
    np.testing.assert_allclose(sharp.sum(axis=1), 1)
    assert (entropies(sharper + 1e-12) < entropies(sharp)).all()
    np.testing.assert_array_equal(np.argsort(sharp), np.argsort(mean))
    assert np.isfinite(softmax(mean, 1e-6)).all()


def test_without_sharpening_it_is_fedmd(small, tmp_path):
    """FedMD reads its settings from KT-pFL's table."""
    small |= {"num-server-rounds": 3, "cohort": "off"}
    changes = {"ds-fl.aggregation": "simple", "ds-fl.temperature": 2.0}
    simple, fedmd = Witness(), Witness()
    ours, _ = run_with(simple, small, tmp_path / "simple", strategy="ds-fl", **changes)
    theirs, _ = run_with(
        fedmd, small, tmp_path / "fedmd", strategy="fedmd", **{"kt-pfl.temperature": 2.0}
    )
    for key, arrays in fedmd.down.items():
        assert simple.down[key].keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_allclose(simple.down[key][name], array, atol=1e-5)
    np.testing.assert_allclose(ours.rounds["loss_mean"], theirs.rounds["loss_mean"], rtol=1e-4)
    sharpened = fedkd_flwr.run(
        {**small, **changes, "ds-fl.aggregation": "entropy-reduction", "strategy": "ds-fl"},
        output_dir=tmp_path / "sharpened",
    )
    losses = [list(run.rounds["loss_mean"]) for run in (sharpened, ours)]
    # The first teacher is distilled in the second round.
    assert losses[0][0] == losses[1][0]
    assert losses[0][2] != losses[1][2]


# ---- State ---------------------------------------------------------------------------


def test_one_teacher_is_kept_and_broadcast(small, tmp_path):
    small |= {"strategy": "ds-fl"}
    whole = fedkd_flwr.run(small, output_dir=tmp_path / "whole")
    assert list(whole.rounds["numbers_down"]) == [0, 4 * 40 * 10]
    assert list(whole.rounds["numbers_down_broadcast"]) == [0, 40 * 10]
    fedkd_flwr.run(small, output_dir=tmp_path / "run", num_server_rounds=1)
    after_one = state_of(tmp_path / "run")
    assert set(after_one) == {"releases", "teachers"}
    fedkd_flwr.resume(tmp_path / "run", num_server_rounds=2)
    after_two, at_once = (state_of(tmp_path / name) for name in ("run", "whole"))
    np.testing.assert_array_equal(after_two["teachers"], at_once["teachers"])
    assert not np.array_equal(after_one["teachers"], after_two["teachers"])


# ---- Settings ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ds-fl.era-temperature": 0}, "ds-fl.era-temperature = 0: it should be greater than 0"),
        ({"ds-fl.aggregation": "sharp"}, "ds-fl.aggregation = 'sharp'.*'entropy-reduction'"),
        ({"public-dataset": "none"}, "ds-fl exchanges predictions on public samples"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(changes, sentence, small):
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_config({**small, "strategy": "ds-fl", **changes})
    assert "\n" not in str(caught.value)
