"""Density classes written by hand in NumPy: the protocol of `gedppl.programs.contract.DensityClass`
without a PPL.

They are fast enough for hundreds of runs, and independent of the backends whose classes they stand
in for.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit, gammaln

from gedppl.density import Density
from gedppl.families.one_predictor import FAMILIES
from gedppl.programs.contract import LinearPredictor, LocationScale, Parametric
from gedppl.rows import Rows

ARGUMENT = {  # the family's argument that the linear predictor sets under its usual link, and how
    "Normal": ("loc", np.asarray),
    "Bernoulli": ("probs", expit),
    "Binomial": ("probs", expit),
    "Poisson": ("rate", np.exp),
    "Exponential": ("rate", np.exp),
    "Gamma": ("rate", np.exp),
}

# what else a family takes, and a value for it
FIXED = {"total_count": 5.0, "concentration": 1.7, "scale": 0.6}
TAKES = {
    "Normal": ("scale",),
    "Logistic": ("scale",),
    "Laplace": ("scale",),
    "LogNormal": ("scale",),
    "Binomial": ("total_count",),
    "NegativeBinomial": ("total_count",),
    "Gamma": ("concentration",),
    "Weibull": ("concentration",),
}


class Double(Parametric):
    """Everything a class needs, from `rows(theta (M, D), x, a)` -> terms and their Jacobians.
    Subclasses fill in the blanks.
    """

    backend = "numpy"

    def __init__(self, dim, initial=None, bound=np.inf):
        self.dim, self.bound = dim, bound
        self.initial = np.zeros(dim) if initial is None else np.asarray(initial, float)
        self.prior_free = np.ones(dim, bool)

    def flatten(self, params):
        return np.asarray(params["theta"], float)

    def unflatten(self, theta):
        return {"theta": np.asarray(theta, float)}

    def log_prior(self, theta):
        return np.zeros(np.shape(theta)[:-1])

    def log_prior_grad_hessian(self, theta):
        return np.zeros(self.dim), np.zeros((self.dim, self.dim))

    def draw_prior(self, n, seed):
        return self.initial + np.random.default_rng(seed).standard_normal((n, self.dim))

    def inside(self, theta):
        return np.linalg.norm(theta, axis=-1) <= self.bound

    def log_likelihood(self, theta, x, a, y):
        theta = np.asarray(theta, float)
        out = self.row_terms(np.atleast_2d(theta), x, a, np.asarray(y, float))[0]
        return out[0] if theta.ndim == 1 else out

    def total(self, theta, rows, weights=None):
        w = np.ones(rows.n) if weights is None else weights
        return self.row_terms(theta, rows.x, rows.a, rows.y)[0] @ w

    def total_grad(self, theta, rows, weights=None):
        w = np.ones(rows.n) if weights is None else weights
        value, score = self.row_terms(theta, rows.x, rows.a, rows.y)
        return value @ w, np.einsum("mnd,n->md", score, w)

    def total_hessian(self, theta, rows, weights=None):
        """Central differences of the exact gradient."""
        step = 1e-5 * np.eye(self.dim)
        plus = self.total_grad(theta + step, rows, weights)[1]
        minus = self.total_grad(theta - step, rows, weights)[1]
        with np.errstate(invalid="ignore"):  # far out both may be infinite
            out = (plus - minus) / 2e-5
        return 0.5 * (out + out.T)

    def values(self, functional, theta, x, a):
        M, n = len(theta), len(a)
        tiled = np.repeat(theta, n, axis=0)
        value = self.values_grad(functional, tiled, np.tile(x, (M, 1)), np.tile(a, M))[0]
        return value.reshape(M, n)


def linear_features(x, a):
    """Context, and nothing of the action: the action picks the context's scale."""
    return x * (1.0 + 0.5 * np.asarray(a)[:, None])


def arm_features(n_actions):
    """One block of coefficients an action."""

    def features(x, a):
        out = np.zeros((len(a), n_actions, x.shape[1]))
        out[np.arange(len(a)), a] = x
        return out.reshape(len(a), -1)

    return features


class Glm(Double):
    """Normal (known scale), Bernoulli, Poisson or Gamma (known concentration) with eta =
    features @ theta.
    """

    LINK = {"Normal": "identity", "Bernoulli": "logit", "Poisson": "log", "Gamma": "log"}  # noqa: RUF012

    def __init__(self, family, dim, features=linear_features, extra=None, exact=True, **options):
        super().__init__(dim, **options)
        self.family, self.features, self.extra = family, features, extra or {}
        if exact:
            self.predictor = LinearPredictor(
                family,
                self.LINK[family],
                features,
                lambda x, a: np.zeros(len(a)),
                lambda x, a: {name: np.full(len(a), value) for name, value in self.extra.items()},
            )

    def row_terms(self, theta, x, a, y):
        phi = self.features(x, a)
        eta = theta @ phi.T
        with np.errstate(over="ignore", invalid="ignore"):
            if self.family == "Normal":
                s = self.extra["scale"]
                value, slope = (
                    -0.5 * ((y - eta) / s) ** 2 - np.log(s) - 0.5 * np.log(2 * np.pi),
                    (y - eta) / s**2,
                )
            elif self.family == "Bernoulli":
                value, slope = y * eta - np.logaddexp(0, eta), y - expit(eta)
            elif self.family == "Poisson":
                value, slope = y * eta - np.exp(eta) - gammaln(y + 1), y - np.exp(eta)
            else:
                k = self.extra["concentration"]
                value = k * eta + (k - 1) * np.log(y) - gammaln(k) - np.exp(eta) * y
                slope = k - np.exp(eta) * y
        return value, slope[:, :, None] * phi

    def mean_slope(self, eta):
        if self.family == "Normal":
            return eta, np.ones_like(eta)
        if self.family == "Bernoulli":
            return expit(eta), expit(eta) * expit(-eta)
        with np.errstate(over="ignore"):
            if self.family == "Poisson":
                return np.exp(eta), np.exp(eta)
            mean = self.extra["concentration"] * np.exp(-eta)
        return mean, -mean

    def values_grad(self, functional, theta, x, a):
        phi = self.features(x, a)
        eta = np.sum(phi * theta, axis=1)
        if functional.name == "mean":
            value, slope = self.mean_slope(eta)
        elif functional.fn is None and self.family == "Bernoulli":
            p = expit(eta)
            value, slope = p * expit(-eta), p * expit(-eta) * (1 - 2 * p)
        elif functional.fn is None and self.family == "Normal":
            value, slope = np.full(len(a), self.extra["scale"] ** 2), np.zeros(len(a))
        elif self.family == "Bernoulli":
            one, zero = (functional.fn(np.full(len(a), y), x, a) for y in (1.0, 0.0))
            value, slope = zero + (one - zero) * expit(eta), (one - zero) * expit(eta) * expit(-eta)
        else:
            raise NotImplementedError
        return value, slope[:, None] * phi

    def simulate(self, theta, x, a, rng):
        eta = self.features(x, a) @ theta
        mean = self.mean_slope(eta)[0]
        if self.family == "Normal":
            return eta + self.extra["scale"] * rng.standard_normal(len(a))
        if self.family == "Bernoulli":
            return (rng.random(len(a)) < mean).astype(float)
        if self.family == "Poisson":
            return rng.poisson(mean).astype(float)
        k = self.extra["concentration"]
        return np.maximum(rng.gamma(k, mean / k), 1e-300)

    def density_at(self, theta, x, a):
        eta = np.asarray(theta) @ self.features(x, a).T
        if self.family == "Normal":
            return Density("Normal", {"loc": eta, "scale": np.full(eta.shape, self.extra["scale"])})
        if self.family == "Bernoulli":
            return Density("Bernoulli", {"probs": expit(eta)})
        raise NotImplementedError


class Heteroscedastic(Double):
    """y ~ Normal(phi'beta, exp(phi'gamma)), theta = (beta, gamma); `shared=True`: one log-scale
    for all rows.
    """

    def __init__(self, p, features=linear_features, shared=False, **options):
        super().__init__(p + (1 if shared else p), **options)
        self.p, self.features, self.shared = p, features, shared

    def _parts(self, x, a):
        phi = self.features(x, a)
        return phi, (np.ones((len(a), 1)) if self.shared else phi)

    def row_terms(self, theta, x, a, y):
        phi, psi = self._parts(x, a)
        with np.errstate(over="ignore", invalid="ignore"):
            log_scale = theta[:, self.p :] @ psi.T
            z = (y - theta[:, : self.p] @ phi.T) * np.exp(-log_scale)
            value = -0.5 * z**2 - log_scale - 0.5 * np.log(2 * np.pi)
            score = np.concatenate(
                [(z * np.exp(-log_scale))[:, :, None] * phi, (z**2 - 1)[:, :, None] * psi], axis=2
            )
        return value, score

    def values_grad(self, functional, theta, x, a):
        phi, psi = self._parts(x, a)
        if functional.name == "mean":
            return np.sum(phi * theta[:, : self.p], axis=1), np.hstack([phi, np.zeros_like(psi)])
        with np.errstate(over="ignore"):
            variance = np.exp(2 * np.sum(psi * theta[:, self.p :], axis=1))
        return variance, np.hstack([np.zeros_like(phi), 2 * variance[:, None] * psi])

    def density_at(self, theta, x, a):
        phi, psi = self._parts(x, a)
        theta = np.asarray(theta)
        return Density(
            "Normal",
            {"loc": theta[..., : self.p] @ phi.T, "scale": np.exp(theta[..., self.p :] @ psi.T)},
        )

    def simulate(self, theta, x, a, rng):
        phi, psi = self._parts(x, a)
        return phi @ theta[: self.p] + np.exp(psi @ theta[self.p :]) * rng.standard_normal(len(a))


class TanhNet(Double):
    """y ~ Normal(sum_h v_h tanh(w_h x + b_h) + c, scale), one input: 3 H + 1 parameters."""

    def __init__(self, hidden=3, scale=0.1, seed=0):
        start = np.random.default_rng(seed).standard_normal(3 * hidden + 1)
        super().__init__(3 * hidden + 1, initial=start)
        self.hidden, self.scale = hidden, scale

    def _net(self, theta, x):
        """theta (M, D), x (M, n) -> output (M, n), gradient (M, n, D)."""
        H = self.hidden
        w, b, v, c = (
            theta[:, None, :H],
            theta[:, None, H : 2 * H],
            theta[:, None, 2 * H : 3 * H],
            theta[:, None, 3 * H],
        )
        t = np.tanh(w * x[:, :, None] + b)
        back = v * (1 - t**2)
        grad = np.concatenate([back * x[:, :, None], back, t, np.ones((*x.shape, 1))], axis=2)
        return np.sum(v * t, axis=2) + c, grad

    def row_terms(self, theta, x, a, y):
        out, grad = self._net(theta, np.broadcast_to(x[:, 0], (len(theta), len(x))))
        z = (y - out) / self.scale
        value = -0.5 * z**2 - np.log(self.scale) - 0.5 * np.log(2 * np.pi)
        return value, (z / self.scale)[:, :, None] * grad

    def values_grad(self, functional, theta, x, a):
        shift = x[:, :1] + np.asarray(a)[:, None]  # an action looks a step to the right
        out, grad = self._net(theta, shift)
        return out[:, 0], grad[:, 0]

    def simulate(self, theta, x, a, rng):
        return self._net(theta[None], x[:, 0][None])[0][0] + self.scale * rng.standard_normal(
            len(x)
        )


def some_rows(cls, theta, n, dx, seed, n_actions=2):
    """Rows of a fixed design with outcomes from theta."""
    rng = np.random.default_rng(seed)
    x, a = rng.standard_normal((n, dx)), rng.integers(0, n_actions, n)
    return Rows.of(x, a, cls.simulate(np.asarray(theta, float), x, a, rng))


class OnePredictorDouble(Double):
    """Any (family, link) of the table of one-predictor families, eta = features @ theta."""

    def __init__(
        self, family, link, dim, features=linear_features, extra=None, offset=0.0, **options
    ):
        super().__init__(dim, **options)
        self.family, self.features, self.extra, self.offset = family, features, extra or {}, offset
        self.table = FAMILIES[family, link]
        self.predictor = LinearPredictor(
            family, link, features, lambda x, a: np.full(len(a), offset), self.fixed
        )

    def fixed(self, x, a):
        return {name: np.full(len(a), value) for name, value in self.extra.items()}

    def eta(self, theta, x, a):
        return np.asarray(theta) @ self.features(x, a).T + self.offset

    def row_terms(self, theta, x, a, y):
        with np.errstate(all="ignore"):
            value, slope, _ = self.table.terms(self.eta(theta, x, a), y, self.fixed(x, a))
        return value, slope[:, :, None] * self.features(x, a)

    def density_at(self, theta, x, a):
        eta = self.eta(theta, x, a)
        fixed = {
            name: np.broadcast_to(value, eta.shape) for name, value in self.fixed(x, a).items()
        }
        return Density(self.family, self.table.arguments(eta, fixed))

    def values_grad(self, functional, theta, x, a):
        """Row i at its own theta[i]; the gradient by central differences in eta."""
        phi = self.features(x, a)
        eta, h = np.sum(phi * theta, axis=1) + self.offset, 1e-6
        low, high = self.table.domain
        values = []
        for e in (eta, eta + h, eta - h):
            arguments = self.table.arguments(np.clip(e, low, high), self.fixed(x, a))
            with np.errstate(all="ignore"):
                values.append(
                    np.asarray(functional(Density(self.family, arguments), x=x, a=a), float)
                )
        return values[0], ((values[1] - values[2]) / (2 * h))[:, None] * phi

    def simulate(self, theta, x, a, rng):
        return self.density_at(theta, x, a).sample(int(rng.integers(2**31)), 1)[0]


class ScaleDouble(Double):
    """Normal or LogNormal with location features @ beta + offset and scale exp(theta[p +
    group]): theta = (beta, log sigma).
    """

    def __init__(
        self,
        p,
        family="Normal",
        features=linear_features,
        group=None,
        n_groups=1,
        offset=0.0,
        prior_sd=None,
        **options,
    ):
        super().__init__(p + n_groups, **options)
        self.p, self.family, self.features, self.prior_sd = p, family, features, prior_sd
        self.group = group or (lambda x, a: np.zeros(len(a), int))
        self.offset, self.n_groups = offset, n_groups
        self.prior_free = np.full(self.dim, prior_sd is None)
        self.location_scale = LocationScale(
            family,
            features,
            lambda x, a: np.full(len(a), offset),
            self.group,
            n_groups,
            self.from_theta,
            lambda v, scale: np.hstack([v, np.log(scale)]),
        )

    def draw_prior(self, n, seed):
        return self.initial + (self.prior_sd or 1.0) * np.random.default_rng(seed).standard_normal(
            (n, self.dim)
        )

    def from_theta(self, theta):
        return theta[:, : self.p], np.exp(theta[:, self.p :])

    def _told(self, y):
        return (np.log(y), np.log(y)) if self.family == "LogNormal" else (y, np.zeros_like(y))

    def row_terms(self, theta, x, a, y):
        phi, told = self.features(x, a), self._told(y)
        psi = np.eye(self.n_groups)[self.group(x, a)]
        log_scale = theta[:, self.p :] @ psi.T
        z = (told[0] - self.offset - theta[:, : self.p] @ phi.T) * np.exp(-log_scale)
        value = -0.5 * z**2 - log_scale - 0.5 * np.log(2 * np.pi) - told[1]
        score = np.concatenate(
            [(z * np.exp(-log_scale))[:, :, None] * phi, (z**2 - 1)[:, :, None] * psi], axis=2
        )
        return value, score

    def density_at(self, theta, x, a):
        theta = np.atleast_2d(theta)
        scale = np.exp(theta[:, self.p :])[:, self.group(x, a)]
        return Density(
            self.family,
            {"loc": theta[:, : self.p] @ self.features(x, a).T + self.offset, "scale": scale},
        )

    def values_at(self, functional, theta, x, a):
        """(n,) at one theta (D,)."""
        return np.asarray(functional(self.density_at(theta, x, a), x=x, a=a), float)[0]

    def simulate(self, theta, x, a, rng):
        z = self.offset + self.features(x, a) @ theta[: self.p]
        z = z + np.exp(theta[self.p + self.group(x, a)]) * rng.standard_normal(len(a))
        return np.exp(z) if self.family == "LogNormal" else z
