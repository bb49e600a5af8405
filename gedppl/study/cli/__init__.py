"""The command line: ``gedppl run | compare | report | resume | journal``.

Exit codes: 0 done; 1 the run failed (what was complete is saved); 2 the command was wrong; 130
interrupted, results saved. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import os

# Before NumPy is loaded, unless the user has chosen: matrices here are small, and threads that wait
# for each other cost more than they save.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gedppl
from gedppl.study.cli import commands
from gedppl.study.cli.scripts import MODES
from gedppl.study.cli.tables import plain_warnings, say

TOP_HELP = """examples:
  gedppl run models/dosing.py --rounds 2000 --seed 0 --out runs/dosing
  gedppl compare models/dosing.py --rounds 500
  gedppl report runs/dosing --decision 120
  gedppl resume runs/dosing --rounds 1000
  gedppl journal show runs/dosing

exit codes: 0 done, 1 the run failed, 2 the command was wrong, 130 interrupted with results saved"""

RUN_HELP = """examples:
  gedppl run models/dosing.py --rounds 2000 --seed 0 --out runs/dosing
  gedppl run my_problem.py --rounds 200 --quiet --json > summary.json
  gedppl run my_problem.py --agent always-safe --out runs/safe
  gedppl run models/dosing.py --confidence credible:level=0.9,source=nuts --out runs/credible
  gedppl run models/dosing.py --oracle utility=svi:guide=normal --out runs/svi

The script is a plain Python file with
  problem()       returns a gedppl.Problem
  environment()
      returns an object with context, outcome, utilities and costs (see
      gedppl.study.simulation.Environment)
  segments(x)     optional: {"sex": "female", ...} for one context, to break results down by
  ACTIONS         optional: names of the actions; COLUMNS: names of the context's columns

The folder holds report.html (one page, opens anywhere), the pictures as PNG, run.nc (for ArviZ),
run.npz and run.json (the run, for `gedppl report` and gedppl.Run.load) and journal.db (every
decision and outcome, for `gedppl resume`). Ctrl-C ends after the round at hand; results up to there
are written and the exit code is 130."""

COMPARE_HELP = """examples:
  gedppl compare models/dosing.py --rounds 1000
  gedppl compare my_problem.py --agents gedppl,oracle,always-safe,greedy --seeds 3 --json
  gedppl compare models/bandit.py --agents gedppl,oplb,roful --seeds 20 --workers 4 --out runs/arena

agents:
  gedppl, gedppl-theory, gedppl-paper   this library, in its three modes
  oracle                                knows the truth and keeps every limit
  greedy                                knows the truth and ignores the limits
  always-safe, always-K                 one action always (K a number)
  oplb, roful, safe-lts, ...
      other papers' algorithms (gedppl/study/baselines); the models must fit them
All agents meet the same contexts. Regret is against the oracle: who breaks limits, as greedy does,
can have a negative one. With --out each agent and seed is kept as it is done: the same command goes
on where it was ended, one that fails stops no other, and index.html shows regret, rounds above a
limit, excess cost, share of the safe action and time. --backend dask or ray with --address spreads
them over a cluster; its workers need gedppl and the script at the same path. "above a limit" counts
rounds whose policy truly exceeds a limit; "realised above" counts outcomes, which chance alone can
do."""

REPORT_HELP = """examples:
  gedppl report runs/dosing
  gedppl report runs/dosing --decision 120     show the certificate of decision 120"""

RESUME_HELP = """examples:
  gedppl resume runs/dosing
      the rounds that an interrupted or killed run still lacks
  gedppl resume runs/dosing --rounds 1000      a thousand more

The agent comes back from the journal in the folder, exactly as it was. The environment is brought
there by drawing the same contexts and outcomes again, and the run is refused if it draws others
(the script or its data have changed)."""

JOURNAL_HELP = """examples:
  gedppl journal show runs/dosing                      what it holds, alarms, the last decisions
  gedppl journal export runs/dosing table.csv          all records as a table (.csv or .parquet)
  gedppl journal export trial.db blind.csv --blinded
      arms as codes only, and nothing that gives them away"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        with plain_warnings(options.quiet):
            code: int = options.command(options)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        say("interrupted")
        return commands.INTERRUPTED
    except BrokenPipeError:
        # `gedppl ... | head`; the interpreter's own flush at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return commands.OK
    except commands.USAGE_ERRORS as error:
        return commands.failed(error, options, commands.USAGE)
    except Exception as error:
        return commands.failed(error, options, commands.FAILED)


def _parser() -> argparse.ArgumentParser:
    top = _new_parser(
        argparse.ArgumentParser,
        "gedppl",
        "Safe sequential decisions from probabilistic programs.",
        TOP_HELP,
    )
    top.add_argument("--version", action="version", version=f"gedppl {gedppl.__version__}")
    subparsers = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(
        name: str,
        what: str,
        examples: str,
        run: Callable[[argparse.Namespace], int],
        among: Any = subparsers,
    ) -> argparse.ArgumentParser:
        parser = _new_parser(among.add_parser, name, what, examples, help=what)
        parser.set_defaults(command=run)
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object instead of a table"
        )
        parser.add_argument("--quiet", action="store_true", help="no progress bar and no notes")
        parser.add_argument(
            "--traceback", action="store_true", help="show where an error came from"
        )
        return parser

    run = command(
        "run", "let an agent decide in a script's environment, and report", RUN_HELP, commands.run
    )
    run.add_argument("script", type=Path, help="a Python file with problem() and environment()")
    _add_run_options(run, rounds=1000)
    run.add_argument("--out", type=Path, help="folder for the results (runs/NAME)")
    run.add_argument(
        "--agent", default="gedppl", help="who decides; the same names as in compare (%(default)s)"
    )
    run.add_argument(
        "--confidence",
        action="append",
        metavar="RULE",
        help="how limits are kept: NAME or NAME:option=value,... (credible:level=0.9,source=nuts); "
        "OUTCOME=RULE for one outcome",
    )
    run.add_argument(
        "--oracle",
        action="append",
        metavar="ORACLE",
        help="how models are fitted, spelled alike (svi:steps=500)",
    )
    run.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a run that is already in the folder, and its journal",
    )
    run.add_argument(
        "--decision",
        type=int,
        help="decision whose certificate the page shows (one that mixes actions)",
    )
    _add_report_option(run)
    run.add_argument(
        "--journal",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep every decision and outcome durably, so that the run can be resumed",
    )

    compare = command(
        "compare", "several agents on the same contexts, as a table", COMPARE_HELP, commands.compare
    )
    compare.add_argument("script", type=Path, help="a Python file with problem() and environment()")
    _add_run_options(compare, rounds=500)
    compare.add_argument(
        "--agents", default="gedppl,oracle,always-safe,greedy", help="comma-separated (%(default)s)"
    )
    compare.add_argument(
        "--seeds", type=_positive, default=1, help="how many seeds, from --seed on (%(default)s)"
    )
    compare.add_argument(
        "--out", type=Path, help="keep every cell here, go on from what is there, and write a page"
    )
    compare.add_argument(
        "--workers", type=_positive, default=1, help="how many cells at once (%(default)s)"
    )
    compare.add_argument(
        "--backend",
        choices=("loky", "dask", "ray"),
        default="loky",
        help="where workers run (%(default)s)",
    )
    compare.add_argument("--address", help="of a Dask or Ray cluster; a local one if not given")

    report = command(
        "report", "write the page and pictures of a saved run again", REPORT_HELP, commands.report
    )
    report.add_argument("folder", type=Path, help="what --out was")
    report.add_argument("--decision", type=int, help="decision whose certificate the page shows")

    resume = command("resume", "go on with a run from its journal", RESUME_HELP, commands.resume)
    resume.add_argument("folder", type=Path, help="what --out was")
    resume.add_argument(
        "--rounds", type=_positive, help="how many more decisions (those the run still lacks)"
    )
    _add_report_option(resume)
    resume.add_argument("--script", type=Path, help="where the script is now, if it has moved")

    about = "what a journal holds, or its records as a table"
    journal = _new_parser(subparsers.add_parser, "journal", about, JOURNAL_HELP, help=about)
    parts = journal.add_subparsers(title="commands", required=True, metavar="show | export")
    show = command(
        "show",
        "what a journal holds, alarms, the last decisions",
        JOURNAL_HELP,
        commands.show_journal,
        parts,
    )
    export = command(
        "export", "all records as a table", JOURNAL_HELP, commands.export_journal, parts
    )
    for parser in (show, export):
        parser.add_argument("path", type=Path, help="a journal, or the folder of a run")
    show.add_argument(
        "--last", type=_positive, default=5, help="how many decisions to show (%(default)s)"
    )
    export.add_argument("file", type=Path, help="where to write: .csv or .parquet")
    export.add_argument("--blinded", action="store_true", help="arms as codes only")
    return top


def _new_parser(
    make: Callable[..., argparse.ArgumentParser], name: str, what: str, examples: str, **more: Any
) -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    first = {"prog": name} if make is argparse.ArgumentParser else {"name": name}
    return make(
        **first,
        description=what[0].upper() + what[1:],
        epilog=examples,
        formatter_class=form,
        **more,
    )


def _add_run_options(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument(
        "--rounds", type=_positive, default=rounds, help="how many decisions (%(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=_whole,
        default=0,
        help="random seed of the world and of the agent (%(default)s)",
    )
    parser.add_argument(
        "--delta",
        type=float,
        default=0.05,
        help="limits hold with probability 1 - DELTA (%(default)s)",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="default",
        help="which formulas the gedppl agent uses (%(default)s)",
    )


def _add_report_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write the page, the pictures and run.nc; `gedppl report` does so later",
    )


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
