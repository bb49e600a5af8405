"""Newsvendor: how many bikes to put out each hour, so that few hours run out.

8,645 hours of a bike-sharing system in 2011. An action is a stock; a bike rented earns 1 and a bike
put out costs 0.3. After the hour the demand is known whatever the stock was (full information). One
density, that of the demand, says both what a stock earns and what it risks:

    log(1 + demand) ~ Normal(x'w, s),
        utility E[min(stock, demand)] - 0.3 stock,   constraint P(demand > stock) <= 0.1

The largest stock has never run out: the safe action.

Needs the data, nothing else of that package:  pip install --no-deps ISLP
Run:  gedppl run models/newsvendor.py --rounds 2000
"""

import csv
import importlib.util
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged
from gedppl.study.simulation.cross_fitting import cross_fit, folds_of

STOCKS = np.array([50.0, 100.0, 200.0, 300.0, 450.0, 700.0])
SAFE = len(STOCKS) - 1
PRICE_OF_A_BIKE = 0.3
AT_MOST = 0.1
HARMONICS = 5  # of the day, on working days and others apart

# The context: two columns to read reports by, then the features that the model weighs.
WAVES = [f"{wave} {k}" for k in range(1, HARMONICS + 1) for wave in ("sine", "cosine")]
FEATURES = [
    "one",
    "temperature",
    "temperature squared",
    "humidity",
    "wet",
    "season sine",
    "season cosine",
    "working day",
    *WAVES,
    *(f"{wave}, working day" for wave in WAVES),
]
ACTIONS = [f"{stock:.0f} bikes" for stock in STOCKS]
COLUMNS = ["hour", "month", *FEATURES]


# the problem --------------------------------------------------------------------------------------


def demand_model(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(len(FEATURES)).at[0].set(4.0), 1.0).to_event(1))
    s = numpyro.sample("s", dist.LogNormal(jnp.log(0.5), 0.5))
    numpyro.sample("log_demand", dist.Normal(x[:, 2:] @ w, s), obs=y)


def profit(log_demand, x, a):
    stock = jnp.asarray(STOCKS)[a]
    return jnp.minimum(jnp.expm1(log_demand), stock) - PRICE_OF_A_BIKE * stock


def problem(at_most=AT_MOST):
    demand = ged.density_class(
        demand_model, example=(np.zeros((1, len(COLUMNS))), np.zeros(1, int))
    )
    run_out = ged.Constraint(
        demand,
        ged.probability(above=np.log1p(STOCKS)),
        at_most=at_most,
        safe_value=0.0,
        name="run out",
        outcome="utility",
    )
    return ged.Problem(
        n_actions=len(STOCKS),
        utility=ged.Utility(
            demand,
            ged.expected(profit, low=-PRICE_OF_A_BIKE * STOCKS[-1] - 1, high=0.7 * STOCKS[-1]),
        ),
        constraints=[run_out],
        safe_action=SAFE,
        reveals=np.ones((len(STOCKS), len(STOCKS)), bool),
    )


# the hours ----------------------------------------------------------------------------------------


def environment(shuffle=True):
    """One pass over the hours, in random order; shuffle=False keeps the calendar's, with its drift
    over the year.

    Utilities and costs are those of cross-fitted regressions with a coefficient for every hour of
    the day and month.
    """
    x, demand = hours()
    hour, working = np.eye(24)[x[:, 0].astype(int)], x[:, 9:10]
    rich = np.column_stack([hour, hour * working, np.eye(12)[x[:, 1].astype(int)], x[:, 3:7]])
    fold = folds_of(x)
    runs_out = np.column_stack(
        [cross_fit(fold, rich, demand > stock, "logistic") for stock in STOCKS[:-1]]
        + [np.zeros(len(x))]
    )
    rented = [
        stock * cross_fit(fold, rich, np.minimum(demand, stock) / stock, "logistic")
        for stock in STOCKS
    ]
    earned = np.column_stack(rented) - PRICE_OF_A_BIKE * STOCKS
    return ged.Replay(x, np.log1p(demand), utilities=earned, costs=runs_out, shuffle=shuffle)


def segments(x):
    part = ("night", "morning", "afternoon", "evening")[int(x[0]) // 6]
    return {
        "time of day": part,
        "day": "working" if x[9] else "free",
        "weather": "wet" if x[6] else "dry",
    }


def hours():
    """x (8645, 30) and demand (8645,)."""
    package = importlib.util.find_spec("ISLP")
    if package is None:
        raise ModuleNotFoundError(
            "newsvendor.py needs the bikes' table: pip install --no-deps ISLP", name="ISLP"
        )
    with open(
        Path(package.submodule_search_locations[0]) / "data" / "Bikeshare.csv", newline=""
    ) as file:
        table = list(csv.DictReader(file))

    def numbers(name):
        return np.array([float(row[name]) for row in table])

    months = [
        "Jan",
        "Feb",
        "March",
        "April",
        "May",
        "June",
        "July",
        "Aug",
        "Sept",
        "Oct",
        "Nov",
        "Dec",
    ]
    month = np.array([months.index(row["mnth"]) for row in table])
    wet = np.array([row["weathersit"] in ("light rain/snow", "heavy rain/snow") for row in table])
    hour, season = 2 * np.pi * numbers("hr") / 24, 2 * np.pi * numbers("day") / 365
    working, temperature = numbers("workingday"), 2 * numbers("temp") - 1
    waves = np.column_stack(
        [wave(k * hour) for k in range(1, HARMONICS + 1) for wave in (np.sin, np.cos)]
    )
    x = np.column_stack(
        [
            numbers("hr"),
            month,
            np.ones(len(table)),
            temperature,
            temperature**2,
            2 * numbers("hum") - 1,
            wet,
            np.sin(season),
            np.cos(season),
            working,
            waves,
            waves * working[:, None],
        ]
    )
    return x, numbers("bikers")
