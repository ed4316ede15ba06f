"""Make tables, figures and pages from the published runs: ``python -m results``."""

import argparse
import sys
from pathlib import Path

from results.pages import SelectorError, write_pages


def main() -> None:
    """Do what the options ask for; without one, make everything."""
    options = argparse.ArgumentParser(prog="python -m results", description=__doc__)
    only = options.add_mutually_exclusive_group()
    only.add_argument("--pages", action="store_true", help="write the pages from the tables alone")
    only.add_argument("--publish", nargs=2, metavar=("RUNS", "SET"), help="store a folder of runs")
    asked = options.parse_args()
    try:
        if asked.publish:
            from results.published import publish

            publish(Path(asked.publish[0]), asked.publish[1])
            return
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


if __name__ == "__main__":
    main()
