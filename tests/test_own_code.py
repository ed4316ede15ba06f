"""Own code is part of a run's identity: recorded, and never mixed in silence."""

import importlib
import json
import subprocess
import sys

import pytest
from test_sweeps import TINY
from torch import nn

import fedkd_flwr
from fedkd_flwr.custom_objects.digests import code_digest
from fedkd_flwr.custom_objects.importing import CustomObjectError, find_custom
from fedkd_flwr.runs import RunDirectoryError, load_run, provenance
from fedkd_flwr.sweeps import run_sweep

METHOD = """
import fedkd_flwr
from fedkd_flwr.clients.base import PersonalClient
from own_losses import loss_of
from strategies.local import Local

class Mine(Local):
    record = Local.record.derived()

class MineClient(PersonalClient):
    def train_locally(self, server_round, *args, **kwargs):
        return super().train_locally(server_round, loss_of)

method = fedkd_flwr.register("mine", Mine, MineClient)
"""
LOSSES = """
from fedkd_flwr.training.losses import cross_entropy
def loss_of(model, *batch):
    '''What clients minimize.'''
    return {factor} * cross_entropy(model, *batch)
"""


def write_losses(folder, factor):
    """Write the module with another loss, as if a new process had read it."""
    (folder / "own_losses.py").write_text(LOSSES.replace("{factor}", factor))
    importlib.invalidate_caches()
    for name in ("own_losses", "own_method"):
        sys.modules.pop(name, None)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "own_method.py").write_text(METHOD)
    write_losses(tmp_path, "1.0")
    yield tmp_path
    for name in ("own_losses", "own_method"):
        sys.modules.pop(name, None)


@pytest.fixture
def sweep(folder):
    def run(seeds, **settings):
        path, told = folder / "sweep.toml", []
        path.write_text(f"{TINY}[grid]\nseed = {seeds}\n")
        settings = {"strategy": "own_method:method", **settings}
        run_sweep(path, folder / "runs", settings=settings, on_run=told.append)
        return [progress.state for progress in told]

    return run


def test_a_sweep_reruns_what_other_code_has_finished(folder, sweep, logged):
    assert sweep([0]) == ["started", "finished"]
    assert sweep([0]) == ["skipped"]
    write_losses(folder, "0.5")
    assert sweep([0], **{"accept-changes": True}) == ["skipped"]
    assert sweep([0]) == ["skipped"]  # it counts as made by this code
    notes = fedkd_flwr.compare(folder / "runs").notes
    assert "Runs whose own code changed with accept-changes: 1." in notes
    write_losses(folder, "0.25")
    assert sweep([0]) == ["started", "finished"]
    assert "with other code of own_method:method, module own_losses: rerun; --acc" in logged()[-1]


def test_a_comparison_does_not_average_two_versions(folder, sweep):
    sweep([0])
    write_losses(folder, "0.5")
    sweep([1])
    compared = fedkd_flwr.compare(folder / "runs")
    assert list(compared.results["seed"]) == [1]
    assert any("left out, made with other own code" in note for note in compared.limits)
    both = fedkd_flwr.compare(folder / "runs", by_code=True)
    assert sorted(both.results["seed"]) == [0, 1]
    assert len(both.table) == 2 and all("(code=" in label for label in both.table.index)
    assert any(note.startswith("The code of module own_losses is not") for note in both.limits)


def test_a_run_is_continued_with_its_own_code(folder, small):
    small |= {"strategy": "own_method:method", "models": "mlp", "num-server-rounds": 1}
    run = fedkd_flwr.run(small, output_dir=folder / "run")
    write_losses(folder, "0.5")
    again = {"num_server_rounds": 2, "allow_code": "own_method"}
    with pytest.raises(
        RunDirectoryError, match=r"of own_method:method, module own_losses\. .*--acc"
    ):
        fedkd_flwr.resume(run.path, **again)
    resumed = fedkd_flwr.resume(run.path, accept_changes=True, **again)
    assert resumed.description["continued"][0]["code"] != run.description["code"]
    assert fedkd_flwr.resume(run.path, **{**again, "num_server_rounds": 3}).finished


def test_models_of_other_code_are_told_when_they_are_used(folder, small, logged, tmp_path):
    small |= {"strategy": "own_method:method", "models": "mlp", "num-server-rounds": 1}
    run = fedkd_flwr.run(small, output_dir=folder / "run")
    assert run.model(0)
    assert not any("has changed" in line for line in logged())
    write_losses(folder, "0.5")
    named = {"strategy": "own_method:method"}
    fedkd_flwr.run(named, start_from=run, output_dir=folder / "next")
    assert load_run(run.path, "own_method").model(0)
    parts = ["own_method:method", "module own_losses"]
    assert [line for line in logged() if "has changed" in line] == [
        *(f"The code of {p} has changed since {run.path}: what that run has learned may not fit "
          "it." for p in parts),
        *(f"The code of {p} has changed since run: its models may predict otherwise than then."
          for p in parts),
    ]  # fmt: skip


def test_another_version_of_python_gives_a_note(folder, small, logged):
    small |= {"strategy": "own_method:method", "models": "mlp", "num-server-rounds": 1}
    run = fedkd_flwr.run(small, output_dir=folder / "run")
    changed = {**run.description, "versions": {**run.description["versions"], "python": "3.1.4"}}
    changed["code"] = {"own_method:method": "of other bytecode"}
    (run.path / "config.json").write_text(json.dumps(changed))
    fedkd_flwr.resume(run.path, num_server_rounds=2, allow_code="own_method")
    here = provenance.python_here()
    assert f"The run was made with Python 3.1, and this is {here}: numbers may differ" in logged()
    assert f"Python (3.1, {here})" in "".join(fedkd_flwr.compare(load_run(run.path)).notes)


def test_what_a_method_leads_to_is_its_code(folder):
    def digest():
        return code_digest(find_custom("own_method:method"))

    before = digest()
    losses = folder / "own_losses.py"
    for text, is_same in (
        (LOSSES.replace("{factor}", "1.0") + "# a comment\n", True),
        (LOSSES.replace("{factor}", "1.0").replace("What clients", "What all clients"), True),
        (LOSSES.replace("{factor}", "1.0") + "WEIGHTS = [1, 2]\n", False),
        (LOSSES.replace("{factor}", "2.0"), False),
    ):
        write_losses(folder, "")
        losses.write_text(text)
        assert (digest() == before) == is_same, text


def test_what_a_run_fills_is_no_code(folder):
    (folder / "own_losses.py").write_text(
        "CACHE = {}\nclass Log:\n    rows = []\n    def add(self, row):\n"
        "        CACHE[row] = self.rows.append(row)\n"
    )
    importlib.invalidate_caches()
    from own_losses import Log

    before = code_digest(Log)
    Log().add(1)
    assert code_digest(Log) == before
    Log.add = lambda self, row: None
    assert code_digest(Log) != before


def test_a_class_of_a_notebook_is_known_by_its_code(monkeypatch):
    import __main__

    def defined(factor, base=nn.Linear):
        class Net(base):
            def forward(self, samples):
                return factor * super().forward(samples)

        Net.__module__, Net.__qualname__ = "__main__", "Net"
        monkeypatch.setattr(__main__, "Net", Net, raising=False)
        return Net

    digests = {code_digest(defined(1)), code_digest(defined(2)), code_digest(defined(1, nn.Module))}
    assert len(digests) == 3 and code_digest(defined(1)) in digests
    other = defined(1, defined(2))
    assert code_digest(other) != code_digest(defined(1, defined(3)))


@pytest.mark.parametrize("hides", ["strategies/__init__.py", "strategies.py", "strategies/mine.py"])
def test_a_folder_that_hides_the_package_strategies_is_named(hides, tmp_path):
    file = tmp_path / hides
    file.parent.mkdir(exist_ok=True)
    file.touch()
    run = [sys.executable, "-c", "import fedkd_flwr.config"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    if hides == "strategies/mine.py":  # a folder without __init__.py comes after a package
        assert done.returncode == 0
        return
    place = str(file).removesuffix("/__init__.py")
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {place} hides the package strategies of fedkd-flwr: rename it, or start "
        "Python in another folder."
    )


def test_an_own_module_under_the_name_of_a_package_here_is_named():
    with pytest.raises(CustomObjectError, match="strategies is a package of fedkd-flwr, so rename"):
        find_custom("strategies.mine:method")


@pytest.mark.parametrize("name", ["fedkd_flwr.models.small:lenet", "strategies.local:Local"])
def test_code_of_the_project_is_no_code_of_a_user(name, monkeypatch):
    found = find_custom(name)
    before = code_digest(found)
    monkeypatch.setattr(found, "__doc__", "changed")
    monkeypatch.setattr(found, "further", 1, raising=False)
    assert code_digest(found) == before
