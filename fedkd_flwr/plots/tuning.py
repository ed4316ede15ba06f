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

OBJECTIVE = "Objective Value"
"""How Optuna labels the color bar, which it draws over the last axis."""


def tuning_figures(searches: Sequence[MethodSearch]) -> Iterable[tuple[str, Figure]]:
    """Draw the importance of each method's settings, and its trials as parallel coordinates.

    Parameters
    ----------
    searches : sequence of MethodSearch
        Finished searches.

    Yields
    ------
    tuple of str and Figure
        The name of a file, and the figure.
    """
    for search in searches:
        study = search.study()
        name = search.folder.name
        if best_trial(study.get_trials(deepcopy=False)) is None:
            continue
        yield f"{name}-trials", _figure(optuna_plots.plot_parallel_coordinate, study, search)
        complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        if len(complete) >= FEWEST and len(complete[0].params) > 1:
            yield f"{name}-importance", _figure(optuna_plots.plot_param_importances, study, search)


def _figure(draw: Callable[[Study], Any], study: Study, search: MethodSearch) -> Figure:
    """Return Optuna's figure with the method's name as title."""
    with warnings.catch_warnings():
        # Optuna calls its Matplotlib figures experimental at every call.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        drawn = draw(study)
    axes: Axes = drawn if isinstance(drawn, Axes) else drawn.flat[0]
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    figure.set_size_inches(9, 5.5)
    # Names of settings are long and slanted.
    figure.subplots_adjust(bottom=0.3, left=0.3 if len(figure.axes) == 1 else 0.1, right=0.82)
    axes.set_title(f"{search.strategy}: settings and mean validation accuracy")
    for part in figure.axes:
        if part.get_ylabel() == OBJECTIVE:
            part.set_ylabel("validation accuracy")
            part.set_position((0.93, 0.3, 0.015, 0.58))
    return figure
