"""One contract for every learner: ours, and the one that docs/howto/learner.md writes.

Axis letters: n contexts, K actions, B snapshots.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import gedppl as ged
from gedppl.learning import learner_for
from gedppl.learning.credible import sampled_set
from gedppl.learning.radius import bracketing, hellinger_ball
from gedppl.learning.storing import NotStorableError, Reader, Writer
from tests.plain_worlds import PlainTables
from tests.program_doubles import Glm, ScaleDouble, arm_features

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "learner.md"
K, ROWS = 2, 60
MEANS = (0.3, 0.7)
AT = np.zeros((3, 1))


@cache
def page() -> dict:
    """The names that the page's first block defines."""
    names: dict = {}
    exec(
        compile(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[0], str(PAGE), "exec"),
        names,
    )
    return names


def constant_arms(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    return arm_features(K)(np.ones((len(a), 1)), np.asarray(a))


CLASSES = {
    "linear_gaussian": lambda: Glm("Normal", K, constant_arms, {"scale": 0.5}),
    "finite": lambda: PlainTables(np.array([[MEANS], [(0.5, 0.5)], [(0.7, 0.3)]])),
    "one predictor": lambda: Glm("Bernoulli", K, constant_arms),
    "unknown scale": lambda: ScaleDouble(K, "Normal", constant_arms),
    "any program": lambda: Glm("Bernoulli", K, constant_arms, exact=False),
    "location and scale": lambda: ScaleDouble(K, features=constant_arms),
    "draws": lambda: Glm("Bernoulli", K, constant_arms),
    "of one's own": lambda: page()["Averages"](K),
}
RULES = {"draws": sampled_set(source="laplace", draws=400)}


def rows(n: int = ROWS, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = rng.integers(K, size=n)
    return np.zeros((n, 1)), a, (rng.random(n) < np.array(MEANS)[a]).astype(float)


@cache
def learners(name: str):
    """Before any row, and after two refits."""
    fresh = learner_for(CLASSES[name](), delta=0.05, confidence=RULES.get(name))
    x, a, y = rows()
    return fresh, fresh.absorb(x[:20], a[:20], y[:20]).refit().absorb(
        x[20:], a[20:], y[20:]
    ).refit()


@pytest.fixture(params=list(CLASSES))
def pair(request):
    return learners(request.param)


def test_rows_are_counted_and_the_old_learner_stays_as_it_was(pair) -> None:
    fresh, fed = pair
    assert (fresh.n, fed.n) == (0, ROWS)
    assert fresh.snapshot_sizes.tolist() == [0]
    assert fed.snapshot_sizes[-1] == ROWS
    assert fed.status


def test_bounds_hold_the_estimate_and_keep_to_the_range(pair) -> None:
    for learner in pair:
        found = learner.bounds(ged.mean(0, 1), AT, K)
        for part in (found.estimate, found.lower, found.upper):
            assert part.shape == (len(AT), K)
        assert np.all((found.lower >= 0) & (found.lower <= found.estimate + 1e-9))
        assert np.all((found.upper <= 1) & (found.estimate <= found.upper + 1e-9))
        assert found.method in ("exact", "ascent", "sampled")
        assert found.rule
        assert not found.empty


def test_rows_narrow_the_bounds_around_the_truth(pair) -> None:
    fresh, fed = pair
    before, after = (learner.bounds(ged.mean(0, 1), AT, K) for learner in (fresh, fed))
    assert np.all(after.upper - after.lower < before.upper - before.lower + 1e-9)
    assert (after.upper - after.lower).max() < 0.95
    assert np.all((after.lower <= MEANS) & (after.upper >= MEANS))


def test_guess_and_trail_have_their_shapes(pair) -> None:
    for learner in pair:
        guess, trail = learner.guess(ged.mean(0, 1), AT, K), learner.trail(ged.mean(0, 1), AT, K)
        assert guess.estimate.shape == guess.lower.shape == guess.upper.shape == (len(AT), K)
        assert np.all(guess.lower <= guess.upper)
        B = len(learner.snapshot_sizes)
        assert trail.estimate.shape == trail.lower.shape == trail.upper.shape == (len(AT), B, K)


def test_squared_deviation_is_that_of_no_rows_at_first(pair) -> None:
    fresh, fed = pair
    assert fresh.squared_deviation(ged.mean(0, 1)) == 0
    assert 0 <= fed.squared_deviation(ged.mean(0, 1)) <= ROWS + 1e-9


def test_what_predicts_has_a_distribution_function(pair) -> None:
    _, fed = pair
    if fed.has_predictive(AT):
        below, at = fed.predictive_cdf(AT, np.array([0, 1, 1]), np.array([0.0, 0.0, 1.0]))
        assert np.all((below >= 0) & (below <= at + 1e-12) & (at <= 1 + 1e-9))


def test_the_top_is_above_what_was_predicted_for_the_rows_since_a_mark(pair) -> None:
    """And zero for no rows: the log-likelihood of nothing."""
    _, fed = pair
    if not fed.refutable:
        return
    assert fed.top(fed.mark()) == pytest.approx(0.0, abs=1e-9)
    x, a, y = rows(40, seed=2)
    later = fed.absorb(x, a, y)
    assert later.top(fed.mark()) > fed.log_predictive(x, a, y) - 1e-9
    assert np.isfinite(later.top(fed.mark()))


def test_what_was_stored_comes_back_to_the_last_digit(pair) -> None:
    fresh, fed = pair
    writer = Writer(strict=True)
    tree = fed.stored(writer)
    back = fresh.restored(Reader(writer.arrays), tree)
    assert (back.n, back.status) == (fed.n, fed.status)
    one, other = (learner.bounds(ged.mean(0, 1), AT, K) for learner in (fed, back))
    np.testing.assert_array_equal(one.upper, other.upper)
    np.testing.assert_array_equal(one.lower, other.lower)
    again = Writer(strict=True)
    assert back.stored(again) == tree
    assert all(
        np.array_equal(again.arrays[key], value, equal_nan=True)
        for key, value in writer.arrays.items()
    )
    with pytest.raises((ValueError, KeyError)):
        fresh.restored(Reader(writer.arrays), {name: tree[name] for name in list(tree)[1:]})


def test_a_set_that_is_no_likelihood_set_says_that_it_cannot_be_stored() -> None:
    """Its threshold is a field, None for a ball: stored with one it would come back as another
    set.
    """
    cls = Glm("Bernoulli", K, constant_arms)
    ratio, ball = (
        learner_for(cls, delta=0.05, confidence=rule).absorb(*rows()).refit()
        for rule in (None, hellinger_ball(bracketing(2.0, 1.0)))
    )
    assert [s.threshold is None for s in (*ratio.sets, *ball.sets)] == [False] * len(ratio.sets) + [
        True
    ]
    ratio.stored(Writer(strict=True))
    with pytest.raises(
        NotStorableError, match="a divergence ball around a program cannot be part of a snapshot"
    ):
        ball.stored(Writer(strict=True))
    flipped = replace(ball, sets=tuple(replace(s, threshold=0.0) for s in ball.sets))
    flipped.stored(Writer(strict=True))  # the field alone decides


def test_the_page_runs_as_written_and_its_run_can_be_resumed(tmp_path, capsys) -> None:
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[1:]:
        exec(compile(block.replace("range(400)", "range(60)"), str(PAGE), "exec"), page())
    assert capsys.readouterr().out == "True\n"
    problem = page()["problem"]
    agent = ged.GEDUCB(problem, seed=1, journal=tmp_path / "j.db")
    for k in range(8):
        decision = agent.ask([1.0])
        agent.tell(decision.id, y=0.5, z=0.1 * (k % 2))
    agent.ask([1.0])
    agent.save()
    expected = agent.state_hash()
    agent.close()
    assert ged.resume(tmp_path / "j.db", problem).state_hash() == expected
