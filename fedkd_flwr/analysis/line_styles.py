"""Color, line and marker of each method: the same in all figures, of both kinds."""

from typing import Any

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs import Run

COLORS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#882255", "#999933", "#332288", "#888888", "#661100", "#9D48F2",
    "#117733", "#000000",
)  # fmt: skip
"""The color-blind safe palette of Okabe and Ito, without yellow, which is hard to see on white.
Before black it has three of Tol's muted colors, gray, Tol's dark brown and green, and a violet."""

FAMILIES = (
    "kt-pfl", "perfed-ckt", "persfl", "fedmd", "fedavg", "fedkma",
    "fedproto", "fml", "hypcluster", "per-fedavg", "apfl", "feddyn",
    "fedmrl", "local",
)  # fmt: skip
"""Color families in the order of `COLORS`. Their members have one color and different lines.

A method therefore has the same style in every figure.
"""

MARKERS = "osD^vPX"
LINES = ("-", "--", ":", "-.")
"""Markers and lines, by their names in Matplotlib."""


def line_styles(comparison: Comparison) -> list[tuple[str, list[Run], dict[str, Any]]]:
    """Return label, runs and line style of each group; styles are the same in every figure."""
    count = len(comparison.groups)
    styles = _styles(comparison)
    return [
        (
            label,
            runs,
            {
                **styles[label],
                # Later lines are thinner, so that equal curves remain visible.
                "lw": 3.0 - 1.8 * i / count,
                "ms": 8.0 - 4.0 * i / count,
                # About ten markers per line.
                "markevery": 0.1,
            },
        )
        for i, (label, runs) in enumerate(comparison.groups.items())
    ]


def family_styles() -> dict[str, tuple[int, int]]:
    """Return the positions of color and line of each built-in method in a color family."""
    lines = dict.fromkeys(FAMILIES, 0)
    styles = {}
    for name, method in METHODS.items():
        family = method.record.color_family
        if family in lines:
            styles[name] = FAMILIES.index(family), lines[family]
            lines[family] += 1
    return styles


def _styles(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Return color, line and marker by label: those of the method's family if still free.

    A method that is compared with several settings, or is in no family, gets an unused style, in
    an unused color as long as there is one.
    """
    own = family_styles()
    taken: dict[str, tuple[int, int]] = {}
    strategies = {label: runs[0].config["strategy"] for label, runs in comparison.groups.items()}
    for label in sorted(strategies):
        style = own.get(strategies[label])
        if style and style not in taken.values():
            taken[label] = style
    all_styles = [(color, line) for line in range(len(LINES)) for color in range(len(COLORS))]
    for label in sorted(strategies.keys() - taken.keys()):
        free = [style for style in all_styles if style not in taken.values()]
        colors = {color for color, _ in taken.values()}
        fresh = [style for style in free if style[0] not in colors]
        # If all styles are in use, one is used twice.
        taken[label] = (fresh or free or all_styles)[0]
    return {
        label: {
            "color": COLORS[color],
            "ls": LINES[line],
            "marker": MARKERS[(color + 3 * line) % len(MARKERS)],
        }
        for label, (color, line) in taken.items()
    }
