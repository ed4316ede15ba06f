"""Figures: their lines, labels, colors and files."""

import re
from dataclasses import replace
from html import escape

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba

import fedkd_flwr
from fedkd_flwr import plots
from fedkd_flwr.analysis import figures
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.config import ConfigError

CONFIG = {
    "dataset": "digits", "partition": "k-classes-grouped", "groups": 2, "classes-per-client": 3,
    "max-samples": 400, "held-out-size": 60, "public-size": 30, "models": "mlp",
    "num-clients": 4, "num-server-rounds": 3, "local-epochs": 1, "batch-size": 16,
    "learning-rate": 0.05, "client-split": "60/0/40", "device": "cpu", "torch-threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs by strategy and seed, all on the same splits."""
    folder = tmp_path_factory.mktemp("runs")
    wanted = [("local", 0), ("local", 1), ("kt-pfl", 0), ("kt-pfl", 1), ("perfed-ckt", 0)]
    return {
        (strategy, seed): fedkd_flwr.run(
            {**CONFIG, "strategy": strategy, "seed": seed}, output_dir=folder / f"{strategy}{seed}"
        )
        for strategy, seed in wanted
    }


@pytest.fixture(scope="module")
def comparison(runs):
    return compare(runs.values())


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def figures_in(comparison):
    """Return the names of the figures of a comparison, drawn and not written."""
    return {name for name, _ in plots.methods.figures_of(comparison)}


def main_axes(figure):
    return figure.axes[0]


def test_accuracy_over_rounds_has_a_line_per_method_and_bands_over_seeds(comparison, runs):
    figure = plots.plot_accuracy_over_rounds(comparison)
    axes = main_axes(figure)
    assert sorted(legend_of(figure)) == ["kt-pfl", "local", "perfed-ckt"]
    lines = {line.get_label(): line for line in axes.lines}
    expected = (runs["kt-pfl", 0].rounds["accuracy_mean"]
                + runs["kt-pfl", 1].rounds["accuracy_mean"]) / 2  # fmt: skip
    np.testing.assert_allclose(lines["kt-pfl"].get_ydata(), expected)
    assert list(lines["kt-pfl"].get_xdata()) == [1, 2, 3]
    assert len(axes.collections) == 2  # perfed-ckt has one seed and no band
    assert axes.get_xlabel() == "Round"
    assert len({line.get_color() for line in axes.lines}) == 3
    assert {line.get_color() for line in axes.lines} <= set(figures.COLORS)


def changed(run, **tables):
    other = fedkd_flwr.load_run(run.path)
    vars(other).update(tables)
    return other


def with_costs(comparison, **columns):
    return replace(comparison, table=pd.DataFrame(columns, index=list("abcd")))


def test_the_pareto_front_is_named_and_the_rest_gray(comparison):
    figure = plots.plot_gain_against_bytes(
        with_costs(comparison, bytes=[10.0, 100.0, 200.0, 0.0], gain=[0.01, 0.05, 0.02, 0.0])
    )
    axes = main_axes(figure)
    assert [text.get_text() for text in axes.texts] == ["a", "b"]
    (others,) = axes.collections
    assert others.get_offsets().tolist() == [[200.0, 0.02]]
    assert to_rgba(plots.methods.GRAY) == tuple(others.get_facecolor()[0])
    assert axes.lines[0].get_xydata().tolist() == [[10.0, 0.01], [100.0, 0.05]]
    assert axes.get_xscale() == "log"
    assert axes.xaxis.get_major_formatter()(12_000, None) == "12 kB"


def test_mean_gains_have_a_dot_per_seed_and_an_interval(comparison):
    interval = replace(comparison.effects["kt-pfl"], low=-0.02, high=0.06)
    axes = main_axes(plots.plot_mean_gain(replace(comparison, effects={"kt-pfl": interval})))
    names = [text.get_text() for text in axes.get_yticklabels()]
    row = names.index("kt-pfl")
    own = comparison.clients.query("method == 'kt-pfl'").groupby("seed")["gain"].mean()
    np.testing.assert_allclose(axes.collections[row].get_offsets()[:, 0], own)
    drawn = [line.get_xydata().tolist() for line in axes.lines]
    assert [[-0.02, row], [0.06, row]] in drawn
    assert [[own.mean(), row - 0.3], [own.mean(), row + 0.3]] in drawn
    assert len(drawn) == 4  # the mean of each method, the interval and the line at zero


def test_the_pareto_front_has_what_gains_more_than_everything_cheaper():
    costs = pd.Series({"a": 1, "b": 2, "c": 3, "d": 3, "e": 9, "f": 0.5})
    gains = pd.Series({"a": 0.1, "b": 0.05, "c": 0.2, "d": 0.3, "e": 0.3, "f": -0.2})
    assert figures.pareto_front(costs, gains) == ["a", "d"]


def test_a_seed_that_stopped_early_keeps_its_last_value(comparison, runs):
    groups = {
        method: [changed(runs[method, 0], rounds=runs[method, 0].rounds[:2]), runs[method, 1]]
        for method in ("kt-pfl", "local")
    }
    ends = {method: np.mean([run.rounds["accuracy_mean"].iloc[-1] for run in both])
            for method, both in groups.items()}  # fmt: skip
    early = replace(comparison, groups=groups)
    for line in main_axes(plots.plot_accuracy_over_rounds(early)).lines:
        assert list(line.get_xdata()) == [1, 2, 3]
        assert line.get_ydata()[-1] == pytest.approx(ends[line.get_label()])


def test_a_round_counts_only_if_all_running_seeds_were_evaluated_in_it(runs):
    """Else a mean would be over some seeds, and the curve would jump between sets of seeds."""
    first, other = runs["kt-pfl", 0], runs["kt-pfl", 1]
    some = other.rounds.assign(
        accuracy_mean=other.rounds["accuracy_mean"].where([True, False, True])
    )
    curve = figures.accuracy_curve([first, changed(other, rounds=some)])
    whole = figures.accuracy_curve([first, other])
    pd.testing.assert_frame_equal(curve, whole.drop(index=2))


def test_runs_without_evaluation_have_no_accuracy_figures(runs):
    def without_evaluation(run):
        rows = run.clients.drop(columns="accuracy")
        rounds = run.rounds.assign(accuracy_mean=None)
        return changed(run, rounds=rounds, clients=rows, summary={**run.summary,
                       "last_round": None, "validation_round": None})  # fmt: skip

    failed = without_evaluation(runs["kt-pfl", 0])
    assert figures_in(compare([failed])) == {"kt-pfl coefficients", "partition"}
    mixed = figures_in(compare([failed, runs["local", 0]]))
    assert "accuracy over rounds" in mixed


def test_gain_over_local_has_a_point_per_client_and_seed(comparison):
    axes = main_axes(plots.plot_gain_over_local(comparison))
    points = {
        label.get_text().splitlines()[0]: points.get_offsets()[:, 0]
        for label, points in zip(axes.get_yticklabels(), axes.collections, strict=True)
    }
    assert {label: len(gain) for label, gain in points.items()} == {"kt-pfl": 8, "perfed-ckt": 4}
    clients = comparison.clients
    expected = clients[clients["method"] == "kt-pfl"]["gain"]
    np.testing.assert_allclose(sorted(points["kt-pfl"]), sorted(expected))
    share = (expected > 0).mean()
    assert any(f"{share:.0%} above local" in text.get_text() for text in axes.get_yticklabels())


def test_sharing_rows_are_receivers_and_columns_givers_ordered_by_labels(runs):
    run = runs["kt-pfl", 0]
    axes = main_axes(plots.plot_sharing(run, server_round=2))
    order = [int(text.get_text()) for text in axes.get_yticklabels()]
    assert order == [int(text.get_text()) for text in axes.get_xticklabels()]
    # Clients 0 and 1 share their classes, and so do 2 and 3.
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset({0, 1}), frozenset({2, 3})}
    drawn = np.asarray(axes.images[0].get_array())
    expected = run.matrices["coefficients"][1]
    for i, receiver in enumerate(order):
        for j, giver in enumerate(order):
            assert drawn[i, j] == expected[receiver, giver]
    assert axes.get_xlabel().startswith("Giver") and axes.get_ylabel().startswith("Receiver")
    assert "coefficients after round 2" in axes.get_title()


def test_the_scale_ends_at_the_largest_weight_between_two_clients(runs):
    weights = np.array([[9, 0.4, 0, 0], [0.1, 9, 0, np.nan], [0, 0, 9, 0], [0, 0, 0, 9]], float)
    nobody = np.full((4, 4), np.nan)
    for matrix, limits in ((weights, (0, 0.4)), (nobody, (0, 1)), (np.eye(4), (0, 1))):
        run = changed(runs["kt-pfl", 0], matrices={"coefficients": matrix[None]})
        image = main_axes(plots.plot_sharing(run)).images[0]
        assert image.get_clim() == limits


def test_missing_rounds_and_matrices_raise_value_error(runs):
    run = runs["kt-pfl", 0]
    for server_round in (0, 4):
        with pytest.raises(ValueError, match=r"outside 1\.\.3"):
            plots.plot_sharing(run, server_round=server_round)
    with pytest.raises(ValueError, match="no matrix nope"):
        plots.plot_sharing(run, name="nope")
    with pytest.raises(ValueError, match="no matrix of receivers"):
        plots.plot_sharing(runs["local", 0])
    with pytest.raises(ValueError, match="no clusters"):
        plots.plot_clusters(run)


def test_clusters_are_drawn_by_client_and_round_in_palette_colors(runs):
    run = runs["perfed-ckt", 0]
    axes = main_axes(plots.plot_clusters(run))
    image = axes.images[0]
    followed = figures.follow_clusters(run.matrices["clusters"])
    np.testing.assert_array_equal(image.get_array(), followed[:, figures.client_order(run)[0]].T)
    absent, first = image.cmap(image.norm([-1, 0]))
    assert tuple(absent) == to_rgba(plots.axes.ABSENT)
    assert tuple(first) == to_rgba(figures.COLORS[0])


def test_clusters_keep_their_numbers_when_k_means_renumbers_them():
    labels = np.array([[0, 0, 1, 1], [1, 1, 0, 0], [-1, 0, 1, -1], [1, 1, 0, 1]])
    followed = figures.follow_clusters(labels)
    # In the third round clients 1 and 2 swap back; in the last, client 3 changes side.
    assert followed.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [-1, 0, 1, -1], [0, 0, 1, 0]]
    assert figures.follow_clusters(np.full((2, 3), -1)).tolist() == [[-1] * 3] * 2


def test_label_counts_match_the_partition(runs):
    counts = plots.label_counts(runs["local", 0])
    assert counts.shape == (4, 10)
    assert ((counts > 0).sum(axis=1) == 3).all()
    np.testing.assert_array_equal(counts.loc[0], counts.loc[1])
    last = runs["local", 0].clients.groupby("round")["total"].sum().iloc[-1]
    assert last == pytest.approx(0.4 * counts.to_numpy().sum(), abs=4)


def test_all_figures_are_written_and_closed(comparison, tmp_path):
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    paths = plots.save_figures(comparison, tmp_path / "figures")
    assert {path.name for path in paths} == {
        "accuracy-over-rounds.png", "mean-gain-over-local.png", "gain-over-local.png",
        "gain-against-bytes.png", "kt-pfl-coefficients.png", "perfed-ckt-clusters.png",
        "partition.png",
    }  # fmt: skip
    for path in paths:
        assert mpl.image.imread(path).std() > 0.01
    assert len(list((tmp_path / "figures").iterdir())) == len(paths)
    assert pyplot.get_fignums() == before


def test_a_label_that_looks_like_a_formula_is_drawn_as_it_is(runs, tmp_path):
    alone = compare([runs["kt-pfl", 0]])
    odd = replace(alone, groups={r"kt-pfl (models=$\frac$:x)": alone.groups["kt-pfl"]})
    paths = plots.save_figures(odd, tmp_path, "svg")
    assert "kt-pfl-models-frac-x-coefficients.svg" in {path.name for path in paths}


@pytest.mark.parametrize(("file_format", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_figures_are_written_as_svg_and_pdf(comparison, tmp_path, file_format, start):
    figures = [("accuracy", plots.plot_accuracy_over_rounds(comparison))]
    (path,) = plots.axes.write_figures(figures, tmp_path, file_format)
    assert path.name == f"accuracy.{file_format}" and path.read_bytes().startswith(start)
    with pytest.raises(ConfigError, match="choose one of png, svg, pdf"):
        plots.save_figures(comparison, tmp_path, "bmp")


def test_a_comparison_shows_its_table_in_a_notebook(comparison):
    page = comparison._repr_html_()
    assert re.findall("<th>(.*?)</th>", page) == [
        "method", "accuracy", "points over local", "verdict", "steps", "bytes",
    ]  # fmt: skip
    assert re.findall("<tr>\\s*<td>(.*?)</td>", page) == list(comparison.table.index)
    assert all(escape(remark) in page for remark in comparison.remarks)
    assert repr(comparison) == comparison.to_markdown()


def test_a_comparison_draws_its_gains_and_has_a_row_for_each_seed(comparison):
    means = comparison.per_seed.groupby("method")["gain"].mean()
    assert means.drop("local").to_dict() == pytest.approx(
        comparison.table["gain"].dropna().to_dict()
    )
    assert comparison.plot().axes[0].get_xlabel() == "Gain in mean accuracy over local, in points"
