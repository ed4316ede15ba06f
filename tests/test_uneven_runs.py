"""Runs that allow no verdict, or none for some clients: each time one sentence says why."""

import math

import pytest
from test_comparison import write_run

from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.settings import IncomparableRunsError


def sentence(folder, beginning):
    """Return the only verdict or note of a comparison that begins so."""
    compared = compare(folder)
    (found,) = [s for s in [*compared.verdicts, *compared.notes] if s.startswith(beginning)]
    return found


def write(folder, **methods):
    """Write runs of methods: their accuracies of two clients, by seed."""
    for method, by_seed in methods.items():
        for seed, accuracies in by_seed.items():
            write_run(folder, method.replace("_", "-"), seed, accuracies)
    return folder


def test_without_a_common_seed_the_note_says_which_to_run(tmp_path):
    write(tmp_path, local={0: [0.5, 0.6]}, kt_pfl={1: [0.6, 0.7], 2: [0.6, 0.8]})
    assert sentence(tmp_path, "There is no run of local") == (
        "There is no run of local with a seed of the others, so there are no verdicts; "
        "run it with seed 1, 2."
    )
    assert compare(tmp_path).verdicts == []


def test_without_local_the_note_says_what_to_run(tmp_path):
    write(tmp_path, fedavg={0: [0.5, 0.6]}, kt_pfl={0: [0.6, 0.7]})
    assert sentence(tmp_path, "There is no run of local") == (
        "There is no run of local, so there are no verdicts; run it with seed 0."
    )


def test_one_seed_gives_no_verdict(tmp_path):
    write(tmp_path, local={0: [0.5, 0.6]}, kt_pfl={0: [0.9, 0.9]})
    found = sentence(tmp_path, "kt-pfl is")
    assert found.startswith("kt-pfl is not shown to differ from local: +35.0 points.")
    assert found.endswith("A verdict needs at least 3 seeds.")


def test_unequal_clients_are_not_compared(tmp_path):
    write(tmp_path, local={0: [0.5, 0.6]}, kt_pfl={0: [0.6, 0.7, 0.8]})
    with pytest.raises(IncomparableRunsError, match=r"different data .* num-clients \(2, 3\)"):
        compare(tmp_path)


def test_accuracies_of_nan_are_left_out_and_named(tmp_path):
    seeds = range(3)
    write(
        tmp_path,
        local={seed: [0.5, math.nan] for seed in seeds},
        kt_pfl={seed: [0.6 + seed / 100, 0.9] for seed in seeds},
    )
    assert "on 1 of 2 clients" in sentence(tmp_path, "kt-pfl seed 0 is compared")
    assert "1 of 2 clients" in sentence(tmp_path, "local seed 0 has results of")
    # Of the client with an accuracy in both: 10, 11 and 12 points.
    assert sentence(tmp_path, "kt-pfl is").startswith("kt-pfl is better than local: +11.0 points")
