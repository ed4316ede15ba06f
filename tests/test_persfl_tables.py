"""The sweeps of PersFL's tables have the paper's rounds."""

from pathlib import Path

import pytest

from fedkd_flwr.sweeps import read_sweep

SWEEPS = Path(__file__).parent.parent / "conf" / "sweeps"
ROUNDS = {
    "fedavg": (100, 50, 100),
    "persfl": (100, 25, 100),
    "fedper": (100, 50, 100),
    "pfedme": (800, 800, 800),
    "per-fedavg": (800, 800, 800),
}
"""The paper's Table 7, for DS-1 to DS-3."""


@pytest.mark.parametrize("split", ["ds1", "ds2", "ds3"])
def test_sweeps_have_the_papers_rounds(split):
    position = int(split[-1]) - 1
    for sweep in ("persfl-mnist", "persfl-rivals-mnist"):
        for name, configuration in read_sweep(SWEEPS / f"{sweep}-{split}.toml").items():
            method = name.split("-seed")[0].replace("-gd", "")
            if method != "local":  # it is in none of the paper's tables
                assert configuration.run.plan.num_server_rounds == ROUNDS[method][position]
