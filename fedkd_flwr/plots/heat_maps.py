"""Draw matrices as heat maps."""

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from fedkd_flwr.plots.style import ABSENT, client_ticks


def draw_matrix(
    axes: Axes,
    matrix: NDArray[np.float64],
    rows: NDArray[Any],
    columns: NDArray[Any],
    limits: tuple[float, float] = (0, 1),
) -> AxesImage:
    """Draw a matrix as a heat map; NaN is gray.

    Parameters
    ----------
    axes : Axes
        The axes to draw on.
    matrix : ndarray
        Shape (rows, columns).
    rows, columns : ndarray
        Tick labels.
    limits : (float, float)
        The ends of the color scale; the default suits accuracies.
    """
    colors = mpl.colormaps["cividis"].with_extremes(bad=ABSENT)
    lowest, highest = limits
    image = axes.imshow(
        matrix, cmap=colors, vmin=lowest, vmax=highest, interpolation="nearest", aspect="auto"
    )
    axes.set_xticks(*client_ticks(columns))
    axes.set_yticks(*client_ticks(rows))
    return image
