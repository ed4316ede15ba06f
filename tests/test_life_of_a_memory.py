"""The files through which a client's memory passes are those of the architecture page, at most 5.

A run is interrupted after a round and resumed, under a profiler. A file counts if a function in it
has the memory or a group of its tensors in a variable, or takes the memory from another object.
"""

import re
import sys
from pathlib import Path

import pytest
import torch

import fedkd_flwr
from fedkd_flwr.memory import Memory

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
READS_NUMBERS = {"fedkd_flwr/clients/local_training.py"}
"""Files that get the memory for the numbers that DP-SGD keeps in it."""

LIKE_GROUPS = {"fedkd_flwr/models/model_pool.py", "fedkd_flwr/clients/evaluating.py"}
"""Files with initial weights, or with logits by split. They look like a group but are not kept."""


def is_memory(value):
    """Return whether a value is a memory or one of its groups of tensors."""
    if isinstance(value, dict) and value:
        return all(isinstance(tensor, torch.Tensor) for tensor in value.values())
    return isinstance(value, Memory)


def holds_memory(frame, result):
    values = [*frame.f_locals.values(), result]
    if any(map(is_memory, values)):
        return True
    takes_one = "memory" in frame.f_code.co_names
    return takes_one and any(
        is_memory(getattr(value, "__dict__", {}).get("memory")) for value in values
    )


@pytest.fixture
def seen():
    """Profile this thread, and return the files that hold memories."""
    files, ours = set(), tuple(f"{ROOT}/{package}/" for package in ("strategies", "fedkd_flwr"))

    def profile(frame, event, result):
        file = frame.f_code.co_filename
        if event == "return" and file.startswith(ours) and holds_memory(frame, result):
            files.add(file.removeprefix(f"{ROOT}/"))

    before = sys.getprofile()
    sys.setprofile(profile)
    yield files
    sys.setprofile(before)


def test_a_memory_passes_through_the_files_of_the_page(small, tmp_path, seen):
    """With `local`; a method that stores something of its own adds its client's file."""
    changes = {"strategy": "local", "num-clients": 2, "models": "mlp", "momentum": 0.9}
    run = fedkd_flwr.run({**small, **changes, "num-server-rounds": 1}, output_dir=tmp_path / "run")
    fedkd_flwr.resume(run.path, num_server_rounds=2)
    section = PAGE.read_text().partition("## What survives a round")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^  \d+\. `([\w/.]+)`", section, re.MULTILINE))
    assert seen - READS_NUMBERS - LIKE_GROUPS == listed
    assert len(listed) <= 5
