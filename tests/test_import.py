"""Importing the package is instant: nothing heavy comes with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gedppl

HEAVY = ["jax", "torch", "numpyro", "pyro", "arviz", "matplotlib", "scipy"]


def loaded_by(code: str) -> list[str]:
    check = f"import sys; {code}; print(*[m for m in {HEAVY} if m in sys.modules])"
    return subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout.split()


def test_import_loads_nothing_heavy() -> None:
    assert loaded_by("import gedppl") == []


def test_the_check_can_fail() -> None:
    assert "jax" in loaded_by("import gedppl, jax")


def test_declaring_a_problem_loads_no_ppl() -> None:
    assert not set(loaded_by("import gedppl as ged; ged.mean(0, 1); ged.Problem; ged.GEDUCB")) & set(HEAVY[:6])


def test_every_public_name_exists() -> None:
    for name in gedppl.__all__:
        assert getattr(gedppl, name) is not None


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gedppl.nonsense
