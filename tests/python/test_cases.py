"""Every case of tests/CASES.md is tested, and every test that names a case names one of those."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CASES = re.findall(r"^\| ([A-Z]\d) \|", (TESTS / "CASES.md").read_text(encoding="utf-8"), re.MULTILINE)


def ids_in_names() -> set[str]:
    """Python tests begin with theirs, C++ tests have them in brackets at the end."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for name in re.findall(r"^(?:async )?def test_(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.update(re.findall(r"(?:(?<=^)|(?<=_))([a-z]\d)(?=_)", name))
    for path in TESTS.rglob("*.cpp"):
        for ids in re.findall(
            r'TEST_CASE\("[^"]*\(([A-Z]\d(?:, [A-Z]\d)*)\)"', path.read_text(encoding="utf-8")
        ):
            found.update(ids.lower().split(", "))
    return {name.upper() for name in found}


@pytest.mark.parametrize("case", CASES)
def test_a_test_is_named_after_it(case: str) -> None:
    assert case in ids_in_names()


def test_the_table_is_whole() -> None:
    assert len(CASES) == len(set(CASES)) == 35
    assert ids_in_names() <= set(CASES)
