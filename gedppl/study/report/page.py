"""One self-contained HTML page about a run: what happened in two sentences, then the pictures,
tables and a certificate.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.certificate import IF_TRUE, ConstraintCertificate
from gedppl.errors import UnknownTruthError
from gedppl.study.report import learning
from gedppl.study.report.style import document, number, table
from gedppl.study.simulation.references import references

if TYPE_CHECKING:
    from gedppl.study.simulation.runs import Run

CAPTIONS = {
    "cost_bounds": (
        "Was the limit kept?",
        "The worst case over everything the data still allow sits on the limit where the policy "
        "uses all the room that is "
        "certain. The gap between limit and true cost is the slack that uncertainty still costs. "
        "The limit is on the policy's "
        "average cost in each round; one on every draw is on the largest in play.",
    ),
    "regret": (
        "What did learning cost?",
        "Utility lost, in total, to the best policy that keeps every limit in every round. Flatter "
        "is better.",
    ),
    "policy_map": (
        "What is played where?",
        "Mean policy over the later half of the run, along the context column that changes it "
        "most. Ranges hold equally many "
        "rounds.",
    ),
    "action_bounds": (
        "What is still unknown?",
        "Between its thin lower and its thick upper line lies what the data still allow for the "
        "cost of an action (medians over "
        "the contexts met). Where the upper line is under the limit, the action may be played "
        "alone.",
    ),
    "tradeoff": (
        "Utility against cost",
        "True averages at the run's contexts. Hollow marks exceed a limit in some round, wherever "
        "their average lies.",
    ),
}
CERTIFICATE_HEAD = ["limit", "worst case", "at most", "slack", "bound", "claim"]
BESIDE_COMPARISON = "tradeoff"
MANY_LABELS = 10  # segments with more labels than this are folded up


def render(run: Run, images: dict[str, bytes], decision: int) -> str:
    """The page. `images` are PNG files by name, `decision` the round whose certificate is shown."""
    title = str(run.meta.get("title") or run.meta.get("script") or "A run")
    figures = {name: _figure(name, png, run) for name, png in _ordered(images)}
    beside = [html for name, html in figures.items() if kind(name) == BESIDE_COMPARISON]
    first = [html for name, html in figures.items() if kind(name) != BESIDE_COMPARISON]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_subtitle(run))}</p>',
        _verdict(run),
        _headline(run),
        f'<h2>What happened</h2><div class="figures">{"".join(first)}</div>',
        _comparison(run, beside),
        _segments(run),
        _certificate(run, decision),
        _how_it_was_made(run),
    ]
    return document(title, parts)


def kind(name: str) -> str:
    """A picture's kind: "tradeoff" of "tradeoff_1", which is of the second constraint."""
    head, _, tail = name.rpartition("_")
    return head if tail.isdigit() else name


def _subtitle(run: Run) -> str:
    words = [f"{len(run)} rounds", f"{run.problem.n_actions} actions", f"seed {run.seed}"]
    if run.meta.get("agent"):
        words.insert(0, str(run.meta["agent"]))
    if run.interrupted:
        words.append("interrupted before the end")
    return ", ".join(words)


# what happened, in words and numbers --------------------------------------------------------------


def _verdict(run: Run) -> str:
    limits, good = _limits_kept(run)
    alarms = [str(sentence) for sentence in run.meta.get("alarms", [])]
    told = "".join(f'<p class="bad">{escape(text)}</p>' for text in alarms)
    sentences = (
        limits,
        _what_certificates_say(run),
        _what_it_earned(run),
        learning.when_it_left_the_safe_action(run),
    )
    told += "".join(f"<p>{escape(text)}</p>" for text in sentences if text)
    told += "".join(f'<p class="bad">{escape(text)}</p>' for text in learning.never_learned(run))
    return (
        f'<div class="verdict{"" if good and not alarms else " bad"}">{told}</div>' if told else ""
    )


def _limits_kept(run: Run) -> tuple[str, bool]:
    if not run.problem.constraint_names:
        return "", True
    if not run.truth_known:
        return (
            "Whether the limits were truly kept is not known: the environment knows no true costs.",
            True,
        )
    over, T = int(run.infeasible.sum()), len(run)
    if not over:
        return (
            f"Every limit was kept: in none of the {T} rounds did the policy's true cost exceed "
            "it.",
            True,
        )
    return (
        f"In {over} of {T} rounds ({over / T:.1%}) the policy's true cost exceeded a limit.",
        False,
    )


def _what_certificates_say(run: Run) -> str:
    given = [c for c in run.certificates if c is not None]
    if not given or not run.problem.constraint_names:
        return ""
    if all(part["method"] == "known" for c in given for part in c["constraints"]):
        return "Costs are known here, so certificates rest on no model."
    sure = sum(all(part["guaranteed"] for part in c["constraints"]) for c in given)
    believed = (
        sum(
            all(part["guaranteed"] or part.get("credible") for part in c["constraints"])
            for c in given
        )
        - sure
    )
    fell_back = sum(bool(c.get("fallback")) for c in given)
    if sure == len(given):
        text = f"All {sure} certificates are guarantees, {IF_TRUE}."
    else:
        text = f"{sure} of {len(given)} certificates are guarantees, {IF_TRUE}; "
        text += f"{believed} are credible, if model and prior are right; " if believed else ""
        text += (
            "the others approximate."
            if sure + believed < len(given)
            else "none is an approximation."
        )
    return text + (
        f" In {fell_back} rounds the agent fell back to the safe action." if fell_back else ""
    )


def _what_it_earned(run: Run) -> str:
    safe = run.problem.safe_action
    if safe is None or not run.truth_known:
        return ""
    last = slice(-max(1, len(run) // 4), None)
    got, best, floor = (
        float(v[last].mean()) for v in (run.utility, run.best, run.utilities[:, safe])
    )
    if not best - floor > 1e-9:
        return ""
    way = (got - floor) / (best - floor)
    return (
        f"In its last quarter it earned {number(got)} a round, {way:.0%} of the way from the safe "
        f"action ({number(floor)}) to "
        f"the best that keeps every limit knowing the truth ({number(best)})."
    )


def _headline(run: Run) -> str:
    s = run.summary()
    items: list[tuple[str, str, str, str]] = []  # name, value, note, class
    if s["mean_utility"] is not None:
        items.append(
            (
                "mean utility",
                number(s["mean_utility"]),
                f"last quarter {number(s['last_quarter_utility'])}",
                "",
            )
        )
    if s["oracle_utility"] is not None:
        items.append(("constrained oracle", number(s["oracle_utility"]), "knows the truth", ""))
    if s["mean_utility"] is None and s["mean_outcome"] is not None:
        items.append(("mean outcome", number(s["mean_outcome"]), "", ""))
    if s["regret"] is not None:
        items.append(
            ("regret", number(s["regret"]), f"{number(s['regret'] / len(run))} a round", "")
        )
    if run.problem.constraint_names:
        bad = s["infeasible_rounds"]
        told = "not known" if bad is None else str(bad)
        items.append(
            (
                "rounds above a limit",
                told,
                f"of {len(run)}",
                "" if bad is None else "bad" if bad else "good",
            )
        )
        for j, name in enumerate(run.problem.constraint_names):
            if s["realised_cost"][name] is not None:
                items.append(
                    (
                        f"realised {name}",
                        number(s["realised_cost"][name]),
                        f"limit {number(run.limit[-1, j])}",
                        "",
                    )
                )
    if run.problem.safe_action is not None:
        left = learning.round_of_leaving(run)
        note = "half never left it" if left is None else f"half left it by round {left}"
        items.append(
            (
                "safe action",
                f"{s['safe_share']:.0%}",
                f"{run.action_names[run.problem.safe_action]}; {note}",
                "",
            )
        )
    cells = (
        f"<div><dt>{escape(name)}</dt><dd "
        f'class="{look}">{escape(value)}<small>{escape(note)}</small></dd></div>'
        for name, value, note, look in items
    )
    return f'<dl class="numbers">{"".join(cells)}</dl>'


# pictures -----------------------------------------------------------------------------------------


def _ordered(images: dict[str, bytes]) -> list[tuple[str, bytes]]:
    order = list(CAPTIONS)
    return sorted(images.items(), key=lambda item: (order.index(kind(item[0])), item[0]))


def _figure(name: str, png: bytes, run: Run) -> str:
    heading, caption = CAPTIONS[kind(name)]
    tail = name.rpartition("_")[2]
    if tail.isdigit():
        heading = f"{heading} ({run.problem.constraint_names[int(tail)]})"
    data = base64.b64encode(png).decode()
    return (
        f'<figure><h3>{escape(heading)}</h3><img alt="{escape(f"{heading} {caption}")}" '
        f'src="data:image/png;base64,{data}" />'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


# tables -------------------------------------------------------------------------------------------


def _comparison(run: Run, beside: list[str]) -> str:
    try:
        found = references(run)
    except UnknownTruthError:
        return (
            '<h2>Compared with other policies</h2><p class="soft">Not possible here: the '
            "environment knows no true utilities and "
            "costs. Use off-policy estimates of the logged decisions instead.</p>"
        )
    names = run.problem.constraint_names
    head = [
        "policy",
        "mean utility",
        *(f"mean {name}" for name in names),
        *(["rounds above a limit"] if names else []),
    ]
    rows = [
        [
            r.name,
            number(r.utility),
            *(number(c) for c in r.costs),
            *([f"{r.infeasible:.1%}"] if names else []),
        ]
        for r in found
    ]
    note = (
        "True averages at this run's contexts. All but the run know the truth; greedy maximises "
        "utility and ignores limits. "
        "The limit is one for every round, so a low average alone does not keep it."
    )
    told = f'<div>{table(head, rows, chosen={0})}<p class="soft">{escape(note)}</p></div>'
    return (
        f'<h2>Compared with other policies</h2><div class="figures">{"".join(beside)}{told}</div>'
    )


def _segments(run: Run) -> str:
    if not run.segments:
        return ""
    names, known, has_safe = (
        run.problem.constraint_names,
        run.truth_known,
        run.problem.safe_action is not None,
    )
    parts = []
    for segment, labels in run.by_segment().items():
        head = [segment, "rounds", "mean utility" if known else "mean outcome"]
        head += (["oracle"] if known else []) + [f"realised {name}" for name in names]
        head += (["above a limit"] if known and names else []) + (
            ["safe action"] if has_safe else []
        )
        here = np.array(run.segments[segment])
        rows = []
        for label, s in labels.items():
            row = [
                label,
                str(s["rounds"]),
                number(s["mean_utility"] if known else s["mean_outcome"]),
            ]
            row += [number(s["oracle_utility"])] if known else []
            row += [_with_interval(run.realised[here == label, j]) for j in range(len(names))]
            row += [str(s["infeasible_rounds"])] if known and names else []
            rows.append(row + ([f"{s['safe_share']:.0%}"] if has_safe else []))
        made = table(head, rows)
        if len(rows) > MANY_LABELS:
            made = (
                f"<details><summary>{escape(segment)}: {len(rows)} groups</summary>{made}</details>"
            )
        parts.append(made)
    note = (
        f"Each table splits the same {len(run)} rounds. "
        "In brackets: 95% intervals of the realised means (Wilson's for outcomes of 0 and 1). The "
        "limit is on each round's "
        "expected cost, so a mean should not lie above it by more than chance."
    )
    return (
        "<h2>Results by segment</h2>"
        + "".join(parts)
        + (f'<p class="soft">{escape(note)}</p>' if names else "")
    )


def _with_interval(values: np.ndarray) -> str:
    """A mean of what was observed, with its 95% interval."""
    low, high = interval(values)
    known = values[np.isfinite(values)]
    shown = number(float(known.mean()) if len(known) else None)
    return f"{shown} ({number(low)} to {number(high)})" if np.isfinite(low) else shown


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95% interval of a mean: Wilson's for zeros and ones (a group without any event still has
    one), else 1.96 se each way.

    >>> [round(v, 3) for v in interval(np.array([0.0] * 10))]
    [0.0, 0.278]
    >>> [round(v, 3) for v in interval(np.array([1.0, 2.0, 3.0]))]
    [0.868, 3.132]
    """
    known = values[np.isfinite(values)]
    n, z = len(known), 1.96
    if n < 2:
        return np.nan, np.nan
    mean = float(known.mean())
    if np.isin(known, (0, 1)).all():
        middle, half = (
            mean + z**2 / (2 * n),
            z * float(np.sqrt(mean * (1 - mean) / n + z**2 / (4 * n**2))),
        )
        return max(0.0, (middle - half) / (1 + z**2 / n)), min(
            1.0, (middle + half) / (1 + z**2 / n)
        )
    half = z * float(known.std(ddof=1) / np.sqrt(n))
    return mean - half, mean + half


# one decision -------------------------------------------------------------------------------------


def _certificate(run: Run, decision: int) -> str:
    r = run.rounds[decision]
    title = f"<h2>Decision {decision} in full</h2>"
    names, constraints = run.action_names, run.problem.constraint_names
    context = ", ".join(f"{name} = {value:.4g}" for name, value in zip(run.context_names, r.x))
    if len(r.x) > 40:
        context = ", ".join(f"{value:.3g}" for value in r.x[:40]) + ", ..."
    head = ["action", "probability", "estimated utility", "bonus", "width"]
    head += [f"{name} {side}" for name in constraints for side in ("at least", "at most")]
    rows = []
    for k, name in enumerate(names[: len(r.policy)]):
        row = [
            name,
            f"{r.policy[k]:.3f}",
            number(r.estimate[k]),
            number(r.bonus[k]),
            number(r.width[k]),
        ]
        row += [
            number(bound[j, k])
            for j in range(len(constraints))
            for bound in (r.cost_lower, r.cost_upper)
        ]
        rows.append(row)
    note = (
        "The policy maximises estimated utility + bonus + width (the last two explore) while "
        "its worst case keeps every limit."
    )
    told = (
        f"<p>Context: {escape(context)}. Played: "
        f"<b>{escape(names[r.action])}</b>.</p>{table(head, rows, chosen={r.action})}"
        f'<p class="soft">{note}</p>'
    )
    c = r.certificate
    if c is None:
        return f'{title}{told}<p class="soft">This agent gives no certificates.</p>'
    parts = [_part(part) for part in c["constraints"]]
    look, verdict = ("bad", "not a guarantee: see below")
    if all(part.guaranteed for part in parts):
        look, verdict = ("good", f"guarantee, {IF_TRUE}")
    elif all(part.kind != "approximation" for part in parts):
        verdict = "credible, no guarantee: if model and prior are right"
    sums = [
        [p.name, *map(number, (p.worst_case, p.at_most, _slack(p))), p.method, p.kind]
        for p in parts
    ]
    lines = [
        *(line for part in parts for line in (part.claim, part.watch) if line),
        *(f"fit of {name}: {status}" for name, status in c["oracle"].items()),
        *c["notes"],
    ]
    lines.append(
        f"rows are the outcomes that a fit was last made from: at most the {decision} told before "
        "this decision, and those of "
        "logs; a safe action that is not learned adds none"
    )
    if c.get("fallback"):
        lines.insert(0, f"safe action taken: {c['fallback']}")
    return (
        f"{title}{told}<p>Certificate ({escape(c['mode'])} mode, δ = {c['delta']:g}): "
        f'<b class="{look}">{escape(verdict)}</b></p>'
        f"{table(CERTIFICATE_HEAD, sums) if sums else ''}"
        f"<ul>{''.join(f'<li>{escape(str(line))}</li>' for line in lines)}</ul>{_witness(c, names)}"
    )


def _slack(part: ConstraintCertificate) -> float:
    """Rounding is no slack, and no lack of it."""
    return (
        0.0
        if abs(part.slack) <= 1e-9 * max(abs(part.at_most), abs(part.worst_case))
        else part.slack
    )


def _part(stored: dict[str, Any]) -> ConstraintCertificate:
    """A constraint's part again, as an object that can word its claim; JSON has null for a NaN."""
    worst = stored["worst_case"]
    # says what the other fields do
    kept = {name: value for name, value in stored.items() if name != "kind"}
    return ConstraintCertificate(**{**kept, "worst_case": np.nan if worst is None else worst})


def _witness(certificate: dict[str, Any], names: Sequence[str]) -> str:
    lines = []
    for part in certificate["constraints"]:
        for action, where in part["witness"].items():
            text = f"member {where}" if isinstance(where, int) else _parameters(where)
            lines.append(
                f"<li>{escape(part['name'])} of {escape(names[int(action)])}: "
                f"<code>{escape(text)}</code></li>"
            )
    if not lines:
        return ""
    return (
        "<details><summary>Parameters at which the worst case is "
        f"reached</summary><ul>{''.join(lines)}</ul></details>"
    )


def _parameters(where: Any) -> str:
    if not isinstance(where, dict):
        return str(where)
    shown = []
    for name, value in where.items():
        numbers = np.asarray(value, float).ravel()
        text = ", ".join(f"{v:.4g}" for v in numbers[:24]) + (", ..." if numbers.size > 24 else "")
        shown.append(f"{name} = {text}")
    return "; ".join(shown)


def _how_it_was_made(run: Run) -> str:
    elsewhere = ("title", "action_names", "context_names", "alarms", "refuted")
    made = [(k, v) for k, v in run.meta.items() if k not in elsewhere and v is not None]
    if not made:
        return ""
    text = "; ".join(f"{k.replace('_', ' ')}: {v}" for k, v in made)
    return f'<h2>How this was made</h2><p class="soft">{escape(text)}</p>'
