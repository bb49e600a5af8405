"""Pyro and torch; or, where they are not installed, stand-ins: a test that touches one is skipped
there and then.

So one file can hold the NumPyro and the Pyro half of a contract, and the first is tested wherever
NumPyro is.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

HAS_PYRO = find_spec("pyro") is not None and find_spec("torch") is not None
needs_pyro = pytest.mark.skipif(not HAS_PYRO, reason="Pyro is not installed")
PPLS = ["numpyro", pytest.param("pyro", marks=needs_pyro)]


class Missing:
    """Stands for a module that is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks at every global of a test file
            raise AttributeError(attribute)
        pytest.skip(f"{self._name} is not installed")


def module(name: str) -> ModuleType | Missing:
    return importlib.import_module(name) if HAS_PYRO else Missing(name)


pyro, pd, torch = module("pyro"), module("pyro.distributions"), module("torch")
pc = module("torch.distributions.constraints")
