"""Write a comparison as a self-contained web page: ``fedkd report``.

The page shows the results of `fedkd_flwr.analysis`: tables, verdicts, the clients' gains, and the
matrices of the runs. It contains plotly, which draws the figures in the browser, and loads nothing
from the network. Writing it needs the extra ``report``.
"""

from pathlib import Path

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.writing import written_to
from fedkd_flwr.config import ConfigError
from fedkd_flwr.files import write_text
from fedkd_flwr.runs import absolute


def require_extra() -> None:
    """Check that the packages of the extra ``report`` are installed.

    Raises
    ------
    ConfigError
        If one is missing; the message says how to install it.
    """
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The report needs {error.name}, which is not installed: "
            "`uv sync --extra report`, or `pip install 'fedkd-flwr[report]'`."
        ) from None


def write_report(comparison: Comparison, file: str | Path) -> Path:
    """Write a comparison as a self-contained web page.

    Parameters
    ----------
    comparison : Comparison
        The result of `fedkd_flwr.analysis.comparison.compare`.
    file : str or Path
        The page, such as ``report.html``. An existing file is replaced; a missing folder is
        created.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ConfigError
        If the extra ``report`` is not installed.
    RunDirectoryError
        If the file cannot be written.
    """
    require_extra()
    from fedkd_flwr.report.page import render_page  # deferred: needs the extra

    path = absolute(file)
    page = render_page(comparison)
    with written_to(path, "The report"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, page)
    return path
