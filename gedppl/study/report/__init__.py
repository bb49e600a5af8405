"""From a run to files: ArviZ, pictures and one HTML page. Only this room and `plots` touch ArviZ
and matplotlib.

Axis letters: T rounds, K actions, J constraints, M members.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import InputError, SettingError
from gedppl.learning import arviz_shim
from gedppl.study.report import page, plots

if TYPE_CHECKING:
    from gedppl.study.simulation.runs import Run

__all__ = ["certificate_round", "pictures", "to_arviz", "write_report"]

DPI = 150
NETCDF, PAGE = "run.nc", "report.html"


def to_arviz(run: Run) -> Any:
    """The run for ArviZ: `InferenceData` (ArviZ 0.x) or an xarray `DataTree` (ArviZ 1.x), whichever
    is installed.

    ==================
    =============================================================================================
    group               variables
    ==================
    =============================================================================================
    observed_data
        action (round), and each outcome by name: (round), or (round, action) if several were
        revealed
    constant_data       x (round, feature), and the segments' labels (round)
    policies            policy (round, action), propensity (round)
    bounds
        worst_case, limit, realised (round, constraint); cost_lower, cost_upper (round, constraint,
        action);
                        estimate (round, action)
    truth
        utilities (round, action), costs (round, constraint, action), utility, best, regret (round),
                        cost (round, constraint); NaN where the environment does not know it
    members             draws from the last confidence sets, "outcome: site" (draw, ...)
    ==================
    =============================================================================================

    Members of a confidence set are no MCMC draws: r-hat and effective sample sizes mean nothing
    there, hence no posterior.
    """
    import xarray

    attributes = _attributes(run)
    groups = {
        name: xarray.Dataset(variables, coords=_coords(run, variables), attrs=attributes)
        for name, variables in _groups(run).items()
        if variables
    }
    return arviz_shim.from_groups(groups)


Variables = dict[str, tuple[tuple[str, ...], np.ndarray]]


def _groups(run: Run) -> dict[str, Variables]:
    per_action, per_limit = ("round", "constraint", "action"), ("round", "constraint")
    observed: Variables = {"action": (("round",), run.action)}
    for name, values in run.outcomes().items():
        key = _variable(name, observed)
        revealed = values.shape[1:] == (run.problem.n_actions,)
        extra = (
            ("action_dim",) if revealed else tuple(f"{key}_dim_{i}" for i in range(values.ndim - 1))
        )
        observed[key] = (("round", *extra), values)
    constant: Variables = {"x": (("round", "feature"), run.x)}
    for name, labels in run.segments.items():
        constant[_variable(name, constant)] = (("round",), np.array(labels, dtype=str))
    bounds: Variables = {"estimate": (("round", "action"), run.estimate)}
    truth: Variables = {
        "utilities": (("round", "action"), run.utilities),
        "utility": (("round",), run.utility),
        "best": (("round",), run.best),
        "regret": (("round",), run.regret),
    }
    if run.problem.constraint_names:
        bounds |= {
            "worst_case": (per_limit, run.worst_case),
            "limit": (per_limit, run.limit),
            "realised": (per_limit, run.realised),
            "cost_lower": (per_action, run.cost_lower),
            "cost_upper": (per_action, run.cost_upper),
        }
        truth |= {"cost": (per_limit, run.cost), "costs": (per_action, run.costs)}
    members: Variables = {}
    for outcome, sites in run.members.items():
        for site, draws in sites.items():
            key = _variable(f"{outcome}: {site}", members)
            extra = tuple(f"{key}_dim_{i}" for i in range(draws.ndim - 1))
            members[key] = ((_variable(f"{outcome}: draw", members), *extra), draws)
    return {
        "observed_data": observed,
        "constant_data": constant,
        "policies": {
            "policy": (("round", "action"), run.policy),
            "propensity": (("round",), run.propensity),
        },
        "bounds": bounds,
        "truth": truth,
        "members": members,
    }


def _variable(name: str, taken: Variables) -> str:
    """A name that netCDF allows and that is neither a dimension nor taken."""
    clean = name.replace("/", "_")
    clash = clean in taken or clean in ("round", "action", "action_dim", "constraint", "feature")
    return f"{clean} (given name)" if clash else clean


def _coords(run: Run, variables: Variables) -> dict[str, Any]:
    used = {dim for dims, _ in variables.values() for dim in dims}
    names = {
        "round": np.arange(len(run)),
        "action": run.action_names,
        "action_dim": run.action_names,
        "constraint": list(run.problem.constraint_names),
        "feature": run.context_names,
    }
    # a coordinate may not share its name with a variable of other dimensions
    return {dim: values for dim, values in names.items() if dim in used and dim not in variables}


def _attributes(run: Run) -> dict[str, Any]:
    safe = run.problem.safe_action
    return {
        "created_by": "gedppl",
        "seed": run.seed,
        "safe_action": -1 if safe is None else int(safe),
    }


# pictures and page --------------------------------------------------------------------------------


def pictures(run: Run) -> dict[str, Any]:
    """Every picture this run allows, file name -> axes: regret, policies, and cost, bounds and
    trade-off of each limit.
    """
    wanted: dict[str, Any] = {
        "regret": lambda: plots.plot_regret(run),
        "policy_map": lambda: plots.plot_policy_map(run),
    }
    names = run.problem.constraint_names
    for j in range(len(names)):
        tail = "" if len(names) == 1 else f"_{j}"
        wanted[f"cost_bounds{tail}"] = lambda j=j: plots.plot_cost_bounds(run, j)
        wanted[f"action_bounds{tail}"] = lambda j=j: plots.plot_action_bounds(run, j)
        wanted[f"tradeoff{tail}"] = lambda j=j: plots.plot_tradeoff(run, j)
    drawn = {}
    for name, draw in wanted.items():
        try:
            drawn[name] = draw()
        except InputError:
            # no known truth, or an agent without bounds: that picture does not exist for this run
            continue
    return drawn


def certificate_round(run: Run, decision: int | None = None) -> int:
    """The decision to show in full: the given one; else the last that mixes actions or plays
    another than the safe one.
    """
    if decision is not None:
        if not -len(run) <= decision < len(run):
            raise SettingError(
                f"there is no decision {decision}; the run has decisions 0, ..., {len(run) - 1}"
            )
        return decision % len(run)
    policy, safe = run.policy, run.problem.safe_action
    bold = np.flatnonzero((policy > 0).sum(axis=1) > 1)
    if not len(bold) and safe is not None:
        bold = np.flatnonzero(policy[:, safe] < 1)
    return int(bold[-1]) if len(bold) else len(run) - 1


def write_report(
    run: Run, folder: str | Path, *, decision: int | None = None, netcdf: bool = True
) -> Path:
    """Write ``run.nc``, the pictures as PNG, and ``report.html``, which holds the pictures and
    needs no other file.
    """
    if not len(run):
        raise SettingError("the run has no rounds, so there is nothing to report; run some first")
    target = Path(folder)
    shown = certificate_round(run, decision)
    target.mkdir(parents=True, exist_ok=True)
    images = {}
    for name, ax in pictures(run).items():
        buffer = io.BytesIO()
        ax.figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
        images[name] = buffer.getvalue()
        (target / f"{name}.png").write_bytes(images[name])
    (target / PAGE).write_text(page.render(run, images, shown), encoding="utf-8")
    if netcdf:
        arviz_shim.write_netcdf(to_arviz(run), target / NETCDF)
    return target / PAGE
