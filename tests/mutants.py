"""Small mistakes, and which of them the tests notice: ``python -m tests.mutants [NAME...]``.

Each of `MUTANTS` replaces a text that occurs once in one file. In a copy of the tree, the tests
named for it run. With ``--suite`` a mutant that survives them meets the whole fast suite without
the stored runs, which notice any change of a number; ``--stored-runs`` lets these run too.
Whoever moves a mutant's text moves it in ``mutants.toml`` too.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

from tests.sizes import ROOT, tracked_files

HOLDING = "test_mutants"
"""The file of tests that finds the mutants in the code, and so would notice all of them."""

NUMBERS = "test_stored_runs"


@dataclass(frozen=True)
class Mutant:
    """A mistake: ``new`` instead of ``old`` in a file, and the files of tests that concern it."""

    name: str
    about: str
    file: str
    old: str
    new: str
    tests: list[str]

    def applied_to(self, text):
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its text occurs {found} times in {self.file}, not once")
        return text.replace(self.old, self.new)


MUTANTS = [
    Mutant(**entry)
    for entry in tomllib.loads((Path(__file__).parent / "mutants.toml").read_text())["mutant"]
]


def copy_of_tree(folder):
    """Copy all tracked files to a folder, and track them there: some tests ask Git for them."""
    for path in tracked_files():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, folder / path, follow_symlinks=False)
    for command in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def passes(folder, *arguments):
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest could not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def named_tests_pass(folder, names):
    return passes(folder, "-n", "0", *(f"tests/test_{name}.py" for name in names))


def suite_passes(folder, left_out):
    ignored = [f"--ignore=tests/{name}.py" for name in left_out]
    return passes(folder, "-n", "2", "tests", *ignored)


def killer_of(mutant, folder, left_out):
    """Apply a mutant to a copy of the tree, say what notices it, and take it back."""
    file = folder / mutant.file
    before = file.read_text()
    try:
        write(file, mutant.applied_to(before))
        if not named_tests_pass(folder, mutant.tests):
            return "its tests"
        if left_out is not None and not suite_passes(folder, left_out):
            return "the suite"
        return ""
    finally:
        write(file, before)


def write(file, text):
    """Write a module; bytecode of a text of the same size and second would be taken for its own."""
    file.write_text(text)
    Path(cache_from_source(file)).unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants; by default all")
    parser.add_argument("--suite", action="store_true", help="let survivors meet the fast suite")
    parser.add_argument("--stored-runs", action="store_true", help="with the stored runs")
    options = parser.parse_args()
    if unknown := {*options.names} - {mutant.name for mutant in MUTANTS}:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}")
    chosen = [m for m in MUTANTS if not options.names or m.name in options.names]
    left_out = [HOLDING] if options.stored_runs else [HOLDING, NUMBERS]
    with tempfile.TemporaryDirectory() as folder:
        copy_of_tree(Path(folder))
        named = sorted({name for mutant in chosen for name in mutant.tests})
        sound = named_tests_pass(Path(folder), named)
        if not sound or (options.suite and not suite_passes(Path(folder), left_out)):
            sys.exit("the tests fail without a mutant too")
        killed = 0
        for mutant in chosen:
            killer = killer_of(mutant, Path(folder), left_out if options.suite else None)
            killed += bool(killer)
            result = f"killed by {killer}" if killer else "SURVIVED"
            print(f"{mutant.name:24} {result:22} {mutant.about}", flush=True)
    print(f"{killed} of {len(chosen)} mutants were killed.")


if __name__ == "__main__":
    main()
