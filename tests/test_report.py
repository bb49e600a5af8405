"""ArviZ, pictures and the page of a run."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import tomllib
import types
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gedppl as ged
from gedppl.certificate import IF_TRUE
from gedppl.errors import SettingError, UnknownTruthError
from gedppl.learning import arviz_shim
from gedppl.study import report
from gedppl.study.report import learning, page, plots, style
from gedppl.study.simulation import FixedPolicy, simulate
from gedppl.study.simulation.references import frontier, references
from gedppl.study.simulation.runs import Run
from tests.browser import CHROMIUM, console_of
from tests.table_runs import WORLD, K, agents_run


@pytest.fixture(scope="module")
def world():
    return WORLD


@pytest.fixture(scope="module")
def run():
    run = agents_run()
    run.add_segments(lambda x: {"ward": "<north> & co" if x[0] else "south", "round": "all"})
    run.meta = {
        "title": 'A <script>alert("x")</script> run',
        "action_names": ["none", "half", "full"],
        "gedppl": "0",
    }
    return run


@pytest.fixture(scope="module")
def blind(world):
    """A run whose truth nobody knows, by an agent without certificates."""
    run = simulate(world.problem(), world, FixedPolicy(lambda x: [0.5, 0.5, 0.0]), 20)
    nothing = {"utilities": np.full(K, np.nan), "costs": np.full((1, K), np.nan), "best": np.nan}
    return Run(run.problem, 0, [replace(r, **nothing) for r in run.rounds])


@pytest.fixture(scope="module")
def written(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    report.write_report(run, folder)
    return folder


# ArviZ --------------------------------------------------------------------------------------------


def test_arviz_groups_hold_the_run(run):
    data = run.to_arviz()
    assert set(arviz_shim.group_names(data)) == {
        "observed_data",
        "constant_data",
        "policies",
        "bounds",
        "truth",
        "members",
    }
    np.testing.assert_array_equal(data.policies.policy, run.policy)
    assert data.policies.policy.dims == ("round", "action")
    assert data.policies.action.values.tolist() == ["none", "half", "full"]
    np.testing.assert_array_equal(data.bounds.cost_upper, run.cost_upper)
    assert data.bounds.cost_upper.dims == ("round", "constraint", "action")
    np.testing.assert_array_equal(data.truth.regret, run.regret)
    np.testing.assert_array_equal(data.observed_data.utility, np.array(run.y))
    np.testing.assert_array_equal(data.members["cost: member"], run.members["cost"]["member"])
    assert data.constant_data["round (given name)"].values.tolist() == ["all"] * 60


def test_arviz_opens_the_file(run, written):
    with arviz_shim.quiet():
        back = arviz_shim.arviz().from_netcdf(written / "run.nc")
    np.testing.assert_array_equal(back.policies.policy, run.policy)
    assert back.constant_data.ward.values.tolist() == run.segments["ward"]
    assert back.bounds.attrs["safe_action"] == 0


@pytest.mark.parametrize("version", ["0.23.4", "1.3.0"])
def test_each_arviz_gets_its_own_kind_of_object(run, tmp_path, monkeypatch, version):
    """InferenceData in 0.x; in 1.x an xarray DataTree, which xarray itself writes and reads.
    ArviZ is a stand-in here.
    """
    import xarray

    class InferenceData(dict):
        groups = dict.keys

    installed = types.SimpleNamespace(__version__=version)
    if version.startswith("0"):
        installed.InferenceData = InferenceData
    monkeypatch.setattr(arviz_shim, "arviz", lambda: installed)
    data = run.to_arviz()
    names = {"observed_data", "constant_data", "policies", "bounds", "truth", "members"}
    assert set(arviz_shim.group_names(data)) == names
    assert isinstance(data, InferenceData if version.startswith("0") else xarray.DataTree)
    if version.startswith("1"):
        arviz_shim.write_netcdf(data, tmp_path / "run.nc")
        with xarray.open_datatree(tmp_path / "run.nc", engine="h5netcdf") as back:
            assert set(back.children) == names
            np.testing.assert_array_equal(back["policies/policy"], run.policy)


def test_an_engine_for_netcdf_is_declared():
    """README's first command ended with "No module named 'h5py'": h5netcdf does not bring it,
    nor does ArviZ 1.
    """
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    declared = {re.split("[<>=;]", line)[0] for line in project["dependencies"]}
    assert {"arviz", "h5netcdf", "h5py"} <= declared


def no_constraints():
    """What a round lacks in a problem without constraints."""
    nothing = {
        "limit": [],
        "worst_case": [],
        "realised": [],
        "costs": np.zeros((0, K)),
        "z": None,
        "certificate": None,
    }
    return nothing | {"cost_lower": np.zeros((0, K)), "cost_upper": np.zeros((0, K))}


def test_revealed_outcomes_and_no_constraints(run):
    free = ged.Problem(K, run.problem.utility)
    rounds = [
        replace(r, y=np.array([0.0, np.nan, 1.0]), **no_constraints()) for r in run.rounds[:3]
    ]
    data = Run(free, 0, rounds).to_arviz()
    assert data.observed_data.utility.dims == ("round", "action_dim")
    assert "worst_case" not in data.bounds
    assert set(report.pictures(Run(free, 0, rounds))) == {"regret", "policy_map"}


def test_arviz_future_warning_stays_inside(tmp_path):
    """In a fresh process with warnings as errors. ArviZ 0.23 warns once a day, and notes the day in
    the cache folder.

    The bare import before ours is the control: it does warn, and so fails.
    """
    code = """
try:
    import arviz
    print("did not warn", arviz.__version__)
except FutureWarning:
    print("warned")
from gedppl.learning.arviz_shim import arviz
arviz()
"""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-W", "error::FutureWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "warned"
        if arviz_shim.arviz().__version__.startswith("0.23")
        else ("warned", "did not warn")
    )


# pictures -----------------------------------------------------------------------------------------

PICTURES = [
    plots.plot_regret,
    plots.plot_cost_bounds,
    plots.plot_policy_map,
    plots.plot_width,
    plots.plot_tradeoff,
    plots.plot_action_bounds,
]


@pytest.mark.parametrize("plot", PICTURES)
def test_pictures_take_and_return_axes_and_leave_pyplot_alone(plot, run):
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    ax = plot(run)
    assert plot(run, ax=ax) is ax
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert plt.get_fignums() == before
    assert getattr(ged, plot.__name__) is plot


def test_the_pyplot_check_can_fail():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    figure, _ = plt.subplots()
    assert plt.get_fignums() != before
    plt.close(figure)


def test_regret_lines_are_the_regret(run, world):
    ax = plots.plot_regret(
        {
            "ours": run,
            "safe": simulate(world.problem(), world, FixedPolicy(lambda x: [1, 0, 0]), 60, seed=5),
        }
    )
    lines = {line.get_label(): line.get_ydata() for line in ax.lines}
    np.testing.assert_array_equal(lines["ours"], run.regret)
    np.testing.assert_allclose(lines["safe"], lines["always the safe action"])


def test_every_infeasible_round_has_a_cross(run):
    rounds = [
        replace(r, costs=r.costs + (0.9 if i in (7, 40) else 0.0)) for i, r in enumerate(run.rounds)
    ]
    ax = plots.plot_cost_bounds(Run(run.problem, 0, rounds))
    crosses = next(c for c in ax.collections if c.get_label().startswith("above the limit"))
    assert sorted(crosses.get_offsets()[:, 0]) == [8, 41]
    assert not any(
        c.get_label().startswith("above") for c in plots.plot_cost_bounds(run).collections
    )


def test_policy_map_shows_the_mean_policies(run):
    ax = plots.plot_policy_map(run, rounds=slice(None))
    shown = np.zeros((2, K))
    names = [t.get_text() for t in ax.get_legend().get_texts()]
    for container, name in zip(ax.containers, names):
        shown[:, ["none (safe)", "half", "full"].index(name)] = [
            bar.get_height() for bar in container
        ]
    for value in (0, 1):
        np.testing.assert_allclose(
            shown[value], run.policy[run.x[:, 0] == value].mean(axis=0), atol=1e-12
        )
    with pytest.raises(SettingError, match="feature must be one of 0"):
        plots.plot_policy_map(run, feature=4)


def test_policy_map_finds_the_column_that_matters_and_bins_many_values(run):
    rng = np.random.default_rng(0)
    rounds = []
    for r in run.rounds:
        x = rng.random(3)
        rounds.append(replace(r, x=x, policy=np.eye(K)[int(x[1] > 0.5)]))
    ax = plots.plot_policy_map(Run(run.problem, 0, rounds))
    assert ax.get_xlabel() == "x[1]"
    assert len(ax.get_xticks()) == 7  # the edges of six ranges
    assert len(ax.patches) == 6 * 2  # two actions are played


def test_policy_map_joins_ranges_that_ties_leave_empty(run):
    # most quantiles are 13: the ranges between them hold nobody
    x = np.array([*range(13), *[13.0] * 47])
    rounds = [replace(r, x=np.array([v])) for r, v in zip(run.rounds, x)]
    ax = plots.plot_policy_map(Run(run.problem, 0, rounds), rounds=slice(None))
    heights = sum(np.array([bar.get_height() for bar in container]) for container in ax.containers)
    np.testing.assert_allclose(heights, 1)


def test_the_safe_action_is_grey_and_no_two_actions_share_a_colour(run):
    many = Run(ged.Problem(12, run.problem.utility, [], safe_action=3), 0)
    for one in (run, many):
        colours = [plots._colour(one, k) for k in range(one.problem.n_actions)]
        assert colours[one.problem.safe_action] == plots.SAFE
        assert len(set(colours)) == len(colours)
        assert plots.LIMIT not in colours


@pytest.mark.parametrize("module", [plots, style, page])
def test_examples_in_docstrings(module, run):
    plain = Run(run.problem, 0, run.rounds)
    result = doctest.testmod(module, extraglobs={"run": plain})
    assert result.attempted
    assert result.failed == 0


def test_references_by_hand(run, world):
    found = {r.name: r for r in references(run)}
    truth = (
        np.stack([world.utilities(x) for x in run.x]),
        np.stack([world.costs(x)[0] for x in run.x]),
    )
    assert found["greedy"].utility == pytest.approx(truth[0].max(axis=1).mean())
    assert found["always half"].costs[0] == pytest.approx(truth[1][:, 1].mean())
    assert found["always half"].infeasible == pytest.approx((truth[1][:, 1] > 0.5).mean())
    assert found["constrained oracle"].utility == pytest.approx(run.best.mean())
    assert found["constrained oracle"].infeasible == 0
    assert found["this run"].utility == pytest.approx(run.utility.mean())


def test_the_frontier_rises_and_ends_at_greedy(run):
    cost, utility = frontier(run, 0)
    assert (np.diff(utility) >= -1e-9).all()
    assert (np.diff(cost) >= -1e-9).all()
    assert utility[-1] == pytest.approx(run.utilities.max(axis=1).mean())


def test_what_is_not_known_is_not_drawn(blind, run):
    assert set(report.pictures(blind)) == {"policy_map", "cost_bounds"}
    with pytest.raises(UnknownTruthError, match="has no regret"):
        plots.plot_regret(blind)
    with pytest.raises(UnknownTruthError, match="trade-off needs true"):
        plots.plot_tradeoff(blind)
    with pytest.raises(UnknownTruthError, match="comparing policies needs"):
        references(blind)
    with pytest.raises(SettingError, match="kept no cost bounds"):
        plots.plot_width(blind)
    known = [replace(r, cost_lower=r.cost_upper) for r in run.rounds]
    with pytest.raises(SettingError, match="bounds on a known cost have no width"):
        plots.plot_width(Run(run.problem, 0, known))
    with pytest.raises(
        SettingError,
        match=r"there is no constraint 'fee'; the constraints are "
        r"\['cost'\]",
    ):
        plots.plot_width(run, "fee")
    with pytest.raises(SettingError, match="needs at least one round"):
        plots.plot_policy_map(Run(run.problem, 0))


def test_shrinkage_leaves_pyplot_alone_too():
    import matplotlib.pyplot as plt

    from gedppl.learning.shrinking import Shrinkage, ShrinkageRow

    before = plt.get_fignums()
    rows = (
        ShrinkageRow(8, 0.5, 3.0, 96.0, "curvature"),
        ShrinkageRow(16, 0.4, 3.2, 160.0, "radius"),
    )
    assert plots.plot_shrinkage(Shrinkage(rows)).get_xscale() == "log"
    assert plt.get_fignums() == before


# the page -----------------------------------------------------------------------------------------


def parse(text):
    """The page as XML: fails on an unclosed or crossed tag and on an unescaped character."""
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def test_the_page_is_well_formed_self_contained_and_complete(written, run):
    text = (written / "report.html").read_text(encoding="utf-8")
    root = parse(text)
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)
    assert "<script" not in text
    assert root.find(".//meta[@name='viewport']") is not None
    images = root.findall(".//img")
    assert [i.get("alt") for i in images] == [" ".join(c) for c in page.CAPTIONS.values()]
    headings = [h.text for h in root.iter("h2")]
    assert headings[:3] == ["What happened", "Compared with other policies", "Results by segment"]
    words = " ".join(root.itertext())
    assert "<north> & co" in words
    assert "worst case" in words
    assert "in none of the 60 rounds did the policy's true cost exceed it" in words
    assert f"All 60 certificates are guarantees, {IF_TRUE}." in words
    assert f"guarantee, {IF_TRUE}" in words
    for name in ("regret", "cost_bounds", "policy_map", "action_bounds", "tradeoff"):
        assert (written / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_well_formedness_check_can_fail():
    with pytest.raises(ElementTree.ParseError):
        parse("<!DOCTYPE html>\n<html><p>unclosed</html>")


def test_a_chosen_decision_is_shown(run):
    text = page.render(run, {}, 17)
    assert "Decision 17 in full" in text
    part = run.certificates[17]["constraints"][0]
    assert f"cost: worst case {part['worst_case']:.4g} against a limit of 0.5" in " ".join(
        parse(text).itertext()
    )
    assert report.certificate_round(run, -1) == 59
    shown = report.certificate_round(run)
    assert (run.policy[shown] > 0).sum() > 1
    with pytest.raises(
        SettingError,
        match=r"there is no decision 60; the run has decisions 0, "
        r"\.\.\., 59",
    ):
        report.certificate_round(run, 60)


def test_pages_of_runs_that_know_less(blind, tmp_path):
    words = " ".join(
        parse(report.write_report(blind, tmp_path).read_text(encoding="utf-8")).itertext()
    )
    assert "not known" in words
    assert "knows no true utilities" in words
    assert "gives no certificates" in words
    with pytest.raises(SettingError, match="nothing to report"):
        report.write_report(Run(blind.problem, 0), tmp_path)


def test_the_first_lines_own_up(run):
    """Rounds above a limit, weak certificates, fallbacks and alarms are said before anything
    else.
    """
    first, second, *others = run.rounds
    weak = first.certificate["constraints"][0] | {"guaranteed": False, "method": "ascent"}
    bad = [
        replace(
            first, costs=first.costs + 0.9, certificate=first.certificate | {"constraints": [weak]}
        ),
        replace(second, certificate=second.certificate | {"fallback": "no fit"}),
    ]
    text = page.render(
        Run(run.problem, 0, bad + others, meta={"alarms": ["Alarm after 9 outcomes: it is hot."]}),
        {},
        0,
    )
    box = parse(text).find(".//div[@class='verdict bad']")
    words = " ".join(box.itertext())
    assert "Alarm after 9 outcomes: it is hot." in words
    assert "In 1 of 60 rounds (1.7%) the policy's true cost exceeded a limit." in words
    assert "59 of 60 certificates are guarantees" in words
    assert "In 1 rounds the agent fell back" in words
    assert "Alarm" not in page.render(run, {}, 0)


def test_the_first_lines_say_what_was_not_learned(run):
    """By hand: rounds until half left the safe action, its share, and an action that the oracle
    plays and the run never does.
    """
    actions = [0] * 30 + [1] * 30
    rounds = [
        replace(r, action=a, oracle=np.array([0.2, 0.3, 0.5])) for r, a in zip(run.rounds, actions)
    ]
    words = " ".join(parse(page.render(Run(run.problem, 0, rounds), {}, 0)).itertext())
    assert "took 50% of the rounds; by round 55 half of the last 50 decisions had left it." in words
    assert (
        "action 2 was not learned: the best policy that keeps every limit plays it in 50% of "
        "decisions, this run in 0 of 60" in words
    )
    assert "action 1 was not learned" not in words
    stuck = Run(run.problem, 0, [replace(r, action=0) for r in run.rounds])
    assert learning.round_of_leaving(stuck) is None
    assert (
        "at no time had half of the last 50 decisions left it"
        in learning.when_it_left_the_safe_action(stuck)
    )
    assert learning.when_it_left_the_safe_action(Run(run.problem, 0, run.rounds[:9])).endswith(
        "of the rounds."
    )


def test_without_a_truth_only_what_was_never_played_is_said(blind):
    unplayed = Run(blind.problem, 0, [replace(r, action=1) for r in blind.rounds], meta=blind.meta)
    (said,) = learning.never_learned(unplayed)
    assert said.startswith(f"{unplayed.action_names[2]} was never played")


def test_bounds_of_actions_are_drawn_for_the_most_played(run):
    ax = plots.plot_action_bounds(run)
    upper = next(line for line in ax.lines if line.get_label() == run.action_names[1]).get_ydata()
    assert upper[0] == run.cost_upper[0, 0, 1]
    many = [
        replace(
            r,
            policy=np.eye(9)[8],
            cost_lower=np.zeros((1, 9)),
            cost_upper=np.ones((1, 9)),
            action=8,
        )
        for r in run.rounds
    ]
    nine = Run(ged.Problem(9, run.problem.utility, run.problem.constraints, safe_action=0), 0, many)
    names = [
        line.get_label()
        for line in plots.plot_action_bounds(nine).lines
        if line.get_label().startswith("action")
    ]
    assert len(names) == plots.MOST_BOUNDS
    assert "action 8" in names


def test_the_page_has_a_dark_form_and_rounding_is_no_slack(run):
    text = page.render(run, {}, 0)
    assert "prefers-color-scheme: dark" in text
    part = run.certificates[0]["constraints"][0] | {"worst_case": 0.5 + 1e-16}
    tight = Run(
        run.problem,
        0,
        [replace(run.rounds[0], certificate=run.certificates[0] | {"constraints": [part]})],
    )
    cells = [
        cell.text
        for cell in parse(page.render(tight, {}, 0)).iter("td")
        if cell.get("data-name") == "slack"
    ]
    assert cells == ["0"]


def test_known_costs_need_no_model(run):
    part = run.certificates[0]["constraints"][0] | {"method": "known"}
    rounds = [replace(r, certificate=r.certificate | {"constraints": [part]}) for r in run.rounds]
    text = page.render(Run(run.problem, 0, rounds), {}, 0)
    assert "Costs are known here, so certificates rest on no model." in text
    assert "Costs are known" not in page.render(run, {}, 0)


def test_without_a_safe_action_nothing_is_said_of_it(run):
    free = Run(
        ged.Problem(K, run.problem.utility), 0, [replace(r, **no_constraints()) for r in run.rounds]
    )
    free.add_segments(lambda x: {"ward": int(x[0])})
    words = " ".join(parse(page.render(free, {}, 0)).itertext())
    assert "Results by segment" in words
    assert "safe action" not in words
    assert "above a limit" not in words


def test_how_far_it_came_by_hand(run):
    got, best, safe = run.utility[-15:].mean(), run.best[-15:].mean(), run.utilities[-15:, 0].mean()
    words = " ".join(parse(page.render(run, {}, 0)).itertext())
    assert f"{(got - safe) / (best - safe):.0%} of the way" in words


def test_realised_means_have_intervals_that_cover(run):
    words = " ".join(parse(page.render(run, {}, 0)).itertext())
    realised = run.realised[:, 0]
    assert set(realised) <= {0.0, 1.0}
    low, high = page.interval(realised)
    assert f"{realised.mean():.3f} ({low:.3f} to {high:.3f})" in words
    rng = np.random.default_rng(0)
    for draw, mean in (
        (lambda: (rng.random(30) < 0.05).astype(float), 0.05),
        (lambda: rng.normal(1.0, 2.0, 30), 1.0),
    ):
        inside = sum(
            low <= mean <= high for low, high in (page.interval(draw()) for _ in range(400))
        )
        assert inside >= 400 * 0.9
    assert np.isnan(page.interval(np.array([np.nan, 1.0]))).all()


def test_long_tables_of_segments_are_folded(run):
    many = Run(run.problem, 0, run.rounds, segments={"site": [str(i % 20) for i in range(60)]})
    assert parse(page.render(many, {}, 0)).find(".//details/summary").text == "site: 20 groups"


def test_what_is_no_guarantee_is_not_called_one(run):
    r = run.rounds[5]
    part = r.certificate["constraints"][0] | {"guaranteed": False, "method": "sampled"}
    weak = Run(run.problem, 0, [replace(r, certificate=r.certificate | {"constraints": [part]})])
    words = " ".join(parse(page.render(weak, {}, 0)).itertext())
    assert "not a guarantee" in words
    assert "inner approximation" in words


def browse(page, width, folder):
    """Open a page in a frame of this width (windows cannot be narrower than 500); what the console
    said, and the page's width.

    The frame's own script reports to the console, which also shows that console messages would be
    seen.
    """
    wrapper = folder / "wrapper.html"
    wrapper.write_text(
        f"<!DOCTYPE html><html><body style='margin:0'><iframe id='f' src='{page.as_uri()}' "
        f"style='width:{width}px;height:900px;border:0'></iframe><script>"
        "document.getElementById('f').onload = e => {"
        "const d = e.target.contentDocument, seen = [...d.images].filter(i => i.complete && "
        "i.naturalWidth).length;"
        "const cut = [...d.querySelectorAll('.table')].filter(t => t.scrollWidth > t.clientWidth + "
        "1).length;"
        "console.log('measured', d.documentElement.scrollWidth, seen, cut)}</script></body></html>"
    )
    console = console_of(wrapper, width, folder)
    measured = re.search(r"measured (\d+) (\d+) (\d+)", "\n".join(console))
    assert measured is not None, console
    return (
        [line for line in console if "measured" not in line],
        int(measured[1]),
        int(measured[2]),
        int(measured[3]),
    )


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(width, written, tmp_path):
    """No console message, nothing wider than the window, no table cut off, and every picture is
    shown.
    """
    console, wide, images, cut = browse(written / "report.html", width, tmp_path)
    assert console == []
    assert wide <= width
    assert cut == 0
    assert images == 5


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
def test_the_browser_check_can_fail(tmp_path):
    bad = "<p style='width:700px'>wide</p><img src='data:,'/><script>undefinedName()</script>"
    bad += (
        "<div class='table' style='overflow:hidden;width:200px'>"
        "<table style='width:400px'><tr><td>cut</td></tr></table></div>"
    )
    (tmp_path / "bad.html").write_text(f"<!DOCTYPE html><html><body>{bad}</body></html>")
    console, wide, images, cut = browse(tmp_path / "bad.html", 390, tmp_path)
    assert "undefinedName is not defined" in console[0]
    assert wide >= 700
    assert images == 0
    assert cut == 1
