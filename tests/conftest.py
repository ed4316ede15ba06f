"""Shared fixtures: a run of a second or two."""

import gc
import logging
import os
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FEDKD_CACHE"] = "off"
# With a thread for each core, the BLAS of two workers takes ten times as long for an SVD.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# No test downloads: what asks the hub fails at once, instead of after half a minute of retries.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from xdist.scheduler import LoadFileScheduling

# What takes seconds to import, such as PyTorch, is imported in the fixtures: the process that
# distributes the tests to others needs none of it.

SMALL = {
    "dataset": "digits",
    "partition": "k-classes",
    "classes-per-client": 4,
    "max-samples": 300,
    "held-out-size": 60,
    "public-size": 40,
    "models": "mlp,lenet",
    "num-clients": 4,
    "num-server-rounds": 2,
    "local-epochs": 1,
    "batch-size": 16,
    "learning-rate": 0.05,
    "client-split": "60/20/20",
    "device": "cpu",
    "torch-threads": 1,
    "cohort": "off",
    "persfl.distillation-epochs": 1,
    "persfl.imitation": "0,0.5",
    "persfl.temperatures": "1,5",
    "feddf.distillation-steps": 2,
    "pfeddf.epochs": 1,
    "pfedhn.hidden-size": 8,
    "local-iterations": 0,
}

SHARING = ("test_deployment", "test_ray_cluster", "test_report", "test_two_silos")
"""Files whose slow proofs share a federation, a cluster or a browser."""

LONGEST = (
    "test_docs",
    "test_tuning",
    "test_notebooks",
    "test_engines",
    "test_bundle",
    "test_null_methods",
    "test_benchmarks",
    "test_side_by_side",
    "test_stop",
)
"""Files of the other long proofs. All others are short, and end alike in all processes."""


def pytest_xdist_auto_num_workers(config):
    """Use several processes for a whole suite, and none for a choice of files or tests."""
    if config.args_source != pytest.Config.ArgsSource.TESTPATHS:
        return 0
    # Federations wait for each other's messages half of their time. With more processes, programs
    # that have to start within a time limit of Flower's miss it on a slow machine.
    return 5 if config.option.markexpr == "slow" else 2


def pytest_ignore_collect(collection_path, config):
    """Import no file without slow proofs where only these run."""
    if config.option.markexpr == "slow" and collection_path.match("test_*.py"):
        return "slow" not in collection_path.read_text() or None
    return None


def pytest_collection_modifyitems(config, items):
    """Start the longest slow proofs first, so that no process ends long after the others."""
    if config.option.markexpr == "slow":
        places = {name: place for place, name in enumerate(SHARING + LONGEST)}
        items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def pytest_collection_finish():
    """Spare the garbage collector the imported modules: it takes a tenth of the time with them.

    It also comes less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 30)


class SharedFixturesTogether(LoadFileScheduling):
    """Keep in one process what shares a federation or a cluster; these files come first."""

    def _split_scope(self, nodeid):
        path = nodeid.split("::")[0]
        return path if Path(path).stem in SHARING else nodeid


def pytest_xdist_make_scheduler(config, log):
    """Let slow proofs that share nothing start in any process."""
    return SharedFixturesTogether(config, log) if config.option.markexpr == "slow" else None


@pytest.fixture(autouse=True, scope="session")
def quick_disk():
    """Let no test wait for the disk; which files are synced, and when, is proved with recorders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def ray_workers_of_normal_priority():
    """Ray starts its workers at niceness 15: beside other tests they would hardly run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        yield


@pytest.fixture(autouse=True)
def messages_have_a_sender():
    """Flower's messages read it here, which is set only in a process that has run an app."""
    from strategies.core.flower import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@pytest.fixture(autouse=True)
def nothing_stays_registered():
    """Forget the methods and the objects that a test has given to its process."""
    from fedkd_flwr.custom_objects.importing import HELD
    from fedkd_flwr.methods import REGISTERED

    before = [(names, dict(names)) for names in (REGISTERED, HELD)]
    yield
    for names, kept in before:
        names.clear()
        names.update(kept)


@pytest.fixture(autouse=True)
def one_thread():
    """Sums depend on the number of threads, and so would the tests."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def empty_pool():
    """No models of other tests to borrow, and none left to them."""
    from fedkd_flwr.models import model_pool

    model_pool.clear()
    yield
    model_pool.clear()


@pytest.fixture
def small():
    """A flat run config that differs from the defaults in size alone."""
    return dict(SMALL)


@pytest.fixture
def own(small):
    """A small run of two clients on data of one's own, which a test names."""
    changes = {
        "models": "mlp",
        "partition": "iid",
        "classes-per-client": 5,
        "num-clients": 2,
        "max-samples": 0,
        "num-server-rounds": 1,
        "held-out-size": 40,
        "public-size": 20,
    }
    return {**small, **changes}


@pytest.fixture
def logged(caplog):
    """What Flower has logged, its warnings if no other level is asked for.

    Its logger may propagate or not; listen to it directly, and count nothing twice.
    """
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    yield lambda level=logging.WARNING: [
        record.getMessage() for record in dict.fromkeys(caplog.records) if record.levelno >= level
    ]
    logger.removeHandler(caplog.handler)
