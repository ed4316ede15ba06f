"""Figures of a tuning: which settings matter, and which values were tried."""

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
"""Completed trials that an importance needs at least."""


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
    """Return what Optuna draws, under the method's name."""
    with warnings.catch_warnings():
        # Optuna calls its Matplotlib figures experimental at every call.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        drawn = draw(study)
    axes: Axes = drawn if isinstance(drawn, Axes) else drawn.flat[0]
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    axes.set_title(f"{search.strategy}: mean validation accuracy")
    return figure
