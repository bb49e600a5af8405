"""Importing the package is instant: nothing heavy comes with it."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import gedppl

HEAVY = ["jax", "torch", "numpyro", "pyro", "arviz", "matplotlib", "scipy"]


def loaded_by(code: str) -> list[str]:
    check = f"import sys; {code}; print(*[m for m in {HEAVY} if m in sys.modules])"
    return subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    ).stdout.split()


def test_import_loads_nothing_heavy() -> None:
    assert loaded_by("import gedppl") == []


def test_the_check_can_fail() -> None:
    assert "jax" in loaded_by("import gedppl, jax")


def test_declaring_a_problem_loads_no_ppl() -> None:
    assert not set(
        loaded_by("import gedppl as ged; ged.mean(0, 1); ged.Problem; ged.GEDUCB")
    ) & set(HEAVY[:6])


def test_every_public_name_exists() -> None:
    for name in gedppl.__all__:
        assert getattr(gedppl, name) is not None


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gedppl.nonsense


def test_no_room_shadows_a_public_name() -> None:
    """Importing a submodule sets an attribute of its name on the package: a function of that
    name would vanish.
    """
    rooms = {path.stem for path in Path(gedppl.__file__).parent.iterdir()}
    assert rooms & set(gedppl._HOME) == set()
    assert not {name for name, home in gedppl._ROOMS.items() if name in rooms and home != name}


def test_every_file_can_be_imported() -> None:
    """A file that names one that is gone would otherwise fail where it is first used."""
    files = [
        module.name
        for module in pkgutil.walk_packages(gedppl.__path__, "gedppl.")
        if module.name != "gedppl.__main__"
    ]
    assert len(files) > 100
    for name in files:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in ("pyro", "torch"):  # optional
                raise
