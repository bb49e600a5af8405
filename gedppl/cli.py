"""The command line: ``gedppl run | compare | report``.

Exit codes: 0 done; 1 the run failed (what was complete is saved); 2 the command was wrong; 130 interrupted, results saved.
Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gedppl
from gedppl.errors import GedError, RunNotFoundError, ScriptError, SettingError
from gedppl.run_files import META, strict
from gedppl.runs import Run
from gedppl.scripts import MODES, Script, loaded, make_agent
from gedppl.simulation import draw_members, simulate

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

RUN_HELP = """examples:
  gedppl run models/dosing.py --rounds 2000 --seed 0 --out runs/dosing
  gedppl run my_problem.py --rounds 200 --quiet --json > summary.json
  gedppl run my_problem.py --agent always-safe --out runs/safe

The script is a plain Python file with
  problem()       returns a gedppl.Problem
  environment()   returns an object with context, outcome, utilities and costs (see gedppl.simulation.Environment)
  segments(x)     optional: {"sex": "female", ...} for one context, to break results down by
Ctrl-C ends after the round at hand; results up to there are written and the exit code is 130."""

COMPARE_HELP = """examples:
  gedppl compare models/dosing.py --rounds 1000
  gedppl compare my_problem.py --agents gedppl,oracle,always-safe,greedy --seeds 3 --json

agents:
  gedppl, gedppl-theory, gedppl-paper   this library, in its three modes
  oracle                                knows the truth and keeps every limit
  greedy                                knows the truth and ignores the limits
  always-safe, always-K                 one action always (K a number)
All agents meet the same contexts."""

REPORT_HELP = """examples:
  gedppl report runs/dosing
  gedppl report runs/dosing --decision 120     show the certificate of decision 120"""

TOP_HELP = """examples:
  gedppl run models/dosing.py --rounds 2000 --seed 0 --out runs/dosing
  gedppl compare models/dosing.py --rounds 500
  gedppl report runs/dosing --decision 120

exit codes: 0 done, 1 the run failed, 2 the command was wrong, 130 interrupted with results saved"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        with _plain_warnings(options.quiet):
            code = options.command(options)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # `gedppl ... | head`; the interpreter's own flush at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (ScriptError, RunNotFoundError, SettingError) as error:
        return _failed(error, options, USAGE)
    except Exception as error:
        return _failed(error, options, FAILED)


def _parser() -> argparse.ArgumentParser:
    top = _new_parser(argparse.ArgumentParser, "gedppl", "Safe sequential decisions from probabilistic programs.", TOP_HELP)
    top.add_argument("--version", action="version", version=f"gedppl {gedppl.__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, what: str, examples: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        parser = _new_parser(commands.add_parser, name, what, examples, help=what)
        parser.set_defaults(command=run)
        parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        parser.add_argument("--quiet", action="store_true", help="no progress bar and no notes")
        parser.add_argument("--traceback", action="store_true", help="show where an error came from")
        return parser

    run = command("run", "let an agent decide in a script's environment, and report", RUN_HELP, _run)
    run.add_argument("script", type=Path, help="a Python file with problem() and environment()")
    _add_run_options(run, rounds=1000)
    run.add_argument("--out", type=Path, help="folder for the results (runs/NAME)")
    run.add_argument("--agent", default="gedppl", help="who decides; the same names as in compare (%(default)s)")
    run.add_argument("--overwrite", action="store_true", help="replace a run that is already in the folder")
    run.add_argument("--decision", type=int, help="decision whose certificate the page shows (one that mixes actions)")

    compare = command("compare", "several agents on the same contexts, as a table", COMPARE_HELP, _compare)
    compare.add_argument("script", type=Path, help="a Python file with problem() and environment()")
    _add_run_options(compare, rounds=500)
    compare.add_argument("--agents", default="gedppl,oracle,always-safe,greedy", help="comma-separated (%(default)s)")
    compare.add_argument("--seeds", type=_positive, default=1, help="how many seeds, from --seed on (%(default)s)")

    report = command("report", "write the page and pictures of a saved run again", REPORT_HELP, _report)
    report.add_argument("folder", type=Path, help="what --out was")
    report.add_argument("--decision", type=int, help="decision whose certificate the page shows")
    return top


def _new_parser(make: Callable[..., Any], name: str, what: str, examples: str, **more: Any) -> Any:
    form = argparse.RawDescriptionHelpFormatter
    first = {"prog": name} if make is argparse.ArgumentParser else {"name": name}
    return make(**first, description=what[0].upper() + what[1:], epilog=examples, formatter_class=form, **more)


def _add_run_options(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument("--rounds", type=_positive, default=rounds, help="how many decisions (%(default)s)")
    parser.add_argument("--seed", type=_whole, default=0, help="of the world and of the agent (%(default)s)")
    parser.add_argument("--delta", type=float, default=0.05, help="limits hold with probability 1 - delta (%(default)s)")
    parser.add_argument("--mode", choices=MODES, default="default", help="of the gedppl agent (%(default)s)")


def _positive(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def _whole(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}")
    return number


# the commands ---------------------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    out = options.out or Path("runs") / options.script.stem
    if (out / META).exists() and not options.overwrite:
        raise SettingError(f"there is a run in {out} already; choose another --out, or replace it with --overwrite")
    _check_folder(out)
    if options.decision is not None and not -options.rounds <= options.decision < options.rounds:
        raise SettingError(f"--decision {options.decision} is not one of the {options.rounds} rounds, 0 to {options.rounds - 1}")
    with loaded(options.script) as script:
        agent = make_agent(
            options.agent, script.problem, script.environment, seed=options.seed, delta=options.delta, mode=options.mode
        )
        run = Run(script.problem, options.seed)
        run.meta = _describe(options, script, options.agent)
        code, failure = OK, None
        begun = time.perf_counter()
        try:
            with contextlib.redirect_stdout(sys.stderr):
                simulate(script.problem, script.environment, agent, options.rounds, options.seed, progress=_bar(options), run=run)
        except KeyboardInterrupt:
            run.interrupted = True
        except Exception as error:
            code, failure = FAILED, error
        run.meta["seconds"] = round(time.perf_counter() - begun, 1)
        if failure is not None:
            run.meta["failed"] = f"{type(failure).__name__}: {failure}"
        if run.interrupted:
            code = INTERRUPTED
        if len(run):
            if script.segments is not None:
                run.add_segments(script.segments)
            run.members = draw_members(agent)
            run.save(out)
            if options.decision is not None and options.decision >= len(run):
                options.decision = None  # the run ended before it
            page = _write_report(run, out, options)
            _print_run(run, out, page, options)
        if failure is not None:
            _say(f"the run failed after {len(run)} rounds" + (f"; these are in {out}" if len(run) else ""))
            return _failed(failure, options, FAILED)
        if code == INTERRUPTED:
            _say(f"interrupted after {len(run)} of {options.rounds} rounds; these are in {out}")
        return code


def _compare(options: argparse.Namespace) -> int:
    names = [name.strip() for name in options.agents.split(",") if name.strip()]
    if not names:
        raise SettingError("--agents names nobody; e.g. --agents gedppl,oracle,always-safe")
    rows: list[dict[str, Any]] = []
    interrupted = False
    with loaded(options.script) as script:
        for name in names:  # a misspelt name should not cost a run first
            make_agent(name, script.problem, script.environment, seed=options.seed, delta=options.delta, mode=options.mode)
        for name in names:
            found: list[dict[str, Any]] = []
            for seed in range(options.seed, options.seed + options.seeds):
                if _bar(options):
                    _say(f"{name}, seed {seed}")
                with contextlib.redirect_stdout(sys.stderr):
                    world = script.new_environment() if rows or found else script.environment
                    agent = make_agent(name, script.problem, world, seed=seed, delta=options.delta, mode=options.mode)
                    begun = time.perf_counter()
                    run = simulate(script.problem, world, agent, options.rounds, seed, progress=_bar(options))
                found.append(run.summary() | {"seconds": time.perf_counter() - begun})
                interrupted = run.interrupted
                if interrupted:
                    break
            rows.append({"agent": name, "seeds": len(found)} | _averaged(found))
            if interrupted:
                break
    if options.json:
        _print_json({"script": str(options.script), "rounds": options.rounds, "interrupted": interrupted, "agents": rows})
    else:
        columns = {
            "agent": "agent", "regret": "regret", "mean_utility": "utility", "last_quarter_utility": "last quarter",
            "infeasible_rounds": "above a limit", "realised_violations": "realised above", "safe_share": "safe",
            "seconds": "seconds",
        }  # fmt: skip
        print(_table([list(columns.values())] + [[_cell(row.get(key), key) for key in columns] for row in rows]))
    if interrupted:
        _say("interrupted: the last agent's numbers are of an incomplete run")
    return INTERRUPTED if interrupted else OK


def _report(options: argparse.Namespace) -> int:
    run = Run.load(options.folder)
    page = _write_report(run, options.folder, options)
    _print_run(run, options.folder, page, options)
    return OK


# output ---------------------------------------------------------------------------------------------------------------


def _describe(options: argparse.Namespace, script: Script, agent: str) -> dict[str, Any]:
    names = getattr(script.environment, "action_names", None) or getattr(script.environment, "names", None)
    return {
        "title": script.title,
        "script": str(script.path),
        "agent": agent,
        "mode": options.mode if agent == "gedppl" else None,
        "delta": options.delta,
        "rounds_asked": options.rounds,
        "gedppl": gedppl.__version__,
        "action_names": None if names is None else [str(name) for name in names],
        "context_names": None if script.context_names is None else [str(name) for name in script.context_names],
    }


def _check_folder(out: Path) -> None:
    """Find out before the run that its results can be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SettingError(f"cannot write to {out}: {error.strerror or error}; choose another --out") from error


def _write_report(run: Run, out: Path, options: argparse.Namespace) -> Path:
    from gedppl.report import write_report

    return write_report(run, out, decision=options.decision)


def _print_run(run: Run, out: Path, page: Path, options: argparse.Namespace) -> None:
    summary = run.summary()
    if options.json:
        print_as = {"folder": str(out), "report": str(page), "interrupted": run.interrupted, "summary": summary}
        _print_json(print_as | {"segments": run.by_segment(), "meta": run.meta})
        return
    rows = [
        ("rounds", _cell(summary["rounds"], "rounds")),
        ("mean utility", _cell(summary["mean_utility"], "")),
        ("  last quarter", _cell(summary["last_quarter_utility"], "")),
        ("  constrained oracle", _cell(summary["oracle_utility"], "")),
        ("regret", _cell(summary["regret"], "")),
        ("rounds above a limit", _cell(summary["infeasible_rounds"], "")),
    ]
    limits = dict(zip(run.problem.constraint_names, run.limit[-1]))
    rows += [
        (f"realised {name}", f"{_cell(value, '')} (limit {limits[name]:.4g})") for name, value in summary["realised_cost"].items()
    ]
    rows += [("safe action", _cell(summary["safe_share"], "safe_share"))]
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:<{width}}  {value}" for name, value in rows))
    print(f"\npage: {page}")


def _averaged(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds of every number."""
    out: dict[str, Any] = {}
    for key in found[0]:
        values = [row[key] for row in found]
        if isinstance(values[0], dict):
            out[key] = _averaged(values) if values[0] else {}
        else:
            out[key] = None if any(v is None for v in values) else float(np.mean(values))
    return out


def _cell(value: Any, key: str) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, str):
        return value
    if key == "safe_share":
        return f"{value:.0%}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.4g}" if abs(value) < 100 else f"{value:.1f}"


def _table(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))) for row in rows]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def _print_json(value: Any) -> None:
    from gedppl.certificate import plain

    print(json.dumps(strict(plain(value)), allow_nan=False))


def _bar(options: argparse.Namespace) -> bool:
    return not options.quiet and sys.stderr.isatty()


def _say(text: str) -> None:
    print(f"gedppl: {text}", file=sys.stderr)


def _failed(error: Exception, options: argparse.Namespace, code: int) -> int:
    if getattr(options, "traceback", False):
        traceback.print_exception(error)
    name = "" if isinstance(error, GedError) else f"{type(error).__name__}: "
    hint = "" if isinstance(error, GedError) or options.traceback else " (--traceback shows where)"
    _say(f"error: {name}{error}{hint}")
    return code


@contextlib.contextmanager
def _plain_warnings(quiet: bool) -> Iterator[None]:
    """Warnings as one line on stderr, once each, without the source line they came from."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)

        def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
            if not quiet:
                _say(f"note: {message}")

        warnings.showwarning = show
        yield


if __name__ == "__main__":
    sys.exit(main())
