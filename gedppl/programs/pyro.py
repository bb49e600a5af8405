"""A Pyro program, run with its parameters filled in: sites, priors, and the observed distribution
as torch functions.

Nothing of Pyro's or torch's global state is changed for good: the parameter store is scoped, the
default dtype and the random state are put back, and modules are never written to. A module's
parameters are swapped for ours while its operations run, which also lifts it to float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch.distributions import constraints, transforms
from torch.overrides import TorchFunctionMode

from gedppl.errors import ContextRangeError, ModelError, SiteClashError
from gedppl.programs import LOCK
from gedppl.programs.affine import Level, levels
from gedppl.programs.backend import Pass
from gedppl.programs.checks import (
    SiteRecord,
    analyse,
    assignments,
    is_discrete,
    name_sites,
    refuse_outcome_use,
    refuse_unsteady,
)
from gedppl.programs.identity import looks_alike, settings
from gedppl.programs.lowering import (
    is_masked,
    may_cross,
    strip,
)
from gedppl.programs.torch_bijections import biject_to, is_identity
from gedppl.programs.torch_kernels import TorchKernels, as_tensor, inside_arrays
from gedppl.programs.torch_reader import listing
from gedppl.programs.tracing import Site, support_of

if TYPE_CHECKING:
    from gedppl.programs.contract import Distribution, Program


# told in place of zeros, to see whether a program looks at them
OTHER_OUTCOMES = (1.0, -1e3, 1e3, 1e9)
_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_LEAVES = ("numpy", "__array__")
_WRITES = (
    "__setitem__",
    "__iadd__",
    "__isub__",
    "__imul__",
    "__itruediv__",
    "__ipow__",
    "__idiv__",
)


class _Swap(TorchFunctionMode):
    """Operations see our values in place of a module's own parameters, and float64 in place of
    narrower floats.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[int, torch.Tensor] = {}

    def put(self, msg: dict[str, Any], value: torch.Tensor) -> None:
        """A module registers its parameters as initial values of `param` sites: from now on they
        mean our value.
        """
        for part in msg["args"]:
            if isinstance(part, torch.nn.Parameter):
                self.values[id(part)] = value

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        # a distribution made outside validates its values: ours are checked at the door
        if name == "_is_all_true":
            return True
        if func == torch.Tensor.requires_grad.__get__:  # must see the tensor itself
            return func(*args, **(kwargs or {}))
        # an attribute of a tensor, such as its transpose, is widened when it is used
        widen = name != "__get__"
        swapped = {key: self._swapped(value, widen) for key, value in (kwargs or {}).items()}
        if name == "one_hot":
            return _one_hot(*args, **swapped)
        if name in _LEAVES:
            return _outside(func, args, swapped)
        writes = name in _WRITES or (name.endswith("_") and not name.endswith("__"))
        target = args[:1] if writes else ()  # a widened copy would take the write, and be dropped
        return func(*target, *self._swapped(args[len(target) :], widen), **swapped)

    def _swapped(self, value: torch.Tensor, widen: bool) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) in self.values:
                return self.values[id(value)]
            return value.double() if widen and value.dtype in _NARROW else value
        if type(value) in (tuple, list):
            return type(value)(self._swapped(part, widen) for part in value)
        return value


def _outside(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tensor as an array of NumPy's, which torch cannot follow any further."""
    try:
        return func(*args, **kwargs)
    except RuntimeError as failure:
        raise ModelError(
            "the model hands x, a or a parameter to NumPy, where its graph ends: write "
            "torch.as_tensor(table)[a] in place of numpy_table[a], and torch.exp in place of np.exp"
        ) from failure


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """torch.nn.functional.one_hot as rows of the identity: torch's own looks at the values while it
    runs, so that it can be neither recorded nor vectorised.
    """
    size = int(tensor.max()) + 1 if num_classes < 0 else num_classes
    return torch.eye(size, dtype=torch.int64)[tensor]


@contextmanager
def quiet() -> Iterator[_Swap]:
    """The same around a run of the program, with a parameter store of our own."""
    swap = _Swap()
    with _plain(), pyro.get_param_store().scope(), swap:
        yield swap


@contextmanager
def _plain() -> Iterator[None]:
    """One thread at a time; new tensors are float64; no validation, because values are checked
    at the door, in NumPy.
    """
    with LOCK, pyro.validation_enabled(False):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


class PyroRecorder(Messenger):
    """Notes every site of one run, as the handlers inside the program left it."""

    def __init__(self, swap: _Swap) -> None:
        super().__init__()
        self.records: list[SiteRecord] = []
        self.swap = swap
        self.registered: dict[int, str] = {}  # a module's parameter -> the site it came as

    def _pyro_post_param(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        for part in msg["args"]:
            if (
                isinstance(part, torch.nn.Parameter)
                and self.registered.setdefault(id(part), name) != name
            ):
                raise SiteClashError(
                    "one parameter of a module is registered twice, as "
                    f"{self.registered[id(part)]!r} and as {name!r}; "
                    "a PyroModule registers its own: leave pyro.module(...) out"
                )
        value = msg["value"].detach().double()
        self.swap.put(msg, value)
        msg["value"] = value
        constraint = pyro.get_param_store().get_state()["constraints"].get(name, constraints.real)
        self.records.append(
            SiteRecord(
                name, "param", value=value, shapes=(tuple(value.shape),), constraint=constraint
            )
        )

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if is_flat(msg):
            transform = biject_to(msg["fn"].support)
            free = torch.zeros(transform.inverse_shape(msg["fn"].shape()))
            msg["value"], msg["done"] = transform(free), True

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        name, fn, value = msg["name"], msg["fn"], msg["value"]
        if site_is_subsample(msg):
            whole = fn.subsample_size is None or fn.subsample_size >= fn.size
            self.records.append(SiteRecord(name, "plate", subsampled=not whole))
        elif isinstance(fn, dist.Unit):
            self.records.append(SiteRecord(name, "factor"))
        elif not is_deterministic(msg):
            self.records.append(
                SiteRecord(
                    name,
                    "param" if is_flat(msg) else "sample",
                    value=value,
                    fn=fn,
                    observed=msg["is_observed"],
                    scaled=not (isinstance(msg["scale"], int | float) and msg["scale"] == 1),
                    masked=is_masked(fn) or not (msg["mask"] is None or msg["mask"] is True),
                    discrete=is_discrete(fn),
                    outcomes=None if msg["is_observed"] else _outcomes(fn),
                    shapes=(tuple(value.shape),),
                    constraint=fn.support,
                )
            )


def is_flat(msg: dict[str, Any]) -> bool:
    """Whether a site says that it has no prior, so that nothing can be drawn: a `param` then."""
    return isinstance(msg["fn"], dist.ImproperUniform) and not msg["is_observed"]


def is_deterministic(msg: dict[str, Any]) -> bool:
    """Whether a site only names a value: a deterministic statement, or what a reparametrisation
    leaves in the place of the site that it replaced.
    """
    fn = msg["fn"]
    named = isinstance(fn, dist.MaskedDistribution) and fn._mask is False
    return bool(msg["infer"].get("_deterministic")) or (
        named and msg["is_observed"] and isinstance(fn.base_dist, dist.Delta)
    )


def _outcomes(fn: Distribution) -> np.ndarray | None:
    """The values a discrete distribution can take, if they are finitely many."""
    if not fn.has_enumerate_support or not is_discrete(fn):
        return None
    try:
        return np.unique(fn.enumerate_support(expand=False).numpy())
    except NotImplementedError:  # they differ from row to row
        return None


@contextmanager
def untouched() -> Iterator[None]:
    """A program that runs inside leaves no trace in the parameter store or the random state."""
    with LOCK, pyro.get_param_store().scope(), torch.random.fork_rng(devices=[]):
        yield


def record(
    model: Program, x: np.ndarray, a: np.ndarray
) -> tuple[list[SiteRecord], Exception | None]:
    """The sites of one seeded run, and what the program raised, if it did."""
    placeholder = as_tensor(np.zeros(len(a)))
    with quiet() as swap, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        recorder = PyroRecorder(swap)
        try:
            with recorder:
                model(as_tensor(x), as_tensor(a), placeholder)
        except Exception as failure:
            # whatever a user's program raises; the caller decides what it means
            return recorder.records, failure
        for site in recorder.records:
            site.sees_y = site.value is placeholder
        return recorder.records, None


class PyroFill(Messenger):
    """Fills parameters from a flat vector and discrete row latents from an assignment; keeps
    priors and the outcome.
    """

    def __init__(
        self,
        program: PyroProgram,
        swap: _Swap,
        theta: torch.Tensor,
        assignment: Mapping[str, Any],
        given: Any,
    ) -> None:
        super().__init__()
        self.program, self.swap, self.theta = program, swap, theta
        self.assignment, self.given = assignment, given
        self.values: dict[str, Any] = {}
        self.free: dict[str, Any] = {}
        self.log_prior: Any = 0.0
        self.log_jacobian: Any = 0.0
        self.log_weight: Any = 0.0
        self.observed: Any = None
        self.supports: dict[str, tuple[float, float, str]] = {}

    def _pyro_param(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        (site,) = self.program.groups[name]
        value, _ = self._leaf(site, biject_to(self.program.constraint_of(name)), None)
        value = value.clone()  # a program that writes into its parameter must not write into theta
        self.swap.put(msg, value)
        msg["value"], msg["done"] = value, True

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        name, fn = msg["name"], msg["fn"]
        if site_is_subsample(msg):
            return
        if name == self.program.observed:
            self.observed = fn
            if not msg["is_observed"]:  # run without y: nothing needs to be drawn
                msg["value"], msg["done"] = torch.zeros(fn.shape()), True
        elif name in self.assignment:
            value = torch.full(tuple(fn.batch_shape), float(self.assignment[name]))
            self.log_weight = self.log_weight + fn.log_prob(value)
            msg["value"] = value if isinstance(strip(fn), dist.Bernoulli) else value.long()
            msg["done"] = True
        elif not msg["is_observed"]:
            (site,) = self.program.groups[name]
            transform = biject_to(fn.support)
            self.supports[name] = support_of(fn.support)
            if is_flat(msg):
                msg["value"], msg["done"] = self._leaf(site, transform, None)[0].clone(), True
                return
            value, free = self._leaf(site, transform, fn.sample() if self.given == "draw" else None)
            jacobian = transform.log_abs_det_jacobian(free, value).sum()
            self.log_prior = self.log_prior + fn.log_prob(value).sum() + jacobian
            self.log_jacobian = self.log_jacobian + jacobian
            msg["value"], msg["done"] = value.clone(), True

    def _leaf(
        self, site: Site, transform: transforms.Transform, drawn: torch.Tensor
    ) -> tuple[Any, Any]:
        """The constrained and unconstrained value of one array: from theta, given by name, or
        drawn.
        """
        value = self.given[site.name] if isinstance(self.given, Mapping) else drawn
        if value is None:
            free = self.theta[site.start : site.stop].reshape(site.free_shape)
            value = transform(free)
        else:
            free = transform.inv(value)
        self.values[site.name], self.free[site.name] = value, free
        return value, free


class PyroProgram(TorchKernels):
    """A Pyro program whose sites are known."""

    backend = "pyro"

    def __init__(self, model: Program, x: np.ndarray, a: np.ndarray) -> None:
        super().__init__()
        self.model = model
        self.x, self.a = x[:1].copy(), a[:1].copy()  # torch wants arrays that may be written to
        outline = analyse(lambda x, a: record(model, x, a), x, a, params_may_repeat=True)
        self.observed, self.event_shape = outline.observed, outline.event_shape
        arrays = []
        for site in outline.parameters:
            shape = tuple(site.value.shape)
            free_shape = tuple(biject_to(site.constraint).inverse_shape(torch.Size(shape)))
            arrays.append((site.name, "", site.kind == "sample", shape, free_shape))
        self.sites, self.groups = name_sites(arrays)
        self.dim = self.sites[-1].stop if self.sites else 0
        self._constraints = {site.name: site.constraint for site in outline.parameters}
        self._start = {site.name: site.value for site in outline.parameters if site.kind == "param"}
        self.ranges = {site.name: support_of(site.constraint) for site in outline.parameters}
        self.unconstrained = all(is_identity(site.constraint) for site in outline.parameters)
        self.assignments = assignments(outline.enumerated)
        self.discrete = is_discrete(outline.observed_fn)
        self.has_cutpoints = may_cross(outline.observed_fn)
        self.support_name = str(outline.observed_fn.support)
        self._check_outcome_use()
        self._check_stays_in_torch()
        self.ranges.update(self._ranges_of_priors())
        found = [self.identify(assignment) for assignment in self.assignments]
        self.known_family, self.packaged = (
            all(one.known for one in found),
            all(one.packaged for one in found),
        )

    def quietly(self) -> AbstractContextManager[Any]:
        return _plain()

    def outcome(self, y: torch.Tensor) -> torch.Tensor:
        return y

    def supports(self, observed: Distribution, y: torch.Tensor) -> Any:
        return observed.support.check(y)

    def _check_stays_in_torch(self) -> None:
        """Refuse a program that hands its rows or parameters to NumPy: what comes back is a
        constant to whoever records or differentiates it, so that the predictor was read without it.
        """
        x, a = (np.repeat(part[None], 2, axis=0) for part in (self.x, self.a))

        def prior(*args: torch.Tensor) -> torch.Tensor:
            return self.as_float(self._filled(*args).log_prior)

        try:
            with LOCK:
                torch.func.vmap(prior)(*map(as_tensor, (settings(self.dim)[1:], x, a)))
        except ModelError:
            raise
        except (RuntimeError, NotImplementedError, ValueError):
            # it decides by its values, or has no vectorised form: then it is not recorded
            return

    def _ranges_of_priors(self) -> dict[str, tuple[float, float, str]]:
        """The supports of sample sites, as far as no other site sets them: an end that theta moves
        has a gradient, or is another one at other settings.
        """
        runs = []
        try:
            for theta in settings(self.dim):
                asked = as_tensor(theta).requires_grad_()
                runs.append(self._filled(asked, as_tensor(self.x), as_tensor(self.a)).supports)
        except RuntimeError:
            # a program that takes parameters out of the graph; nothing is claimed of its sites
            runs = [{site.name: (np.nan, np.nan, "") for site in self.sites if site.prior}]
        return {
            name: (
                low if all(run[name][0] == low for run in runs) else -np.inf,
                high if all(run[name][1] == high for run in runs) else np.inf,
                together,
            )
            for name, (low, high, together) in runs[0].items()
        }

    def _check_outcome_use(self) -> None:
        """Refuse a program in which y does more than to be observed."""
        zeros = torch.zeros((len(self.a), *self.event_shape), dtype=torch.float64)
        rows = (
            as_tensor(settings(self.dim)[1]),
            as_tensor(self.x),
            as_tensor(self.a),
            zeros.clone(),
        )  # a graph tells tensors apart by identity

        def logs(
            y: torch.Tensor,
            theta: torch.Tensor,
            x: torch.Tensor,
            a: torch.Tensor,
            value: torch.Tensor,
        ) -> list[Any]:
            one = self.run(theta, x, a, y=y)
            with _plain():
                return [
                    one.observed.log_prob(value),
                    one.log_prior,
                    torch.as_tensor(one.log_weight),
                ]

        def differs(y: torch.Tensor) -> bool:
            pairs = zip(logs(zeros, *rows), logs(y, *rows))
            return any(
                looks_alike(*(part.detach().numpy() for part in pair)) is False for pair in pairs
            )

        refuse_unsteady(differs(zeros))
        try:
            depends = any(level is not Level.FREE for level in levels(listing(logs, zeros, *rows)))
        except RuntimeError:
            # the program looks at values while it runs, so it has no fixed graph
            depends = False
        # values that left the graph, through NumPy or a branch, are seen by what they do only
        depends = depends or any(differs(zeros + value) for value in OTHER_OUTCOMES)
        refuse_outcome_use(depends, False, self.observed)
        try:
            other = differs(None)
        except Exception:
            # whatever a user's program raises without y: then it has nothing to say there
            return
        refuse_outcome_use(False, other, self.observed)

    # one pass through the program -----------------------------------------------------------------

    def run(
        self,
        theta: torch.Tensor,
        x: torch.Tensor,
        a: torch.Tensor,
        *,
        assignment: Mapping[str, Any] | None = None,
        given: Any = None,
        y: torch.Tensor = "zeros",
    ) -> Pass:
        """Run the program at a flat vector (or at `given` constrained values); works inside
        torch.func transforms.

        What y is does not matter, which `_check_outcome_use` makes sure of.
        """
        fill = self._filled(theta, x, a, assignment, given, y)
        if fill.observed is None:
            raise ModelError(
                f"the observed site {self.observed!r} was not reached: sites must not "
                "depend on x, a or y"
            )
        logs = self.as_float(fill.log_prior), self.as_float(fill.log_jacobian)
        return Pass(fill.observed, lambda: logs, fill.log_weight, fill.values, fill.free)

    def _filled(
        self,
        theta: torch.Tensor,
        x: torch.Tensor,
        a: torch.Tensor,
        assignment: Mapping[str, Any] | None = None,
        given: Any = None,
        y: torch.Tensor | str = "zeros",
    ) -> PyroFill:
        if isinstance(y, str):
            y = torch.zeros((x.shape[0], *self.event_shape), dtype=torch.float64)
        with quiet() as swap:
            fill = PyroFill(
                self, swap, theta, self.assignments[0] if assignment is None else assignment, given
            )
            with inside_arrays(), fill:
                self.model(x, a, y)
        return fill

    # what is asked once ---------------------------------------------------------------------------

    def named_leaves(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters by name; tensors become arrays."""
        return {
            name: np.asarray(value.detach() if isinstance(value, torch.Tensor) else value)
            for name, value in params.items()
        }

    def constraint_of(self, name: str) -> Any:
        return self._constraints[name]

    def default_initial(self) -> np.ndarray:
        """Where fits start: `param` sites at their own initial value, sample sites at the median
        of 99 prior draws.
        """
        start = np.zeros(self.dim)
        for name, value in self._start.items():
            (site,) = self.groups[name]
            start[site.start : site.stop] = (
                biject_to(self._constraints[name]).inv(value).detach().numpy().ravel()
            )
        has_prior = [np.arange(site.start, site.stop) for site in self.sites if site.prior]
        if has_prior:
            index = np.concatenate(has_prior)
            start[index] = np.median(self.draw_prior(99, 0, start, jitter=0.0)[:, index], axis=0)
        return start

    def feasible(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """An outcome a row that the model itself draws at theta, to try its log-density on; NaN
        if it cannot.
        """
        with _plain(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            observed = self.run(as_tensor(theta), as_tensor(x), as_tensor(a)).observed
            try:
                return np.asarray(observed.expand((len(a),)).sample(), float)
            except (ValueError, RuntimeError):  # torch refuses to draw with NaN arguments
                return np.full((len(a), *self.event_shape), np.nan)

    def action_problem(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> str | None:
        """What an index past the end of an array says, or None."""
        try:
            with torch.no_grad():
                self.run(as_tensor(theta), as_tensor(x), as_tensor(a))
        except (ContextRangeError, RuntimeError) as error:
            return str(error.__cause__ or error)
        return None


traced = PyroProgram
