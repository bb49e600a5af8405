"""One self-contained HTML page about a run: pictures inside, no script, readable on a phone.

The page is written as well-formed XML too, so that a test can parse it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.certificate import ConstraintCertificate
from gedppl.errors import UnknownTruthError
from gedppl.simulation.references import references

if TYPE_CHECKING:
    from gedppl.simulation.runs import Run

STYLE = """
:root { --ink: #1c2330; --soft: #5a6475; --line: #d9dee6; --good: #00694e; --bad: #a33c00; --paper: #ffffff; --wash: #f5f7fa; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--wash); color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 1.6rem; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 36px 0 10px; }
p, figcaption { max-width: 70ch; }
.soft, figcaption { color: var(--soft); font-size: 0.93rem; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 18px 0; padding: 0; }
.numbers div { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; }
.numbers dt { color: var(--soft); font-size: 0.85rem; }
.numbers dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 16px; }
figure { margin: 0; background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 12px; }
figure img { width: 100%; height: auto; display: block; }
figure h3 { margin: 0 0 6px; font-size: 1rem; }
.scroll { overflow-x: auto; background: var(--paper); border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 0.93rem; }
th, td { padding: 6px 12px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { white-space: normal; vertical-align: bottom; }
tr:last-child td { border-bottom: 0; }
tr.chosen td { background: #e8f1f8; }
ul { padding-left: 20px; } li { overflow-wrap: anywhere; }
.good { color: var(--good); } .bad { color: var(--bad); }
code { overflow-wrap: anywhere; }
@media (max-width: 600px) {
  main { padding: 16px 12px 32px; } figure { padding: 8px; } th, td { padding: 5px 7px; } table { font-size: 0.85rem; }
  .numbers { grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); }
}
"""

CAPTIONS = {
    "regret": ("Regret", "Utility lost, in total, to the best policy that keeps every limit in every round."),
    "cost_bounds": (
        "Worst case against the limit",
        "The certified worst case of the policies over everything the data still allow (largest of each stretch of rounds), and "
        "their true cost. The limit is on the policy's average cost in each round.",
    ),
    "policy_map": (
        "What is played where",
        "Mean policy over the later half of the run, along the context column that changes it most.",
    ),
    "width": (
        "Width of the confidence set",
        "How far apart the lower and upper cost bounds of each action are, at the contexts met (median of recent rounds).",
    ),
    "tradeoff": (
        "Utility against cost",
        "True averages at the run's contexts. Hollow marks exceed a limit in some round, wherever their average lies.",
    ),
}


def render(run: Run, images: dict[str, bytes], decision: int) -> str:
    """The page. `images` are PNG files by name, `decision` the round whose certificate is shown."""
    title = str(run.meta.get("title") or run.meta.get("script") or "A run")
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_subtitle(run))}</p>',
        _headline(run),
        "<h2>Pictures</h2>",
        f'<div class="figures">{"".join(_figure(name, png, run) for name, png in _ordered(images))}</div>',
        _comparison(run),
        _segments(run),
        _certificate(run, decision),
        _how_it_was_made(run),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8" />\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />\n'
        f"<title>{escape(title)}</title>\n"
        # an empty icon, so that no browser asks a server for one
        '<link rel="icon" href="data:," />\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n" + "\n".join(p for p in parts if p) + "\n</main>\n</body>\n</html>\n"
    )


def _subtitle(run: Run) -> str:
    words = [f"{len(run)} rounds", f"{run.problem.n_actions} actions", f"seed {run.seed}"]
    if run.meta.get("agent"):
        words.insert(0, str(run.meta["agent"]))
    if run.interrupted:
        words.append("interrupted before the end")
    return ", ".join(words)


def _headline(run: Run) -> str:
    s = run.summary()
    items: list[tuple[str, str, str]] = []
    if s["mean_utility"] is not None:
        items.append(("mean utility", _number(s["mean_utility"]), ""))
        items.append(("last quarter", _number(s["last_quarter_utility"]), ""))
    if s["oracle_utility"] is not None:
        items.append(("constrained oracle", _number(s["oracle_utility"]), ""))
    if s["mean_utility"] is None and s["mean_outcome"] is not None:
        items.append(("mean outcome", _number(s["mean_outcome"]), ""))
    if s["regret"] is not None:
        items.append(("regret", _number(s["regret"]), ""))
    if run.problem.constraint_names:
        bad = s["infeasible_rounds"]
        told = "not known" if bad is None else f"{bad} of {len(run)}"
        items.append(("rounds above a limit", told, "" if bad is None else "bad" if bad else "good"))
        for j, name in enumerate(run.problem.constraint_names):
            if s["realised_cost"][name] is not None:
                limit = _number(float(run.limit[-1, j]))
                items.append((f"realised {name} (limit {limit})", _number(s["realised_cost"][name]), ""))
    if run.problem.safe_action is not None:
        items.append(("safe action played", f"{s['safe_share']:.0%}", ""))
    cells = (f'<div><dt>{escape(name)}</dt><dd class="{kind}">{escape(value)}</dd></div>' for name, value, kind in items)
    return f'<dl class="numbers">{"".join(cells)}</dl>'


def _ordered(images: dict[str, bytes]) -> list[tuple[str, bytes]]:
    order = list(CAPTIONS)
    return sorted(images.items(), key=lambda item: (order.index(_kind(item[0])), item[0]))


def _kind(name: str) -> str:
    head, _, tail = name.rpartition("_")
    return head if tail.isdigit() else name


def _figure(name: str, png: bytes, run: Run) -> str:
    heading, caption = CAPTIONS[_kind(name)]
    tail = name.rpartition("_")[2]
    if tail.isdigit():
        heading = f"{heading}: {run.problem.constraint_names[int(tail)]}"
    data = base64.b64encode(png).decode()
    return (
        f'<figure><h3>{escape(heading)}</h3><img alt="{escape(heading)}" src="data:image/png;base64,{data}" />'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _comparison(run: Run) -> str:
    try:
        found = references(run)
    except UnknownTruthError:
        return (
            '<h2>Compared with other policies</h2><p class="soft">Not possible here: the environment knows no true utilities and '
            "costs. Use off-policy estimates of the logged decisions instead.</p>"
        )
    names = run.problem.constraint_names
    head = ["policy", "mean utility", *(f"mean {name}" for name in names), "rounds above a limit"]
    rows = [[r.name, _number(r.utility), *(_number(c) for c in r.costs), f"{r.infeasible:.1%}"] for r in found]
    note = (
        "True averages at this run's contexts. All but the run know the truth; greedy maximises utility and ignores limits. "
        "The limit is one for every round, so a low average alone does not keep it."
    )
    return f'<h2>Compared with other policies</h2>{_table(head, rows, chosen={0})}<p class="soft">{escape(note)}</p>'


def _segments(run: Run) -> str:
    if not run.segments:
        return ""
    names = run.problem.constraint_names
    known = run.truth_known
    parts = []
    for segment, labels in run.by_segment().items():
        head = [segment, "rounds", "mean utility" if known else "mean outcome"]
        head += (["oracle"] if known else []) + [f"realised {name}" for name in names]
        head += (["above a limit"] if known and names else []) + ["safe action"]
        rows = []
        for label, s in labels.items():
            row = [label, str(s["rounds"]), _number(s["mean_utility"] if known else s["mean_outcome"])]
            row += [_number(s["oracle_utility"])] if known else []
            row += [_number(s["realised_cost"][name]) for name in names]
            row += [str(s["infeasible_rounds"])] if known and names else []
            rows.append([*row, f"{s['safe_share']:.0%}"])
        parts.append(_table(head, rows))
    return "<h2>Results by segment</h2>" + "<p></p>".join(parts)


def _certificate(run: Run, decision: int) -> str:
    r = run.rounds[decision]
    title = f"<h2>Decision {decision} in full</h2>"
    names, constraints = run.action_names, run.problem.constraint_names
    context = ", ".join(f"{name} = {value:.4g}" for name, value in zip(run.context_names, r.x))
    if len(r.x) > 40:
        context = ", ".join(f"{value:.3g}" for value in r.x[:40]) + ", ..."
    head = ["action", "probability", "estimated utility", "bonus", "width"]
    head += [f"{name} between" for name in constraints]
    rows = []
    for k, name in enumerate(names[: len(r.policy)]):
        row = [name, f"{r.policy[k]:.3f}", _number(r.estimate[k]), _number(r.bonus[k]), _number(r.width[k])]
        row += [f"{_number(r.cost_lower[j, k])} and {_number(r.cost_upper[j, k])}" for j in range(len(constraints))]
        rows.append(row)
    table = _table(head, rows, chosen={r.action})
    told = f"<p>Context: {escape(context)}. Played: <b>{escape(names[r.action])}</b>.</p>{table}"
    c = r.certificate
    if c is None:
        return f'{title}{told}<p class="soft">This agent gives no certificates.</p>'
    kind, verdict = ("bad", "not a guarantee: see below")
    parts = [_part(part) for part in c["constraints"]]
    if all(part.guaranteed for part in parts):
        kind, verdict = ("good", "guarantee, if the model class holds the truth")
    lines = [*(part.claim for part in parts), *(f"fit of {name}: {status}" for name, status in c["oracle"].items()), *c["notes"]]
    if c.get("fallback"):
        lines.insert(0, f"safe action taken: {c['fallback']}")
    witness = _witness(c, names)
    return (
        f"{title}{told}<p>Certificate ({escape(c['mode'])} mode, δ = {c['delta']:g}): "
        f'<b class="{kind}">{escape(verdict)}</b></p>'
        f"<ul>{''.join(f'<li>{escape(str(line))}</li>' for line in lines)}</ul>{witness}"
    )


def _part(stored: dict[str, Any]) -> ConstraintCertificate:
    """A constraint's part again, as an object that can word its claim; JSON has null for a NaN."""
    worst = stored["worst_case"]
    return ConstraintCertificate(**{**stored, "worst_case": np.nan if worst is None else worst})


def _witness(certificate: dict[str, Any], names: Sequence[str]) -> str:
    lines = []
    for part in certificate["constraints"]:
        for action, where in part["witness"].items():
            text = f"member {where}" if isinstance(where, int) else _parameters(where)
            lines.append(f"<li>{escape(part['name'])} of {escape(names[int(action)])}: <code>{escape(text)}</code></li>")
    if not lines:
        return ""
    return f"<details><summary>Parameters at which the worst case is reached</summary><ul>{''.join(lines)}</ul></details>"


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
    made = [(k, v) for k, v in run.meta.items() if k not in ("title", "action_names", "context_names") and v is not None]
    if not made:
        return ""
    text = "; ".join(f"{k.replace('_', ' ')}: {v}" for k, v in made)
    return f'<h2>How this was made</h2><p class="soft">{escape(text)}</p>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], chosen: set[int] | None = None) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = []
    for i, row in enumerate(rows):
        mark = ' class="chosen"' if chosen and i in chosen else ""
        body.append(f"<tr{mark}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>")
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _number(value: float | None) -> str:
    if value is None or not np.isfinite(value):
        return "–"
    size = abs(value)
    return f"{value:.0f}" if size >= 1000 else f"{value:.1f}" if size >= 100 else f"{value:.3g}"
