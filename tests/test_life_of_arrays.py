"""The files through which a soft prediction and a memory pass are those of the architecture page.

Runs take place under a profiler. A file counts if a function in it has the array itself in a
variable, or returns it. What only holds the message or the reply that contains it does not count.
"""

import re
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array

import fedkd_flwr
from fedkd_flwr.memory import Memory
from strategies.core.probabilities import NumberFormat

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
MEASURE = {"strategies/core/exchange.py"}
"""Files that count an array's numbers and bytes, and hand it to nobody."""

READS_NUMBERS = {"fedkd_flwr/clients/local_training.py"}
"""Files that get the memory for the numbers that DP-SGD keeps in it."""

LIKE_GROUPS = {"fedkd_flwr/models/model_pool.py", "fedkd_flwr/clients/evaluating.py"}
"""Files with initial weights, or with logits by split. They look like a group but are not kept."""

NUM_SAMPLES, NUM_CLASSES = 37, 10


def listed_files(heading):
    """Return the files that a numbered list of the architecture page names."""
    section = PAGE.read_text().partition(f"## {heading}")[2].partition("\n## ")[0]
    items = re.findall(r"^ *\d+\. `([\w/.]+)`", section, re.MULTILINE)
    assert len(items) == len(set(items))
    return set(items)


@contextmanager
def files_where(holds):
    """Profile this thread; fill a set with the files of frames that hold something."""
    files, ours = set(), tuple(f"{ROOT}/{package}/" for package in ("strategies", "fedkd_flwr"))

    def profile(frame, event, result):
        file = frame.f_code.co_filename
        if event == "return" and file.startswith(ours) and holds(frame, result):
            files.add(file.removeprefix(f"{ROOT}/"))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield files
    finally:
        sys.setprofile(before)


def is_prediction(value):
    """Return whether a value has the shape of predictions or teachers, (..., P, K), P > 0."""
    if not isinstance(value, np.ndarray | torch.Tensor | Array):
        return False
    shape = tuple(value.shape)
    return shape[-2:] == (NUM_SAMPLES, NUM_CLASSES) and 0 not in shape


def holds_prediction(frame, result):
    return any(map(is_prediction, [*frame.f_locals.values(), result]))


@pytest.fixture
def flat(small):
    changes = {"num-clients": 2, "models": "mlp", "max-samples": 200, "num-server-rounds": 2}
    return {**small, **changes, "strategy": "kt-pfl", "public-size": NUM_SAMPLES}


def test_a_prediction_passes_through_the_files_of_the_page(flat, tmp_path):
    with files_where(holds_prediction) as seen:
        fedkd_flwr.run(flat, output_dir=tmp_path / "run")
    listed = listed_files("The life of a soft prediction")
    assert seen - MEASURE == listed
    assert len(listed) <= 11


@pytest.mark.parametrize("owner, name", [(Array, "numpy"), (NumberFormat, "decode")])
def test_it_is_decoded_once_on_each_side(flat, tmp_path, monkeypatch, owner, name):
    decodings, plain = [], getattr(owner, name)

    def decode(*args):
        values = plain(*args)
        if is_prediction(values):
            decodings.append(values.shape)
        return values

    monkeypatch.setattr(owner, name, decode)
    fedkd_flwr.run(flat, output_dir=tmp_path / "run")
    # Two clients reply in each of two rounds, and receive a teacher in the second and after it.
    assert len(decodings) == 2 * 2 + 2 * 2


def is_memory(value):
    """Return whether a value is a memory or one of its groups of tensors."""
    if isinstance(value, dict) and value:
        return all(isinstance(tensor, torch.Tensor) for tensor in value.values())
    return isinstance(value, Memory)


def holds_memory(frame, result):
    """Return whether a frame has a memory in a variable, or takes it from another object."""
    values = [*frame.f_locals.values(), result]
    if "memory" in frame.f_code.co_names:
        values += [getattr(value, "__dict__", {}).get("memory") for value in values]
    return any(map(is_memory, values))


def test_a_memory_passes_through_the_files_of_the_page(flat, tmp_path):
    """With `local`; a method that stores something of its own adds its client's file."""
    flat |= {"strategy": "local", "momentum": 0.9, "num-server-rounds": 1}
    with files_where(holds_memory) as seen:
        run = fedkd_flwr.run(flat, output_dir=tmp_path / "run")
        fedkd_flwr.resume(run.path, num_server_rounds=2)
    listed = listed_files("What survives a round")
    assert seen - READS_NUMBERS - LIKE_GROUPS == listed
    assert len(listed) <= 5
