"""The product computes what the papers' references do, in three rounds of each."""

import numpy as np
import pytest

import fedkd_flwr
from examples.reference import fedkma, kt_pfl, perfed_ckt, persfl

CHOICE = ["teacher_round", "lambda", "temperature"]


@pytest.mark.parametrize("paper", [kt_pfl, perfed_ckt, persfl, fedkma], ids=lambda p: p.__name__)
def test_three_rounds_equal_those_of_the_reference(paper, tmp_path):
    expected = list(paper.run())
    run = fedkd_flwr.run(paper.CONFIG, output_dir=tmp_path / "run")
    by_round = dict(iter(run.clients.sort_values("partition_id").groupby("round")))
    for t, (results, _) in enumerate(expected, start=1):
        np.testing.assert_allclose(by_round[t][["accuracy", "loss"]], results, rtol=2e-4)
    computed = [arrays for _, arrays in expected]
    if paper is persfl:
        np.testing.assert_array_equal(by_round[3][CHOICE], computed[-1])
        assert len(np.unique(computed[-1], axis=0)) > 2
    if name := {kt_pfl: "coefficients", fedkma: "sharing"}.get(paper):
        np.testing.assert_allclose(run.matrices[name], computed, atol=2e-6)
        assert np.ptp(computed[-1]) > 1e-3
