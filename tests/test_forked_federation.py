"""A real federation over TLS whose client apps are forked, and the same without forking."""

import federation as fed
import pandas as pd
import pytest
from federation import GuardedFederation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("sys.platform != 'linux'", reason="processes are forked on Linux alone"),
]

CONFIG = {**fed.SMALL, "num-clients": 3}
VARYING = ("seconds", "seconds_train", "seconds_server", "seconds_evaluate", "node_id")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    with GuardedFederation(tmp_path_factory.mktemp("guarded"), nodes=3) as federation:
        federation.approve()
        federation.start_all()
        yield federation


def without_times(table):
    """Return a table without what differs between two runs by nature, in one order of rows."""
    order = [name for name in ("round", "partition_id") if name in table]
    return table.drop(columns=[n for n in VARYING if n in table]).sort_values(
        order, ignore_index=True
    )


@pytest.mark.parametrize("strategy", ["kt-pfl", "perfed-ckt"])
def test_forked_processes_compute_the_same_numbers(guarded, strategy):
    runs = {}
    for name, options in {"forked": (), "fresh": ("--fresh-processes",)}.items():
        guarded.stop(*guarded.apps.values())
        for n in guarded.node_configs:
            guarded.start_app(n, *options)
        directory = guarded.folder / f"{strategy}-{name}"
        config = {**CONFIG, "strategy": strategy, "output-dir": str(directory)}
        runs[name] = guarded.finished_run(guarded.start_run(config), directory, 600)
    assert list(runs["forked"].rounds["replies"]) == [3, 3]
    for table in ("rounds", "clients"):
        forked, fresh = (without_times(getattr(run, table)) for run in runs.values())
        pd.testing.assert_frame_equal(forked, fresh, check_exact=True)
