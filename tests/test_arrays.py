"""One namespace, three array libraries."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp

from gedppl.errors import InputError
from gedppl.numerics.arrays import NAMES, concrete, library, namespace
from tests.optional_pyro import torch

RNG = np.random.default_rng(0)
POSITIVE = RNG.gamma(2.0, 4.0, 60) + 0.05
REAL = RNG.normal(0, 3, 60)
UNIT = RNG.uniform(0.01, 0.99, 60)

ONE_ARGUMENT = {
    "exp": REAL,
    "log": POSITIVE,
    "log1p": POSITIVE,
    "expm1": REAL,
    "sqrt": POSITIVE,
    "abs": REAL,
    "floor": REAL,
    "ceil": REAL,
    "sin": REAL,
    "cos": REAL,
    "tan": REAL,
    "arctan": REAL,
    "arcsinh": REAL,
    "sinh": REAL,
    "cosh": REAL,
    "tanh": REAL,
    "sign": REAL,
    "isfinite": REAL,
    "gammaln": POSITIVE,
    "digamma": POSITIVE,
    "erf": REAL,
    "erfc": REAL,
    "erfinv": UNIT,
    "ndtr": REAL,
    "ndtri": UNIT,
    "log_ndtr": np.concatenate([REAL, [-30.0, -8.0, 5.0]]),
    "i0e": REAL,
    "i1e": REAL,
    "expit": REAL,
    "logit": UNIT,
    "cumsum": REAL,
    "sort": REAL,
    "argsort": REAL,
    "logsumexp": REAL,
    "sum": REAL,
    "mean": REAL,
    "max": REAL,
    "min": REAL,
    "prod": UNIT,
}
MORE_ARGUMENTS = {
    "arctan2": (REAL, POSITIVE),
    "power": (POSITIVE, REAL),
    "maximum": (REAL, 0.5),
    "minimum": (0.5, REAL),
    "logaddexp": (REAL, POSITIVE),
    "betaln": (POSITIVE, POSITIVE[::-1]),
    "xlogy": (REAL, POSITIVE),
    "xlog1py": (REAL, POSITIVE),
    "gammainc": (POSITIVE, POSITIVE[::-1]),
    "gammaincc": (POSITIVE, POSITIVE[::-1]),
    "betainc": (POSITIVE, POSITIVE[::-1], UNIT),
    "gammaincinv": (POSITIVE, UNIT),
    "gammainccinv": (POSITIVE, UNIT),
    "betaincinv": (POSITIVE, POSITIVE[::-1], UNIT),
    "stdtrit": (POSITIVE, UNIT),
    "clip": (REAL, -1.0, 1.0),
    "where": (REAL > 0, REAL, 0.0),
    "matmul": (np.outer(REAL, UNIT), REAL),
    "einsum": ("i,i->", REAL, UNIT),
}


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def _evaluate(xp, convert):
    """Every function of the tables on the converted arguments."""
    table = {**{name: (x,) for name, x in ONE_ARGUMENT.items()}, **MORE_ARGUMENTS}
    return {
        name: getattr(xp, name)(*(convert(x) if isinstance(x, np.ndarray) else x for x in args))
        for name, args in table.items()
    }


@pytest.mark.parametrize("other", ["jax", "torch"])
def test_every_function_agrees_with_numpy(x64, other):
    expected = _evaluate(namespace(0.0), np.asarray)
    if other == "jax":
        got = jax.jit(lambda: _evaluate(namespace(jnp.ones(1)), jnp.asarray))()
    else:
        got = _evaluate(namespace(torch.ones(1)), lambda x: torch.tensor(x.copy()))
    for name, value in expected.items():
        np.testing.assert_allclose(
            np.asarray(got[name]), value, rtol=1e-10, atol=1e-12, err_msg=name
        )


@pytest.mark.parametrize("name", ["gammaincc", "betainc"])
def test_incomplete_functions_have_right_derivatives_in_every_argument(x64, name):
    args = (POSITIVE[:8], POSITIVE[8:16], UNIT[:8])[-3 if name == "betainc" else 0 :][
        : 3 if name == "betainc" else 2
    ]
    which = tuple(range(len(args)))
    by_jax = jax.jit(jax.vmap(jax.grad(getattr(namespace(jnp.ones(1)), name), which)))(*args)
    by_torch = torch.func.vmap(torch.func.grad(getattr(namespace(torch.ones(1)), name), which))(
        *(torch.tensor(x) for x in args)
    )
    for i in which:
        h = 1e-5 * args[i] if i < 2 or name != "betainc" else 1e-6
        up, down = ([*args[:i], args[i] + sign * h, *args[i + 1 :]] for sign in (1, -1))
        slope = (getattr(sp, name)(*up) - getattr(sp, name)(*down)) / (2 * h)
        np.testing.assert_allclose(by_jax[i], slope, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(by_torch[i].numpy(), by_jax[i], rtol=1e-8, atol=1e-10)


def test_jax_own_betaln_is_not_good_enough(x64):
    """The reason for ours: the day this fails, ours can go."""
    a, b = POSITIVE, 2 * POSITIVE
    assert np.abs(np.asarray(jax.scipy.special.betaln(a, b)) - sp.betaln(a, b)).max() > 1e-9


def test_derivative_of_abs_is_0_at_0(x64):
    assert float(jax.grad(namespace(jnp.ones(1)).abs)(0.0)) == 0.0
    assert float(jax.grad(namespace(jnp.ones(1)).abs)(-2.0)) == -1.0


def test_tracers_and_wrapped_tensors_are_recognised(x64):
    seen = []

    def look(x):
        seen.append((library(x), concrete(x) is None))
        return x * 1.0

    jax.jit(look)(1.0)
    jax.vmap(look)(jnp.ones(2))
    jax.grad(look)(1.0)
    torch.func.vmap(look)(torch.ones(2))
    torch.func.grad(look)(torch.tensor(1.0))
    assert seen == [("jax", True)] * 3 + [("torch", True)] * 2
    assert library(torch.nn.Parameter(torch.ones(1))) == "torch"
    assert concrete(jnp.ones(2)).tolist() == [1.0, 1.0]
    assert concrete(torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]


def test_numbers_and_numpy_follow_the_other_library():
    assert namespace(1.0, [2.0]).name == "numpy"
    assert namespace(np.ones(1), torch.ones(1)).name == "torch"
    assert namespace(jnp.ones(1), np.float64(2.0)).name == "jax"


def test_mixing_jax_and_torch_is_refused():
    with pytest.raises(InputError, match="jax and torch were mixed"):
        namespace(jnp.ones(1), torch.ones(1))


def test_unknown_name_says_where_to_add_it():
    with pytest.raises(AttributeError, match="no 'fft' in the array namespaces"):
        _ = namespace(1.0).fft


def test_torch_computes_in_float64_whatever_comes():
    xp = namespace(torch.ones(1))
    for value in (torch.arange(3), torch.ones(3, dtype=torch.float32), 2, [1.0, 2.0]):
        assert xp.exp(value).dtype == torch.float64
    assert all(hasattr(xp, name) for name in NAMES)


def test_nothing_is_imported_before_an_array_arrives():
    code = (
        "import sys, numpy as np, gedppl.functionals as f; from gedppl.density import Density;"
        "f.cvar(0.9, 0, 9)(Density('Gamma', {'concentration': np.ones(2), 'rate': 1.0}));"
        "sys.exit(any(m in sys.modules for m in ('jax', 'torch', 'numpyro', 'pyro')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
