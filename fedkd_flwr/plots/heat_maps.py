"""Tables of accuracies as heat maps."""

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from fedkd_flwr.plots.clients import client_ticks
from fedkd_flwr.plots.looks import ABSENT


def draw_accuracies(
    axes: Axes, accuracies: NDArray[np.float64], rows: NDArray[Any], columns: NDArray[Any]
) -> AxesImage:
    """Draw accuracies from 0 to 1 in colours, grey where there is none.

    Parameters
    ----------
    axes : Axes
        To draw on.
    accuracies : ndarray
        Shape (rows, columns).
    rows, columns : ndarray
        What the ticks say.
    """
    colours = mpl.colormaps["cividis"].with_extremes(bad=ABSENT)
    image = axes.imshow(
        accuracies, cmap=colours, vmin=0, vmax=1, interpolation="nearest", aspect="auto"
    )
    axes.set_xticks(*client_ticks(columns))
    axes.set_yticks(*client_ticks(rows))
    return image
