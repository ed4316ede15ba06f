"""A comparison as one web page that loads nothing: ``fedkd report``.

The page has the tables of `fedkd_flwr.analysis` and the figures of `fedkd_flwr.plots`. Names of
methods, settings and folders may come from anyone's files: all text is escaped where it is written.
"""

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from importlib.metadata import version
from pathlib import Path
from string import Template

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from fedkd_flwr.analysis.columns import COLUMNS, MISSING, columns_of
from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.effects import matrix_of_pairs, notes_on_pairs
from fedkd_flwr.analysis.figures import data_title
from fedkd_flwr.analysis.groups import each_run
from fedkd_flwr.analysis.rendering import by_client, rendered_clients
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.files import write_text
from fedkd_flwr.plots.methods import figures_of
from fedkd_flwr.runs import absolute, writing

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark; --ink: #1b1d21; --quiet: #5a606b; --paper: #ffffff;
  --raised: #f3f5f8; --line: #d9dde3; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7e9ee; --quiet: #a3aab6; --paper: #15171c; --raised: #20242b; --line: #3a404b; }
  svg { filter: brightness(1.3); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
h3, summary, figcaption { font-size: 1.05rem; font-weight: 600; margin: 1rem 0 0.5rem; }
.quiet { color: var(--quiet); font-size: 0.9rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(33rem, 100%), 1fr));
  gap: 1rem; align-items: start; }
figure { margin: 0; }
svg { display: block; max-width: 100%; height: auto; fill: currentColor; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line); }
th { vertical-align: bottom; background: var(--raised); }
td { white-space: nowrap; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--paper);
  text-align: left; white-space: normal; min-width: 6.5rem; max-width: 45vw; }
th:first-child { background: var(--raised); }
summary { cursor: pointer; }
</style>
</head>
<body>
<h1>$title</h1>
<p>$clients clients, $rounds. Accuracy is measured for each client on its own $split split.</p>
$sections
<p class="quiet">Made by fedkd-flwr $version.</p>
</body>
</html>
""")


def write_report(comparison: Comparison, file: str | Path) -> Path:
    """Write a comparison as a web page in one file.

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
    RunDirectoryError
        If the file cannot be written, or a run's matrices are damaged.
    """
    path = absolute(file)
    page = render_page(comparison)
    with writing(f"The report {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, page)
    return path


def render_page(comparison: Comparison) -> str:
    """Return a comparison as an HTML page that loads nothing from the network.

    Raises `RunDirectoryError` if a run's matrices are damaged.
    """
    run = next(iter(comparison.groups.values()))[0]
    settings = defining_settings(run.config)
    return PAGE.substitute(
        title=escape(f"Methods on {data_title(run)}"),
        clients=escape(str(settings["num-clients"])),
        rounds=_rounds(comparison),
        split=escape(str(settings["evaluated-split"])),
        sections="\n".join(_sections(comparison)),
        version=escape(version("fedkd-flwr")),
    )


def _sections(comparison: Comparison) -> Iterator[str]:
    """Yield the parts of the page from top to bottom, as HTML."""
    yield "<h2>Verdicts</h2>"
    nothing = [f"There is no run of {comparison.against} to compare the methods with."]
    yield _listed(comparison.verdicts or nothing)
    if comparison.notes:
        yield f"<h3>Notes</h3>{_listed(comparison.notes)}"
    yield "<h2>Methods</h2>"
    yield _paragraph("Means ± one standard deviation over seeds.")
    for topic, table in _tables_by_topic(comparison):
        yield f"<h3>{escape(topic)}</h3>{_table(table)}"
    pairs = matrix_of_pairs(comparison.pairs, list(comparison.table.index))
    if not pairs.empty:
        yield f"<h3>Every method over each other</h3>{_table(pairs)}"
        yield from map(_paragraph, notes_on_pairs(comparison.pairs))
    yield "<h2>Figures</h2>"
    yield _paragraph("Matrices and clusters are those of each method's first seed.")
    drawn = "".join(_figure(name, figure) for name, figure in figures_of(comparison))
    yield f'<div class="figures">{drawn}</div>'
    yield "<h2>Details</h2>"
    yield _folded("Runs", _runs(comparison))
    clients = by_client(comparison.clients, comparison.table.index)
    yield _folded("Accuracy of each client, mean over seeds", rendered_clients(clients))
    yield from (_folded(title, _settings(own)) for title, own in _settings_of(comparison) if own)


def _tables_by_topic(comparison: Comparison) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the comparison's columns by topic: all of them are too wide for a page."""
    text, columns = comparison.rendered(), columns_of(comparison.table)
    for topic in dict.fromkeys(column.topic for column in COLUMNS.values()):
        own = [c.heading_over(comparison.against) for c in columns if c.topic == topic]
        if own:
            yield topic, text[["method", *own]]


def _rounds(comparison: Comparison) -> str:
    """Return the number of rounds as text; some runs may have stopped early."""
    counts = {len(run.rounds) for _, run in each_run(comparison.groups)}
    fewest, most = min(counts), max(counts)
    return f"{most} rounds" if fewest == most else f"{fewest} to {most} rounds"


def _runs(comparison: Comparison) -> pd.DataFrame:
    """Return one row per run: method, seed, duration, device, start and directory."""
    return pd.DataFrame(
        {
            "method": label,
            "seed": run.config["seed"],
            "rounds": (run.summary or {})["rounds"],
            "seconds": f"{(run.summary or {})['seconds']:.1f}",
            "device": run.description.get("device", MISSING),
            "started": run.description.get("started", MISSING),
            "directory": run.path.name,
        }
        for label, run in each_run(comparison.groups)
    )


def _settings_of(comparison: Comparison) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the settings that all methods share, and by label those that are a method's own."""
    by_label = {
        label: {
            name: "(empty)" if value == "" else str(value)
            for name, value in defining_settings(runs[0].config).items()
            if name not in ("strategy", "seed")
        }
        for label, runs in comparison.groups.items()
    }
    first, *others = by_label.values()
    shared = {k: text for k, text in first.items() if all(own.get(k) == text for own in others)}
    yield "Settings of all methods", shared
    for label, own in by_label.items():
        yield f"Settings of {label}", {k: text for k, text in own.items() if k not in shared}


# ---- HTML ------------------------------------------------------------------------------


def _listed(sentences: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def _paragraph(sentence: str) -> str:
    return f'<p class="quiet">{escape(sentence)}</p>'


def _folded(title: str, table: pd.DataFrame) -> str:
    return f"<details><summary>{escape(title)}</summary>{_table(table)}</details>"


def _settings(settings: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame(settings.items(), columns=["setting", "value"])


def _table(text: pd.DataFrame) -> str:
    with pd.option_context("display.max_colwidth", None):
        rows = text.astype(str).to_html(index=False, border=0, escape=True)
    return f'<div class="wide" tabindex="0">{rows}</div>'


def _figure(name: str, figure: Figure) -> str:
    """Return a figure as SVG, in the colors of the page, under its name."""
    file = io.StringIO()
    # Text stays text. What a figure refers to has names that differ from those of other figures.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True)
    drawing = file.getvalue()[file.getvalue().index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'<g id="[^"]*"', "<g", drawing)
    drawing = drawing.replace(": #000000", ": currentColor").replace(": #ffffff", ": var(--paper)")
    return f"<figure><figcaption>{escape(name)}</figcaption>{drawing}</figure>"
