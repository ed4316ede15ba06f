"""KT-pFL's Tables 1 and 3 to 6: the paper's row, ours at reduced scale, and the difference."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tables import REFERENCE, accuracies, markdown, with_spread

from fedkd_flwr.config_files import load_toml

HERE = Path(__file__).parent


def papers(table: str) -> dict[str, Any]:
    """Return a table's numbers in the paper."""
    return dict(load_toml(HERE / "paper.toml", "paper's tables")[table])


SPLITS = {
    "Non-IID 1": ("table-1.json", "table-1-rivals.json"),
    "Non-IID 2": ("table-1-two-classes.json",),
}
"""Our runs at reduced scale for each column of Table 1."""


def table_1() -> str:
    """Return Table 1, Fashion-MNIST: both columns of the paper, and ours at reduced scale.

    As the released code runs them: KT-pFL at T = 10 for 60 rounds, its rivals at T = 1 for 30.
    """
    runs = {
        split: pd.concat(
            [accuracies(HERE / file, ["kt-pfl.temperature", "round"], {}) for file in files]
        )
        for split, files in SPLITS.items()
    }
    rows = []
    for method, figures in papers("table1").items():
        row = [f"`{method}`"]
        for theirs, own in zip(figures, runs.values(), strict=True):
            ours = as_released(own, method)
            row += [
                f"{theirs:.2f}",
                with_spread(ours["accuracy"]),
                f"{100 * ours['accuracy'].mean() - theirs:+.1f}",
                f"{np.round(100 * ours['gain'].mean(), 1) + 0.0:+.1f}",
            ]
        rows.append(row)
    headings = [
        heading
        for split in SPLITS
        for heading in (f"paper, {split}:", "ours, reduced scale", "difference:", "over `local`:")
    ]
    return markdown(["method", *headings], rows)


def as_released(runs: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return a method's rows with the temperature and the round of the released code."""
    temperature, rounds = ("10.0", 60) if method == "kt-pfl" else ("1.0", 30)
    is_of_method = (runs["strategy"] == method) & (runs["round"] == rounds)
    # FedDF and pFedDF do not have this temperature.
    return runs[is_of_method & runs["kt-pfl.temperature"].map(str).isin([temperature, "-"])]


def row_of(table: str, file: Path, setting: str, *others: str) -> str:
    """Return a paper's row over one setting, our row, their difference, and our gain over `local`.

    Parameters
    ----------
    table, setting : str
        The paper's table, and the setting that its columns are.
    file : Path
        Our runs.
    *others : str
        ``KEY=VALUE`` that our runs have to have.
    """
    conditions = dict(pair.split("=", 1) for pair in others)
    runs = accuracies(file, [setting], conditions)
    own = runs[runs["strategy"] != REFERENCE]
    ours = own.groupby(setting)["accuracy"].mean() * 100
    gains = own.groupby(setting)["gain"].mean() * 100
    theirs = pd.Series(papers(table)[setting.rpartition(".")[2]], index=ours.index)
    names = [f"`{setting}` {value:g}:" for value in ours.index]
    rows = [
        ["paper", *(f"{value:.1f}" for value in theirs)],
        ["ours", *(f"{value:.1f}" for value in ours)],
        ["difference", *(f"{value:+.1f}" for value in ours - theirs)],
        ["ours over `local`", *(f"{value:+.1f}" for value in np.round(gains, 1) + 0.0)],
    ]
    return markdown(["", *names], rows)


def table_5(*files: Path) -> str:
    """Return Table 5: the paper's accuracy, ours and the gain over `local`, by public images."""
    theirs = papers("table5")
    rows = []
    for file in files:
        runs = accuracies(file, ["public-dataset"], {})
        own = runs[runs["strategy"] != REFERENCE]
        name = own["public-dataset"].iloc[0]
        ours, known = 100 * own["accuracy"].mean(), theirs.pop(name, None)
        rows.append(
            [
                name,
                "not in the paper" if known is None else f"{known:.2f}",
                with_spread(own["accuracy"]),
                "" if known is None else f"{ours - known:+.1f}",
                f"{100 * own['gain'].mean():+.1f}",
            ]
        )
    rows += [[name, f"{known:.2f}", "not run", "", ""] for name, known in theirs.items()]
    return markdown(["public images", "paper:", "ours", "difference:", "over `local`:"], rows)
