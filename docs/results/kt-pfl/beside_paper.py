"""KT-pFL's Tables 1 and 3 to 6: the paper's row, ours in small, and the difference."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tables import REFERENCE, accuracies, markdown, with_spread

from fedkd_flwr.config_files import load_toml

HERE = Path(__file__).parent


def papers(table: str) -> dict[str, Any]:
    """Return what the paper prints in a table."""
    return dict(load_toml(HERE / "paper.toml", "paper's tables")[table])


def table_1() -> str:
    """Return Table 1, Fashion-MNIST: both columns of the paper, and ours in small of Non-IID 1."""
    settings = {"fedmd": ("1.0", 30), "kt-pfl": ("10.0", 60)}
    runs = accuracies(HERE / "table-1.json", ["kt-pfl.temperature", "round"], {})
    rows = []
    for method, (first, second) in papers("table1").items():
        temperature, rounds = settings.get(method, ("", 0))
        own = runs[
            (runs["strategy"] == method)
            & (runs["kt-pfl.temperature"].map(str) == temperature)
            & (runs["round"] == rounds)
        ]
        is_run = len(own) > 0
        rows.append(
            [
                f"`{method}`",
                f"{first:.2f}",
                f"{second:.2f}",
                with_spread(own["accuracy"]) if is_run else "not run",
                f"T = {float(temperature):g}, {rounds} rounds" if is_run else "",
                f"{100 * own['accuracy'].mean() - first:+.1f}" if is_run else "",
            ]
        )
    headings = ["method", "paper, Non-IID 1:", "paper, Non-IID 2:", "ours, in small, Non-IID 1"]
    return markdown([*headings, "as the released code", "difference:"], rows)


def row_of(table: str, file: Path, setting: str, *others: str) -> str:
    """Return a paper's row over one setting, ours below it, and what `local` has.

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
