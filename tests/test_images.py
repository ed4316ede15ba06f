"""The README's figure shows every published seed and is up to date."""

import importlib.util
from pathlib import Path

import pytest
from PIL import Image

IMAGES = Path(__file__).parent.parent / "docs" / "images"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("figure", IMAGES / "gain_over_local.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_seed_is_a_dot_or_a_triangle_at_the_edge(script):
    panels = script.all_gains()
    low, high = script.LIMITS
    for axes, table in zip(script.draw(panels).axes, panels.values(), strict=True):
        drawn = [x for points in axes.collections for x in points.get_offsets()[:, 0]]
        assert sorted(drawn) == pytest.approx(sorted(table.clip(low).to_numpy().ravel()))
        assert table.to_numpy().max() < high
        assert table.shape == (33, 10)


def test_the_committed_figure_is_of_the_published_runs(script):
    with Image.open(IMAGES / "gain-over-local.png") as image:
        found = image.text["Description"]
    assert found == script.digest(script.all_gains()), (
        "Run `uv run python docs/images/gain_over_local.py`."
    )
