"""Trials in other processes: each kind of worker is a real one, and gives what one process
gives.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

import gedppl as ged
from gedppl.study.planning import plan
from tests.crashes import ray_cluster
from tests.problems import linear_program

CONTEXTS = np.random.default_rng(0).uniform(0.1, 0.6, (20, 4))
OPTIONS: dict[str, Any] = {"rounds": 6, "replicates": 2, "goal": 0.3}


def problem(model: Callable[..., None]) -> ged.Problem:
    cls = ged.density_class(model, bounds={"theta": 1.0}, example=(CONTEXTS[:2], np.zeros(2, int)))
    limit = ged.Constraint(cls, ged.mean(0, 1), at_most=0.5, safe_value=0.2)
    return ged.Problem(
        n_actions=2, utility=ged.Utility(cls, ged.mean(0, 1)), constraints=[limit], safe_action=0
    )


importable = linear_program(2, 2, 0.1)


def model_of_a_module(x, a, y=None):
    return importable(x, a, y)


def beside(trial: Callable[[Any], Any], task: Any) -> tuple[int, Any]:
    return os.getpid(), trial(task)


@contextmanager
def processes() -> Iterator[Callable[..., Iterable[Any]]]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool.map


@contextmanager
def joblib_workers() -> Iterator[Callable[..., Iterable[Any]]]:
    joblib = pytest.importorskip("joblib")
    yield lambda f, tasks: joblib.Parallel(2)(joblib.delayed(f)(task) for task in tasks)


@contextmanager
def dask_workers() -> Iterator[Callable[..., Iterable[Any]]]:
    distributed = pytest.importorskip("distributed")
    options = {
        "n_workers": 2,
        "threads_per_worker": 1,
        "host": "127.0.0.1",
        "dashboard_address": None,
    }
    with (
        distributed.LocalCluster(processes=True, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield lambda f, tasks: client.gather(client.map(f, list(tasks), pure=False))


@contextmanager
def ray_workers() -> Iterator[Callable[..., Iterable[Any]]]:
    with ray_cluster() as ray:
        remote = ray.remote(lambda f, task: f(task))
        yield lambda f, tasks: ray.get([remote.remote(f, task) for task in tasks])


# joblib pickles as the last two do
WORKERS = (processes, dask_workers, ray_workers)
LATER = [pytest.param(workers, marks=pytest.mark.slow) for workers in WORKERS]


@pytest.mark.parametrize("workers", [joblib_workers, *LATER])
def test_trials_in_other_processes_are_those_of_one(workers) -> None:
    # a closure goes everywhere but through plain pickle, which the executor uses
    declared = problem(model_of_a_module if workers is processes else linear_program(2, 2, 0.1))
    serial = plan(declared, CONTEXTS, **OPTIONS)
    covered = ged.check_coverage(declared, CONTEXTS, runs=2, rounds=6)
    pids: list[int] = []

    def spread(trial: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for pid, result in run(partial(beside, trial), tasks):
            pids.append(pid)
            yield result

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a scheduler has to say about its own dependencies
        with workers() as run:
            mapped = plan(declared, CONTEXTS, map=spread, **OPTIONS)
            covered_there = ged.check_coverage(declared, CONTEXTS, runs=2, rounds=6, map=run)
    assert mapped.rows == serial.rows
    assert covered_there.rows == covered.rows
    assert [r.gain for r in covered_there.runs] == [r.gain for r in covered.runs]
    assert len(pids) == OPTIONS["replicates"]
    assert os.getpid() not in pids


def test_a_class_that_travelled_is_compiled_once() -> None:
    declared = problem(model_of_a_module)
    sent = pickle.dumps(declared)
    first, second = pickle.loads(sent), pickle.loads(sent)
    assert first.utility.model is second.utility.model
    assert first.utility.model is not declared.utility.model
    params = {"theta": np.array([0.3, 0.4])}
    x, a = CONTEXTS[:3], np.array([0, 1, 1])
    here, there = (
        cls.density(params, x, a) for cls in (declared.utility.model, first.utility.model)
    )
    assert np.array_equal(ged.mean(0, 1)(here), ged.mean(0, 1)(there))
    # bounds travel too
    assert first.utility.model.inside(np.array([[2.0, 0.0], [0.2, 0.0]])).tolist() == [False, True]


def test_a_finite_class_travels() -> None:
    members = [{"theta": np.array([0.1, 0.2])}, {"theta": np.array([0.3, 0.1])}]
    cls = ged.finite_class(model_of_a_module, members, example=(CONTEXTS[:2], np.zeros(2, int)))
    there = pickle.loads(pickle.dumps(cls))
    rows = CONTEXTS[:4], np.array([0, 1, 0, 1]), np.array([0.1, 0.2, 0.3, 0.4])
    assert np.array_equal(
        cls.log_likelihood(cls.every, *rows), there.log_likelihood(there.every, *rows)
    )
