"""Whether a model is the one that a journal was begun with: what counts of it and what does not."""

from __future__ import annotations

import importlib
import linecache
import os
import subprocess
import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as nd
import pytest

from tests.optional_pyro import needs_pyro, pd, torch


def reading(**found: Any) -> Any:
    """A model that reads a name from its module, which holds only that."""
    ((name, text),) = found.pop("read").items()
    scope = {"__name__": "of_the_user", name: found["value"]}
    exec(f"def model(x, a, y=None):\n    return {text}", scope)
    return scope["model"]


def other_module(**held: Any) -> ModuleType:
    found = ModuleType("tables_of_the_user")
    vars(found).update(held)
    return found


class Settings:
    noise = 0.3


READ = {  # what a model finds in its module, made twice; the second differs
    "a distribution": ("T", lambda k: nd.Normal(jnp.zeros(2), 1.0 + k)),
    "in a list": ("T[0]", lambda k: [nd.Normal(0.0, 1.0), np.array([1.0 + k])]),
    "a set": ("x in T", lambda k: {"a", "b", f"c{k}"}),
    "texts and numbers in one array": ("T", lambda k: np.array(["a", 1 + k], object)),
    "an object": ("T.noise", lambda k: SimpleNamespace(noise=[1.0 + k])),
    "a class": ("T.noise", lambda k: type("Settings", (Settings,), {"noise": 0.3 + k})),
    "another module": ("T.DOSE[a]", lambda k: other_module(DOSE=[0.0, 1.0 + k])),
    "a module in a module": (
        "T.inner.DOSE[a]",
        lambda k: other_module(inner=other_module(DOSE=[0.0, 1.0 + k])),
    ),
    "arguments of another's function": ("T(x)", lambda k: partial(np.add, 1.0 + k)),
}


@pytest.mark.parametrize("name", READ)
def test_what_a_model_finds_in_its_module_counts(name, monkeypatch) -> None:
    """A table changed between the journal and its continuation made it another model."""
    from gedppl.problem import checks

    text, made = READ[name]
    first, again, other = (
        checks.digest(reading(read={"T": text}, value=made(k))) for k in (0, 0, 1)
    )
    assert first == again != other
    monkeypatch.setattr(checks, "_found", lambda module, names: ())  # the control
    blind = [checks.digest(reading(read={"T": text}, value=made(k))) for k in (0, 1)]
    assert blind[0] == blind[1]


def test_what_a_model_does_not_read_does_not_count() -> None:
    from gedppl.problem.checks import digest

    def asked(value: Any, text: str = "T.DOSE[a]") -> str:
        return digest(reading(read={"T": text}, value=value))

    assert asked(other_module(DOSE=[1.0])) == asked(other_module(DOSE=[1.0], SEEN=7))
    before = asked(os, "T.environ")
    os.environ["GEDPPL_UNREAD"] = "1"
    try:
        assert asked(os, "T.environ") == before  # Python's own modules are no part of a model
    finally:
        del os.environ["GEDPPL_UNREAD"]


CLOSED_OVER = {
    "arguments": lambda k: nd.Normal(jnp.zeros(2), 1.0 + k),
    "its shape": lambda k: nd.Normal(0.0, 1.0).expand([2 + k]),
    "an event": lambda k: nd.Normal(0.0, 1.0 + k).expand([2]).to_event(1),
    "a transform": lambda k: nd.TransformedDistribution(
        nd.Normal(0.0, 1.0), nd.transforms.AffineTransform(0.0, 1.0 + k)
    ),
    "a component": lambda k: nd.MixtureSameFamily(
        nd.Categorical(jnp.array([0.5, 0.5])), nd.Normal(jnp.array([0.0, 1.0 + k]), 1.0)
    ),
    "a matrix": lambda k: nd.MultivariateNormal(jnp.zeros(2), (1.0 + k) * jnp.eye(2)),
}
CLOSED_OVER_P = {
    "arguments": lambda k: pd.Normal(0.0, 1.0 + k),
    "private ones": lambda k: pd.Bernoulli(torch.tensor(0.2 + 0.1 * k)),
    "its shape": lambda k: pd.Normal(0.0, 1.0).expand([2 + k]),
    "an event": lambda k: pd.Normal(0.0, 1.0 + k).expand([2]).to_event(1),
    "a transform": lambda k: pd.TransformedDistribution(
        pd.Normal(0.0, 1.0), [pd.transforms.AffineTransform(0.0, 1.0 + k)]
    ),
    "a matrix": lambda k: pd.MultivariateNormal(torch.zeros(2), (1.0 + k) * torch.eye(2)),
}


def under(prior: Any) -> Any:
    return lambda x, a, y=None: prior


@pytest.mark.parametrize(
    "made",
    [
        *CLOSED_OVER.values(),
        *(pytest.param(one, marks=needs_pyro) for one in CLOSED_OVER_P.values()),
    ],
    ids=[*CLOSED_OVER, *(f"pyro: {name}" for name in CLOSED_OVER_P)],
)
def test_a_distribution_that_a_model_encloses_counts_by_its_arguments(made, monkeypatch) -> None:
    from gedppl.problem import checks

    assert checks.digest(under(made(0))) == checks.digest(under(made(0)))
    assert checks.digest(under(made(0))) != checks.digest(under(made(1)))
    by_type = checks._feed.registry[type(None)]  # the control: as before, by its class alone
    monkeypatch.setattr(
        checks, "_feed_object", lambda value, h, depth: by_type(type(value).__name__, h, depth)
    )
    assert checks.digest(under(made(0))) == checks.digest(under(made(1)))


@needs_pyro
def test_what_a_distribution_computes_and_keeps_does_not_count() -> None:
    from gedppl.problem.checks import digest

    for made, used in (
        (lambda: nd.Categorical(jnp.array([0.5, 0.5])), lambda d: d.logits),
        (lambda: pd.Categorical(torch.tensor([0.5, 0.5])), lambda d: (d.logits, d.probs)),
        (
            lambda: pd.MultivariateNormal(torch.zeros(2), torch.eye(2)),
            lambda d: (d.precision_matrix, d.covariance_matrix),
        ),
        (
            lambda: pd.TransformedDistribution(
                pd.Normal(0.0, 1.0), [pd.transforms.ExpTransform(cache_size=1)]
            ),
            lambda d: d.log_prob(d.sample()),
        ),
    ):
        prior, before = made(), digest(under(made()))
        used(prior)
        assert digest(under(prior)) == before


def test_a_class_of_the_users_own_counts_by_its_source(tmp_path, monkeypatch) -> None:
    from gedppl.problem.checks import digest

    text = "class Own:\n    def log_prob(self, y):\n        return {} * y\n"
    found = []
    for k, factor in enumerate((1.0, 1.0, 2.0)):
        folder = tmp_path / str(k)
        folder.mkdir()
        (folder / "own_classes.py").write_text(text.format(factor))
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "own_classes", raising=False)
        linecache.checkcache()
        own = importlib.import_module("own_classes").Own
        found.append(digest(under(own)))
    assert found[0] == found[1] != found[2]


def test_the_same_declaration_is_the_same_in_another_process() -> None:
    """Whatever hash seed Python was started with, and wherever objects lie in memory."""
    code = (
        "from tests.test_same_model import *\n"
        "from gedppl.problem.checks import digest\n"
        "print([digest(reading(read={'T': t}, value=m(0))) for t, m in READ.values()])\n"
        "print([digest(under(m(0))) for m in CLOSED_OVER.values()])\n"
        "print(digest(under(nd.Normal)), digest(under(object())), digest(Settings))\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_a_function_that_was_made_without_a_module_counts() -> None:
    from gedppl.problem.checks import digest

    found = []
    for number in (0, 0, 1):
        model = reading(read={"T": "T"}, value=number)
        model.__module__ = None
        found.append(digest(model))
    assert found[0] == found[1] != found[2]
