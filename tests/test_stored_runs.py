"""Two rounds of every method on digits, against numbers written down once; see `stored_runs`."""

import json

import pytest
import torch

from tests.stored_runs import STORED, kernels, numbers_of

CONTENT = json.loads(STORED.read_text())
SAME_KERNELS = CONTENT["torch"] == torch.__version__ and CONTENT["kernels"] == kernels()


@pytest.mark.parametrize("strategy", CONTENT["runs"])
def test_numbers_are_those_written_down(strategy, tmp_path):
    found, stored = numbers_of(strategy, tmp_path), CONTENT["runs"][strategy]
    if SAME_KERNELS:
        assert found == stored
        return
    # Other kernels round otherwise; a mistake moves more than that.
    for kind in ("rounds", "clients", "matrices"):
        assert found[kind].keys() == stored[kind].keys()
        for name, values in stored[kind].items():
            assert found[kind][name] == pytest.approx(values, rel=1e-2, abs=1e-2, nan_ok=True)
