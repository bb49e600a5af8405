"""What RESULTS.md says of a comparison follows from its cells."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
results = pytest.importorskip("results")


def cells(agent, regrets):
    return [{"agent": agent, "seed": s, "regret": r} for s, r in enumerate(regrets)]


def test_a_lead_is_claimed_only_beyond_chance_and_over_common_seeds():
    ours, theirs = cells("gedppl", [10, 11, 12, 11]), cells("oplb", [20, 21, 22, 21])
    assert "leads: 11.0 against 21.0 of oplb, difference -10.0 ± 0.0 over 4 common seeds." in results.verdict(
        {"gedppl": ours, "oplb": theirs}, True
    )
    noisy = results.verdict({"gedppl": cells("gedppl", [10, 30]), "oplb": cells("oplb", [20, 19])}, True)
    assert noisy.endswith("That is not more than chance over these seeds.")
    fewer = results.verdict({"gedppl": ours, "oplb": cells("oplb", [5, 6])}, True)
    assert "loses: 10.5 against 5.5" in fewer


def test_algorithms_without_a_guarantee_and_wrong_models_are_no_ground_for_a_claim():
    both = {"gedppl": cells("gedppl", [10, 11]), "uccb": cells("uccb", [1, 2])}
    assert results.verdict(both, True) == "No other algorithm with a guarantee was run here."
    assert "no algorithm's guarantee applies" in results.verdict(both, False)


def test_an_algorithm_that_fails_everywhere_says_why():
    row = results.table_of({"oplb": [{"failed": "SettingError: no"}]})[-1]
    assert row == "| oplb | | failed: SettingError: no | | | | | | 0 of 1 |"
