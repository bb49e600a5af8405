"""gedppl: safe sequential decisions from probabilistic programs.

Declare a utility and a constraint as NumPyro or Pyro programs, name a safe action, then `ask` and `tell`. Names are loaded
when first used, so that importing the package is instant and loads neither JAX, torch nor ArviZ.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "agent": ("AlarmWarning", "Decision", "FallbackWarning", "GEDUCB", "SafeActionWarning", "resume"),
    "certificate": ("Certificate", "Explanation"),
    "classes": ("density_class", "finite_class"),
    "confidence": ("ConfidenceSet", "confidence_set", "shrinkage"),
    "counterfactual": ("expected_inverse_count",),
    "density": ("Density",),
    "divergences": ("hellinger2", "l2_squared", "register_divergence", "total_variation"),
    "families": ("register_family",),
    "functionals": ("cvar", "expected", "mean", "probability", "quantile", "second_moment", "variance"),
    "guarantees": ("check_guarantee", "guarantee"),
    "guarantees.lemma_checks": ("check_lemmas",),
    "oracles": ("least_squares", "mle", "score_equations"),
    "planning": ("Scenario", "StoppingRules", "plan"),
    "planning.price": ("Price", "price"),
    "report.plots": ("plot_cost_bounds", "plot_policy_map", "plot_regret", "plot_shrinkage", "plot_tradeoff", "plot_width"),
    "problem": ("Constraint", "Problem", "Utility", "known_cost"),
    "radius": ("hellinger_ball", "likelihood_ratio", "paper_radius", "parametric_bootstrap", "posterior_quantile"),
    "simulation.replay": ("Replay",),
    "selection": ("select_policy",),
    "simulation": ("Run", "simulate"),
    "oracles.variational": ("svi",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_ROOMS = ("baselines", "eluder", "errors", "guard", "offpolicy", "oracles", "radius", "report")

__all__ = sorted([*_HOME, *_ROOMS])


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"gedppl.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(f"gedppl.{_HOME[name]}"), name)
    raise AttributeError(f"module 'gedppl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
