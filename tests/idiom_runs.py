"""What is measured of an idiom: coverage in adaptive runs, its bound against a search by brute
force, and processor time. Shared by the tests and by `benchmarks/idioms.py`.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import minimize

import gedppl as ged
from gedppl.errors import FitWarning
from gedppl.learning import Where, learner_for
from gedppl.learning.location_scale import LocationScaleLearner
from gedppl.learning.seen_class import SeenClass
from tests.idioms import Idiom, contexts

DELTA = 0.1
CLASSES: dict[tuple[str, str], Any] = {}


def class_of(idiom: Idiom, ppl: str = "numpyro"):
    if (idiom.name, ppl) not in CLASSES:
        example = contexts(np.random.default_rng(0), 1), np.zeros(1, int)
        CLASSES[idiom.name, ppl] = ged.density_class(idiom.model(ppl), example=example)
    return CLASSES[idiom.name, ppl]


def rows_of(idiom: Idiom, n: int, seed: int):
    rng = np.random.default_rng(seed)
    return contexts(rng, n), rng.integers(0, idiom.n_actions, n)


def truth_of(cls) -> np.ndarray:
    """Parameters near the middle of the prior, where costs are moderate."""
    draws = np.asarray(cls.draw_prior(40, 3), float)
    return 0.5 * (cls.initial + draws[0])


def is_missed(idiom: Idiom, ppl: str, run: int) -> bool:
    """Whether a bound at three contexts ever missed the truth in one run, in which every second
    action is the one that looks best so far.
    """
    cls, K = class_of(idiom, ppl), idiom.n_actions
    theta, at = truth_of(cls), contexts(np.random.default_rng(9), 3)
    true = np.asarray(
        cls.values(idiom.functional, theta, np.repeat(at, K, axis=0), np.tile(np.arange(K), 3)),
        float,
    ).reshape(3, K)
    true = np.clip(true, idiom.functional.low, idiom.functional.high)
    rng = np.random.default_rng([run, 4])
    where = Where(at[:1], K, tuple(range(K)))
    learner, missed = learner_for(cls, delta=DELTA, where=where, seed=run), False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        for size in (2, 3, 5, 8, 12, 20):
            x = contexts(rng, size)
            best = learner.bounds(idiom.functional, x, K).estimate
            a = np.where(rng.random(size) < 0.5, best.argmax(axis=1), rng.integers(0, K, size))
            y = cls.density_at(theta, x, a).sample(int(rng.integers(1 << 30)), 1)[0]
            learner = learner.absorb(x, a, y).refit()
            found = learner.bounds(idiom.functional, at, K)
            assert found.guaranteed or found.empty or not idiom.guaranteed
            slip = 1e-9 * (1 + np.abs(true))
            missed |= bool(np.any(true > found.upper + slip) or np.any(true < found.lower - slip))
    return missed


def taught(idiom: Idiom, ppl: str = "numpyro", rows: int = 60, **options: Any):
    """A learner that was told rows in six parts."""
    cls = class_of(idiom, ppl)
    x, a = rows_of(idiom, rows, 6)
    y = cls.density_at(truth_of(cls), x, a).sample(8, 1)[0]
    learner = learner_for(cls, delta=DELTA, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        for part in np.array_split(np.arange(rows), 6):
            learner = learner.absorb(x[part], a[part], y[part]).refit()
    return learner


def brute_force_error(idiom: Idiom) -> float:
    """How far an upper bound over the set of all rows is from the largest value that a general
    solver finds in that set, as a share of it where it is above one.
    """
    learner, at = taught(idiom), contexts(np.random.default_rng(1), 1)
    if isinstance(learner, LocationScaleLearner):
        whole = learner.processes[0]
        learner = replace(learner, processes=(replace(whole, kept=whole.kept[:1]),))
    else:
        learner = replace(learner, sets=learner.sets[:1])
    ours = float(learner.bounds(idiom.functional, at, idiom.n_actions).free_upper[0, 1])
    theirs = largest_by_search(learner, idiom, at)
    return (ours - theirs) / max(1.0, abs(ours))


def largest_by_search(learner, idiom: Idiom, at: np.ndarray, starts: int = 12) -> float:
    """The largest value over the set of all rows, by sequential quadratic programming from many
    starts with slopes taken numerically: it shares nothing with the bound but the log-density.
    """
    action, rng = np.array([1]), np.random.default_rng(3)
    if isinstance(learner, LocationScaleLearner):
        whole, n_scales = learner.processes[0], learner.form.n_groups
        threshold = whole.kept[0].threshold - sum(
            (0.5 * whole.table.n * np.log(2 * np.pi), whole.table.x[:, -1].sum())
        )
        centre, box = learner.snapshots.estimate[-1], None
        walls = [], []

        def total(v):
            z = (whole.table.y - whole.table.x[:, :-1] @ v[:-n_scales]) * np.exp(
                -v[-n_scales:][whole.table.a]
            )
            logs = -0.5 * z**2 - v[-n_scales:][whole.table.a] - 0.5 * np.log(2 * np.pi)
            return float((logs - whole.table.x[:, -1]).sum())

        def value(v):
            return float(learner._values(idiom.functional, v[None], at, action)[0, 0])

        spread = learner.particles.theta[:100].std(axis=0)
    else:
        (chosen,) = learner.sets
        cls, rows = learner.cls, learner.rows
        centre, threshold = chosen.region.centre, chosen.threshold
        walls = chosen.data.supports
        low, high = cls._box if isinstance(cls, SeenClass) else (None, None)
        box = None if low is None else list(zip(low, high))

        def total(v):
            return float(cls.total(v, rows))

        def value(v):
            return float(np.asarray(cls.values(idiom.functional, v[None], at, action)).ravel()[0])

        spread = 1.0 / np.maximum(np.linalg.norm(chosen.region.chol, axis=1), 1e-6)
    best = -np.inf
    for _ in range(starts):
        begin = centre + 0.7 * spread * rng.standard_normal(len(centre))
        if box is not None:
            begin = np.clip(begin, *(np.array(side, float) for side in zip(*box)))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = minimize(
                lambda v: -value(centre + spread * v),
                (begin - centre) / spread,
                jac="3-point",
                bounds=None
                if box is None
                else [((lo - c) / s, (hi - c) / s) for (lo, hi), c, s in zip(box, centre, spread)],
                constraints=[
                    {
                        "type": "ineq",
                        "fun": lambda v: total(centre + spread * v) - threshold,
                        "jac": lambda v: _slope(lambda u: total(centre + spread * u), v),
                    },
                    *(
                        {
                            "type": "ineq",
                            "fun": lambda v, a=a, b=b: b - a @ (centre + spread * v),
                            "jac": lambda v, a=a: -a * spread,
                        }
                        for a, b in zip(*walls)
                    ),
                ],
                method="SLSQP",
                options={"ftol": 1e-14, "maxiter": 300},
            )
            reached = centre + spread * found.x
            if total(reached) >= threshold - 1e-7:
                best = max(best, value(reached))
    return best


def _slope(function, v: np.ndarray, step: float = 1e-5) -> np.ndarray:
    moves = step * np.eye(len(v))
    return np.array([(function(v + m) - function(v - m)) / (2 * step) for m in moves])


def milliseconds_of_an_ask(idiom: Idiom, ppl: str = "numpyro", asks: int = 40) -> float:
    """Processor time of the bounds that one ask needs, the median over contexts: 200 rows."""
    where = Where(contexts(np.random.default_rng(2), 1), idiom.n_actions, ())
    where = replace(where, wanted=tuple(range(idiom.n_actions)))
    learner = taught(idiom, ppl, 200, where=where)
    spent = []
    for x in contexts(np.random.default_rng(3), asks + 3):
        begun = time.process_time()
        learner.bounds(idiom.functional, x[None], idiom.n_actions)
        spent.append(1e3 * (time.process_time() - begun))
    return float(np.median(spent[3:]))
