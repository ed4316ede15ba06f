"""The fixed mutants fit the code of today, so that a refactoring carries them along."""

from pathlib import Path

import pytest

from tests.mutants import MUTANTS, ROOT


def test_all_have_different_names():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_and_names_its_tests(mutant):
    text = (ROOT / mutant.file).read_text()
    changed = mutant.applied_to(text)
    assert changed != text
    compile(changed, mutant.file, "exec")
    for name in mutant.tests:
        assert (Path(__file__).parent / f"test_{name}.py").exists()


def test_a_text_that_is_gone_or_there_twice_is_refused():
    mutant = MUTANTS[0]
    for text in ("", mutant.old * 2):
        with pytest.raises(ValueError, match="not once"):
            mutant.applied_to(text)
