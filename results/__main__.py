"""Make tables, figures and pages from the published runs: ``python -m results``.

Without an option, everything is made. A page's numbers come from the tables, so ``--pages`` and
``--check`` take seconds.
"""

import argparse
import sys
from pathlib import Path

from results.pages import SelectorError, outdated, write_pages


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(prog="python -m results", description=__doc__.splitlines()[0])
    only = options.add_mutually_exclusive_group()
    only.add_argument("--pages", action="store_true", help="write the pages from the tables")
    only.add_argument("--check", action="store_true", help="fail if a page differs from the tables")
    only.add_argument("--publish", nargs=2, metavar=("RUNS", "SET"), help="store a folder of runs")
    only.add_argument("--add", nargs=2, metavar=("RUNS", "SET"), help="the same, keeping others")
    only.add_argument(
        "--paper",
        nargs=3,
        metavar=("RUNS", "PAPER", "TABLE"),
        help='print own runs beside a paper\'s numbers, such as runs/mine kt-pfl "Table 2"',
    )
    return options


def main() -> None:
    """Do what was asked for."""
    asked = parser().parse_args()
    try:
        if asked.check:
            if pages := outdated():
                names = ", ".join(page.name for page in pages)
                sys.exit(f"{names} differ from the tables; type python -m results --pages.")
        elif asked.paper:
            show_beside_paper(*asked.paper)
        elif asked.publish or asked.add:
            store(*(asked.publish or asked.add), add=bool(asked.add))
        else:
            if not asked.pages:
                make()
            for page in write_pages():
                print(page)
    except SelectorError as error:
        sys.exit(str(error))


def make() -> None:
    """Make all tables and figures."""
    from results import figures, tables

    for name in tables.MADE:
        print(tables.write_table(name), flush=True)
    for name in figures.MADE:
        print(figures.write_figure(name), flush=True)


def store(runs: str, name: str, add: bool) -> None:
    """Store runs as a set."""
    from results.published import publish

    print(f"{name} has {publish(Path(runs), name, add)} runs; type python -m results.")


def show_beside_paper(runs: str, paper: str, table: str) -> None:
    """Print a comparison with a paper's numbers."""
    import fedkd_flwr
    from fedkd_flwr.config import ConfigError
    from results.papers import beside_paper

    try:
        print(beside_paper(fedkd_flwr.compare(runs), paper, table))
    except ConfigError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
