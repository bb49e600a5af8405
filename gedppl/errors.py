"""The named errors.

Every error a caller can cause is an `InputError`, and so a `ValueError`. Its message says what was
wrong, the value that was given, and the fix. Raising one changes no state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class GedError(Exception):
    """Everything this library raises on purpose."""


class InputError(GedError, ValueError):
    """A value the caller gave cannot be used."""


# declaring a model --------------------------------------------------------------------------------


class ModelError(InputError):
    """The probabilistic program cannot serve as a density class."""


class OneSettingError(ModelError):
    """Densities of several parameter settings were asked for of an outcome whose distribution only
    the PPL knows: those come one setting at a time.
    """


class BackendNotFoundError(ModelError):
    """The function is neither a NumPyro nor a Pyro program, or that package is missing."""


class NoObservedSiteError(ModelError):
    """The program has no observed site."""


class SeveralObservedSitesError(ModelError):
    """The program has more than one observed site."""


class OutcomeUsedError(ModelError):
    """The program uses the outcome for more than observing it, so that what it says of y depends
    on y.
    """


class RowLatentError(ModelError):
    """The program draws a continuous latent for every row: its marginal has no closed form."""


class SubsampledPlateError(ModelError):
    """A plate subsamples its rows, which would rescale the likelihood."""


class NotADensityError(ModelError):
    """An outcome's own log_prob does not sum or integrate to one."""


class CutpointsError(ModelError):
    """Nothing keeps the cutpoints of an ordered outcome in order."""


class FactorError(ModelError):
    """`factor` adds to the log-density without being one."""


class SiteClashError(ModelError):
    """Two models give one site name different meanings."""


class NotANumberError(ModelError):
    """The log-density is NaN at the initial parameters."""


class ParameterError(InputError):
    """A parameter has the wrong name or shape, or lies outside its constraint or bounds."""


# passing data -------------------------------------------------------------------------------------


class DataError(InputError):
    """Rows of contexts, actions or outcomes cannot be used."""


class ShapeError(DataError):
    """An array has the wrong shape."""


class NotFiniteError(DataError):
    """A context or an outcome is NaN or infinite."""


class ContextWidthError(DataError):
    """A context has the wrong number of columns."""


class ColumnError(DataError):
    """Named columns of a context are not those that were declared, or hold a level that was not."""


class ContextRangeError(DataError):
    """A context reads past the end of an array of the model's."""


class ActionRangeError(DataError):
    """An action is not one of 0, ..., K-1, has no such name, or is not allowed here."""


class TrialsError(DataError):
    """A row's number of trials is not a whole number from 0."""


class LinkDomainError(DataError):
    """Where fits start, or at a row for all parameters inside their bounds, the link is given
    numbers outside its domain.
    """


class OutOfSupportError(DataError):
    """An outcome has density zero under every parameter."""


# functionals and divergences ----------------------------------------------------------------------


class FunctionalError(InputError):
    """A functional was declared wrongly or left its declared range."""


class NoClosedFormError(InputError):
    """`method="exact"` was asked for where no closed form is registered."""


class FamilyError(InputError):
    """The family is unknown, or the two densities cannot be compared."""


# deciding -----------------------------------------------------------------------------------------


class ProblemError(InputError):
    """A `Problem` was declared wrongly."""


class SettingError(InputError):
    """An option of the agent, a radius rule or an oracle is out of range."""


class InfeasibleError(InputError):
    """No policy meets every limit."""


class DeclarationError(GedError, RuntimeError):
    """The data refute what was declared of the problem, so that no action is known to be safe
    any more.
    """


class UnknownDecisionError(InputError):
    """Feedback names a decision that was never made."""


class ConflictingOutcomeError(InputError):
    """A decision was told twice, with different outcomes."""


class LearningError(GedError, ArithmeticError):
    """A model or a solver failed on the data there are."""


class FitWarning(UserWarning):
    """Decisions rest on a fit that did not converge: limits are kept as certified, but sets may
    be wide and estimates poor.
    """


# runs, replays and logs ---------------------------------------------------------------------------


class UnknownTruthError(DataError):
    """The environment knows no true values, so there is nothing to measure this against."""


class ReplayExhaustedError(DataError):
    """Every row of a replay has been used."""


class PropensityError(DataError):
    """A logged propensity or a policy to be evaluated is no probability, or the log never plays
    what the policy plays.
    """


class RunNotFoundError(GedError, FileNotFoundError):
    """There is no saved run in this folder."""


class RunFileError(GedError, ValueError):
    """A saved run cannot be read, or does not belong to this problem or environment."""


class UnsafeFileError(GedError, ValueError):
    """A file is not what it should be, or claims more than it may hold; nothing more of it was
    read.
    """


class ScriptError(GedError, ValueError):
    """A model script cannot be loaded."""


# the journal --------------------------------------------------------------------------------------


class JournalError(GedError):
    """The journal cannot be used."""


class JournalExistsError(JournalError, FileExistsError):
    """There is a journal at this path already."""


class JournalNotFoundError(JournalError, FileNotFoundError):
    """There is no journal at this path."""


class RecordError(JournalError, InputError):
    """A record or a snapshot cannot be stored as it was given."""


class JournalLockedError(JournalError):
    """Another process is writing to this journal."""


class JournalMismatchError(JournalError, ValueError):
    """The journal belongs to another problem or protocol."""


class JournalVersionError(JournalError, ValueError):
    """The journal was written in a format this version does not know."""


class JournalCorruptError(JournalError):
    """The journal's contents do not match their hashes."""


class JournalFullError(JournalError, OSError):
    """The record could not be made durable; nothing was acknowledged."""


# words that were given up -------------------------------------------------------------------------


def renamed(**new_names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse an argument's old name with a `SettingError` that says the new one:
    ``@renamed(radius="confidence")``.
    """

    def keep(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in new_names.keys() & kwargs.keys():
                raise SettingError(
                    f"{old}= is called {new_names[old]}= now: pass the same value "
                    f"as {new_names[old]}="
                )
            return function(*args, **kwargs)

        return checked

    return keep
