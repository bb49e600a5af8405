"""Names that examples in docstrings may use: `tests/coins.py` says what they stand for."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def named_examples(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        from tests.coins import names

        doctest_namespace.update(names())
