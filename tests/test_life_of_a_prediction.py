"""The files through which a soft prediction passes are those of the architecture page, at most 10.

Two rounds of KT-pFL run under a profiler. A file counts if a function in it has the array itself in
a variable, or returns it. What only holds the message or the reply that contains it does not count.
"""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array

import fedkd_flwr
from strategies.core.probabilities import NumberFormat

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
MEASURE = {"strategies/core/exchange.py"}
"""Files that count an array's numbers and bytes, and hand it to nobody."""

NUM_SAMPLES, NUM_CLASSES = 37, 10


def is_prediction(value):
    """Return whether a value has the shape of predictions or teachers, (..., P, K), P > 0."""
    if not isinstance(value, np.ndarray | torch.Tensor | Array):
        return False
    shape = tuple(value.shape)
    return shape[-2:] == (NUM_SAMPLES, NUM_CLASSES) and 0 not in shape


def page_section():
    """Return the section of the architecture page about the life of a soft prediction."""
    return PAGE.read_text().partition("## The life of a soft prediction")[2].partition("\n## ")[0]


def listed_files():
    items = re.findall(r"^\d+\. `([\w/.]+)`", page_section(), re.MULTILINE)
    assert len(items) == len(set(items))
    return set(items)


@pytest.fixture
def seen():
    """Profile this thread, and return the files that hold predictions."""
    files, ours = set(), tuple(f"{ROOT}/{package}/" for package in ("strategies", "fedkd_flwr"))

    def profile(frame, event, result):
        file = frame.f_code.co_filename
        if event != "return" or not file.startswith(ours):
            return
        if any(map(is_prediction, [*frame.f_locals.values(), result])):
            files.add(file.removeprefix(f"{ROOT}/"))

    before = sys.getprofile()
    sys.setprofile(profile)
    yield files
    sys.setprofile(before)


@pytest.fixture
def flat(small):
    changes = {"num-clients": 2, "models": "mlp", "max-samples": 200, "num-server-rounds": 2}
    return {**small, **changes, "strategy": "kt-pfl", "public-size": NUM_SAMPLES}


def test_a_prediction_passes_through_the_files_of_the_page(flat, tmp_path, seen):
    fedkd_flwr.run(flat, output_dir=tmp_path / "run")
    assert seen - MEASURE == listed_files()
    assert len(listed_files()) <= 11


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
