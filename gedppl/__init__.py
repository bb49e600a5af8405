"""gedppl: safe sequential decisions from probabilistic programs.

Declare a utility and a constraint as NumPyro or Pyro programs, name a safe action, then `ask` and
`tell`. Names are loaded when first used, so that importing the package is instant and loads neither
JAX, torch nor ArviZ.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

_HOMES = {
    "agent": (
        "AlarmWarning",
        "Decision",
        "FallbackWarning",
        "GEDUCB",
        "SafeActionWarning",
    ),
    "agent.starting": ("ThompsonSampling", "resume"),
    "certificate": ("Certificate", "Explanation"),
    "programs.contract": ("density_class", "finite_class"),
    "counterfactual": ("expected_inverse_count",),
    "density": ("Density",),
    "divergences": ("hellinger2", "l2_squared", "register_divergence", "total_variation"),
    "families": ("register_family",),
    "functionals": (
        "cvar",
        "expected",
        "mean",
        "probability",
        "quantile",
        "second_moment",
        "variance",
    ),
    "learning": ("ConfidenceSet", "confidence_set"),
    "learning.shrinking": ("shrinkage",),
    "learning.posterior": ("Posterior",),
    "learning.radius": (
        "hellinger_ball",
        "likelihood_ratio",
        "paper_radius",
        "parametric_bootstrap",
        "posterior_quantile",
    ),
    "learning.credible": ("credible_set", "sampled_set"),
    "learning.oracles": ("least_squares", "mle", "score_equations"),
    "learning.variational": ("svi",),
    "problem": ("Constraint", "Problem", "Utility", "known_cost"),
    "selection": ("select_policy",),
    "study.comparing": ("ModelComparison", "compare_models"),
    "study.planning": ("Scenario", "StoppingRules", "plan"),
    "study.planning.coverage": ("Coverage", "check_coverage"),
    "study.planning.paths": ("DecisionTable", "decision_table"),
    "study.planning.price": ("Price", "price"),
    "study.planning.problem_check": ("ProblemReport", "check_problem"),
    "study.planning.shared_draws": ("shared_draws",),
    "study.report.plots": (
        "plot_action_bounds",
        "plot_cost_bounds",
        "plot_policy_map",
        "plot_regret",
        "plot_shrinkage",
        "plot_tradeoff",
        "plot_width",
    ),
    "study.simulation": ("Run", "simulate"),
    "study.simulation.many": ("simulate_many",),
    "study.simulation.replay": ("Replay",),
    "theory.guarantees": ("check_guarantee", "guarantee"),
    "theory.guarantees.lemma_checks": ("check_lemmas",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_ROOMS = {
    "baselines": "study.baselines",
    "eluder": "theory.eluder",
    "errors": "errors",
    "guard": "guard",
    "offpolicy": "study.offpolicy",
    "oracles": "learning.oracles",
    "radius": "learning.radius",
    "report": "study.report",
}

__all__ = sorted([*_HOME, *_ROOMS])


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"gedppl.{_ROOMS[name]}")
    if name in _HOME:
        return getattr(importlib.import_module(f"gedppl.{_HOME[name]}"), name)
    raise AttributeError(f"module 'gedppl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
