"""Some runs of a sweep: `--only` counts what a method reads, and no default of another."""

import pytest

from fedkd_flwr.config import ConfigError
from fedkd_flwr.sweeps import read_sweep
from fedkd_flwr.sweeps.grid import run_labels

SWEEP = """
[base]
models = "mlp"
device = "cpu"

[grid]
seed = [0]
combinations = [
    { strategy = "local" },
    { strategy = "fedavg" },
    { strategy = "kt-pfl", kt-pfl.temperature = 1.0 },
    { strategy = "kt-pfl", kt-pfl.temperature = 3.0 },
]
"""


@pytest.fixture
def part_of(tmp_path):
    """Return a function from some settings to the runs that have them."""
    (tmp_path / "sweep.toml").write_text(SWEEP)

    def runs(only):
        return list(run_labels(read_sweep(tmp_path / "sweep.toml", only=only)).values())

    return runs


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_a_method_s_key_is_a_value_of_its_runs_alone(part_of, temperature):
    assert part_of({"kt-pfl.temperature": temperature}) == ["kt-pfl"]


def test_two_values_are_those_of_two_runs(part_of):
    both = part_of({"kt-pfl.temperature": [1.0, 3.0]})
    assert both == ["kt-pfl kt-pfl.temperature=1.0", "kt-pfl kt-pfl.temperature=3.0"]


def test_common_keys_are_values_of_all_runs(part_of):
    everything = part_of(None)
    assert len(everything) == 4
    assert part_of({"learning-rate": 0.01}) == everything
    assert part_of({"device": "cpu"}) == everything  # where a run takes place


def test_a_key_that_no_run_reads_is_refused_and_values_are_those_of_its_readers(part_of):
    with pytest.raises(ConfigError, match=r"have no setting persfl\.teacher"):
        part_of({"persfl.teacher": "best"})
    with pytest.raises(ConfigError, match=r"its runs have kt-pfl\.temperature = 1\.0 or 3\.0\."):
        part_of({"kt-pfl.temperature": 2.0})
