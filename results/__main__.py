"""Make tables, figures and pages from the published runs: ``python -m results``."""

import argparse
import sys
from pathlib import Path

from results.pages import SelectorError, outdated, write_pages


def main() -> None:
    """Do what the options ask for; without one, make everything."""
    options = argparse.ArgumentParser(prog="python -m results", description=__doc__)
    only = options.add_mutually_exclusive_group()
    only.add_argument("--pages", action="store_true", help="write the pages from the tables alone")
    only.add_argument("--check", action="store_true", help="fail if a page differs from the tables")
    only.add_argument("--publish", nargs=2, metavar=("RUNS", "SET"), help="store a folder of runs")
    only.add_argument("--add", nargs=2, metavar=("RUNS", "SET"), help="the same, keeping others")
    names = ("RUNS", "PAPER", "TABLE")
    only.add_argument("--paper", nargs=3, metavar=names, help="print own runs beside a paper's")
    asked = options.parse_args()
    try:
        if asked.paper:
            show_beside_paper(*asked.paper)
        elif stored := asked.publish or asked.add:
            from results.published import publish

            publish(Path(stored[0]), stored[1], add=bool(asked.add))
        elif asked.check:
            if differing := [page.name for page in outdated()]:
                sys.exit(
                    f"{', '.join(differing)} differ from the tables; python -m results --pages"
                )
        else:
            if not asked.pages:
                make()
            print(*write_pages(), sep="\n")
    except SelectorError as error:
        sys.exit(str(error))


def make() -> None:
    """Make all tables and figures."""
    from results import figures, tables

    for name in tables.MADE:
        print(tables.write_table(name), flush=True)
    for name in figures.MADE:
        print(figures.write_figure(name), flush=True)


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
