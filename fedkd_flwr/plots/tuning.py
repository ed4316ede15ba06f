"""Figures of a tuning: importance of settings, and all trials."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import optuna
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from optuna.study import Study
from optuna.visualization import matplotlib as optuna_plots

from fedkd_flwr.tuning.study import MethodSearch, best_trial

FEWEST = 3
"""Fewest completed trials for an importance."""

OBJECTIVE = "validation accuracy"
"""What the trials are judged by, a mean over clients and tuning seeds."""


def tuning_figures(searches: Sequence[MethodSearch]) -> Iterable[tuple[str, Figure]]:
    """Draw the importance of each method's settings, and its trials as parallel coordinates."""
    for search in searches:
        study = search.study()
        name = search.folder.name
        if best_trial(study.get_trials(deepcopy=False)) is None:
            continue
        yield f"{name}-trials", _trials(study, search)
        complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        if len(complete) >= FEWEST and len(complete[0].params) > 1:
            yield f"{name}-importance", _importance(study, search)


def _trials(study: Study, search: MethodSearch) -> Figure:
    """Draw all trials as lines through their settings."""
    figure = _drawn(optuna_plots.plot_parallel_coordinate, study)
    figure.axes[0].set_title(f"{search.strategy}: trials, by settings and {OBJECTIVE}")
    # Names of settings are long and slanted.
    figure.subplots_adjust(bottom=0.25, left=0.1, right=0.8)
    for part in figure.axes:
        if part.get_ylabel() == OBJECTIVE:
            # Optuna draws the color bar over the last axis.
            part.set_position((0.9, 0.25, 0.015, 0.63))
    return figure


def _importance(study: Study, search: MethodSearch) -> Figure:
    """Draw how much each setting matters for the validation accuracy."""
    figure = _drawn(optuna_plots.plot_param_importances, study)
    (axes,) = figure.axes
    axes.set_title("", loc="left")
    axes.set_title(f"{search.strategy}: importance of settings for {OBJECTIVE}")
    axes.set_xlabel("Share of the variation between trials")
    axes.set_ylabel("")
    if legend := axes.get_legend():
        legend.remove()
    figure.subplots_adjust(bottom=0.12, left=0.32, right=0.95)
    return figure


def _drawn(draw: Callable[..., Any], study: Study) -> Figure:
    """Return a figure of Optuna."""
    with warnings.catch_warnings():
        # Optuna calls its Matplotlib figures experimental at every call.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        drawn = draw(study, target_name=OBJECTIVE)
    axes: Axes = drawn if isinstance(drawn, Axes) else drawn.flat[0]
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    figure.set_size_inches(9, 5.5)
    return figure
