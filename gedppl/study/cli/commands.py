"""What each command of the command line does. Every function takes the parsed options and
returns the exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gedppl
from gedppl.agent import GEDUCB
from gedppl.agent.starting import resume as resume_agent
from gedppl.errors import (
    GedError,
    JournalNotFoundError,
    RunFileError,
    RunNotFoundError,
    ScriptError,
    SettingError,
)
from gedppl.study.cli.rules import ORACLES, RULES, read_rules
from gedppl.study.cli.scripts import Script, agent_names, check_path, loaded, make_agent
from gedppl.study.cli.tables import (
    averaged,
    journal_table,
    journal_text,
    print_comparison,
    print_json,
    print_run,
    say,
)
from gedppl.study.planning.price import first_mix_words
from gedppl.study.simulation import draw_members, recover, simulate
from gedppl.study.simulation.run_files import ARRAYS, CERTIFICATES, META
from gedppl.study.simulation.runs import Run

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
JOURNAL = "journal.db"
LOOKED_AT = 20  # contexts at which the first mix is told


def run(options: argparse.Namespace) -> int:
    """Let an agent decide, save the run, write its report."""
    out = options.out or Path("runs") / options.script.stem
    check_path(options.script)
    if ((out / META).exists() or (out / JOURNAL).exists()) and not options.overwrite:
        raise SettingError(
            f"there is a run in {out} already; choose another --out, replace it with --overwrite, "
            "or go on with it: "
            f"gedppl resume {out}"
        )
    if options.decision is not None and not -options.rounds <= options.decision < options.rounds:
        raise SettingError(
            f"--decision {options.decision} is not one of the {options.rounds} "
            f"rounds, 0 to {options.rounds - 1}"
        )
    with loaded(options.script) as script:
        chosen: dict[str, Any] = {
            "seed": options.seed,
            "delta": options.delta,
            "mode": options.mode,
        }
        chosen |= _rules(options.oracle, options.confidence)
        # wrong options spare the older run
        make_agent(options.agent, script.problem, script.environment, **chosen)
        _check_folder(out)  # only now: a script that cannot run leaves no empty folder behind
        _remove_run(out)
        journal = (
            out / JOURNAL
            if options.journal and options.agent.partition("-")[0] == "gedppl"
            else None
        )
        agent = make_agent(
            options.agent, script.problem, script.environment, journal=journal, **chosen
        )
        new = Run(script.problem, options.seed, meta=_describe(options, script))
        if journal is not None:
            # so that a process that is killed leaves what `resume` needs beside its journal
            new.save(out)
        return _decide(options, script, agent, new, options.rounds, out)


def resume(options: argparse.Namespace) -> int:
    """Go on with a run from its journal."""
    out = options.folder
    past = Run.load(out)
    path = out / JOURNAL
    if not path.exists():
        raise JournalNotFoundError(
            f"there is no {JOURNAL} in {out}, so its agent cannot be brought back: only runs of "
            "the gedppl agent "
            "have one, and none with --no-journal"
        )
    script_path = options.script or Path(str(past.meta.get("script", "")))
    options.decision = None
    with loaded(script_path) as script:
        past.adopt(script.problem)
        agent = resume_agent(
            path, script.problem, **_rules(past.meta.get("oracle"), past.meta.get("confidence"))
        )
        try:
            added = recover(agent, script.environment, past)
        except BaseException:
            agent.close()
            raise
        if not options.quiet:
            say(
                f"{agent.resumed}"
                + (f"; {added} of them were not in the saved run" if added else "")
            )
        left = int(past.meta.get("rounds_asked", 0)) - len(past)
        rounds = options.rounds if options.rounds is not None else left
        if rounds < 1:
            agent.close()
            raise SettingError(
                f"the run in {out} has all of its {len(past)} rounds; say how many "
                "more with --rounds"
            )
        past.meta["rounds_asked"] = len(past) + rounds
        past.meta.pop("failed", None)
        return _decide(options, script, agent, past, rounds, out)


def compare(options: argparse.Namespace) -> int:
    """Several agents in the same world."""
    names = [name.strip() for name in options.agents.split(",") if name.strip()]
    if not names:
        raise SettingError("--agents names nobody; e.g. --agents gedppl,oracle,always-safe")
    if options.out is not None or options.workers > 1 or options.backend != "loky":
        return _compare_cells(options, names)
    chosen: dict[str, Any] = {
        "delta": options.delta,
        "mode": options.mode,
        "rounds": options.rounds,
    }
    rows: list[dict[str, Any]] = []
    interrupted = False
    with loaded(options.script) as script:
        chosen["own"] = script.agents
        for name in names:  # a misspelt name should not cost a run first
            make_agent(name, script.problem, script.environment, seed=options.seed, **chosen)
        for name in names:
            found: list[dict[str, Any]] = []
            for seed in range(options.seed, options.seed + options.seeds):
                if _bar(options):
                    say(f"{name}, seed {seed}")
                with contextlib.redirect_stdout(sys.stderr):
                    world = script.new_environment() if rows or found else script.environment
                    agent = make_agent(name, script.problem, world, seed=seed, **chosen)
                    begun = time.perf_counter()
                    new = simulate(
                        script.problem, world, agent, options.rounds, seed, progress=_bar(options)
                    )
                found.append(new.summary() | {"seconds": round(time.perf_counter() - begun, 2)})
                interrupted = new.interrupted
                if interrupted:
                    break
            rows.append({"agent": name, "seeds": len(found)} | averaged(found))
            if interrupted:
                break
    if options.json:
        print_json(
            {
                "script": str(options.script),
                "rounds": options.rounds,
                "interrupted": interrupted,
                "agents": rows,
            }
        )
    else:
        print_comparison(rows)
    if interrupted:
        say("interrupted: the last agent's numbers are of an incomplete run")
    return INTERRUPTED if interrupted else OK


def _compare_cells(options: argparse.Namespace, names: list[str]) -> int:
    """Every agent and seed as a cell of its own: kept in a folder, spread over workers, failures
    beside the others.
    """
    from gedppl.study.cli.sweep import sweep
    from gedppl.study.cli.sweep_page import rows_of, write_page

    out = options.out or Path("runs") / f"compare-{options.script.stem}"
    with loaded(options.script) as script:
        unknown = sorted(set(names) - set(agent_names(script.problem, script.agents)))
        if unknown:
            known = ", ".join(agent_names(script.problem, script.agents))
            raise SettingError(f"there is no agent {unknown[0]!r}; choose from {known}")
        try:
            results = sweep(
                script,
                list(dict.fromkeys(names)),
                range(options.seed, options.seed + options.seeds),
                out,
                rounds=options.rounds,
                delta=options.delta,
                mode=options.mode,
                workers=options.workers,
                backend=options.backend,
                address=options.address,
                say=(lambda text: None) if options.quiet else say,
            )
        except KeyboardInterrupt:
            say(
                f"interrupted; the cells that are complete are in {out}, and the same command goes "
                "on with the others"
            )
            return INTERRUPTED
        rows = rows_of(results)
        page = write_page(results, out, title=script.title or script.path.stem)
    if options.json:
        print_json(
            {
                "script": str(options.script),
                "rounds": options.rounds,
                "page": str(page),
                "agents": rows,
            }
        )
    else:
        print_comparison([row for row in rows if row["seeds"]])
        for row in rows:
            for sentence in row["failures"]:
                print(f"\n{row['agent']}: {sentence}")
        print(f"\npage: {page}")
    return OK if any(row["seeds"] for row in rows) else FAILED


def report(options: argparse.Namespace) -> int:
    """The page and pictures of a saved run, again."""
    past = Run.load(options.folder)
    if not len(past):
        raise RunFileError(
            f"the run in {options.folder} has no rounds; `gedppl resume "
            f"{options.folder}` may recover them"
        )
    print_run(
        past,
        options.folder,
        _write_report(past, options.folder, options.decision),
        as_json=options.json,
    )
    return OK


def show_journal(options: argparse.Namespace) -> int:
    """What a journal holds."""
    path = _journal_path(options)
    text = journal_text(path, options.last)
    print_json({"path": str(path), "text": text.splitlines()}) if options.json else print(text)
    return OK


def export_journal(options: argparse.Namespace) -> int:
    """A journal's records as a table."""
    rows = journal_table(_journal_path(options), options.file, blinded=options.blinded)
    print_json({"path": str(options.file), "rows": rows}) if options.json else print(
        f"{rows} rows in {options.file}"
    )
    return OK


def _journal_path(options: argparse.Namespace) -> Path:
    path: Path = options.path / JOURNAL if options.path.is_dir() else options.path
    if not path.is_file():
        raise JournalNotFoundError(
            f"there is no journal {path}; give its path, or the folder of a run that has one"
        )
    return path


# parts --------------------------------------------------------------------------------------------


def _decide(
    options: argparse.Namespace, script: Script, agent: Any, new: Run, rounds: int, out: Path
) -> int:
    """Simulate, then save and report whatever was complete."""
    failure: Exception | None = None
    begun, asked = time.perf_counter(), len(new) + rounds
    try:
        with contextlib.redirect_stdout(sys.stderr):
            if not len(new) and not options.quiet and _keeps_limits_unseen(agent):
                _say_first_mix(script, new.seed, min(rounds, LOOKED_AT))
            simulate(
                script.problem,
                script.environment,
                agent,
                rounds,
                new.seed,
                progress=_bar(options),
                run=new,
            )
    except KeyboardInterrupt:  # the second one
        new.interrupted = True
    except Exception as error:
        failure = error
        new.meta["failed"] = f"{type(error).__name__}: {error}"
    new.meta["seconds"] = round(float(new.meta.get("seconds", 0)) + time.perf_counter() - begun, 1)
    if len(new):
        if script.segments is not None:
            new.add_segments(script.segments)
        new.members = draw_members(agent)
        new.meta["alarms"] = [
            *new.meta.get("refuted", []),
            *(alarm.sentence for alarm in getattr(agent, "alarms", [])),
        ]
        new.save(out)
        shown = (
            options.decision if options.decision is None or options.decision < len(new) else None
        )
        page = _write_report(new, out, shown) if options.report else None
        print_run(new, out, page, as_json=options.json)
    if hasattr(agent, "close"):
        agent.close()
    if failure is not None:
        say(
            f"the run failed after {len(new)} rounds"
            + (f"; these are in {out}" if len(new) else "")
        )
        return failed(failure, options, FAILED)
    if new.interrupted:
        onwards = f"; go on with: gedppl resume {out}" if (out / JOURNAL).exists() else ""
        say(f"interrupted after {len(new)} of {asked} rounds; these are in {out}{onwards}")
        return INTERRUPTED
    return OK


def _keeps_limits_unseen(agent: Any) -> bool:
    """Whether the agent keeps learned limits from its first round on: the paper's warm-up does
    not, nor need others.
    """
    return isinstance(agent, GEDUCB) and agent.settings.warmup == "none"


def _say_first_mix(script: Script, seed: int, looks: int) -> None:
    """Before the run: how often its first decisions can leave the safe action at all, at
    contexts such as it will meet.
    """
    if script.problem.n_actions < 2 or not script.problem.learned:
        return
    try:
        world = copy.deepcopy(script.environment)  # the run's own may count its contexts
    except TypeError:
        # it holds what cannot be copied, an open file, say: its contexts are the run's
        return
    rng = np.random.default_rng(seed)
    say(
        first_mix_words(script.problem, np.array([world.context(rng) for _ in range(looks)], float))
    )


def _rules(oracle: Sequence[str] | None, confidence: Sequence[str] | None) -> dict[str, Any]:
    """Oracle and confidence as the command line, or a run that it began, names them."""
    return {
        "oracle": read_rules("--oracle", oracle or (), ORACLES),
        "confidence": read_rules("--confidence", confidence or (), RULES),
    }


def _describe(options: argparse.Namespace, script: Script) -> dict[str, Any]:
    return {
        "title": script.title,
        "script": str(script.path),
        "agent": options.agent,
        "mode": options.mode if options.agent == "gedppl" else None,
        "delta": options.delta,
        "oracle": options.oracle,
        "confidence": options.confidence,
        "rounds_asked": options.rounds,
        "gedppl": gedppl.__version__,
        "action_names": None
        if script.action_names is None
        else [str(name) for name in script.action_names],
        "context_names": None
        if script.context_names is None
        else [str(name) for name in script.context_names],
    }


def _check_folder(out: Path) -> None:
    """Find out before the run that its results can be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SettingError(
            f"cannot write to {out}: {error.strerror or error}; choose another --out"
        ) from error


def _remove_run(out: Path) -> None:
    """Remove an earlier run's files, which --overwrite allows: a journal must not be continued
    by another run.
    """
    for path in [out / META, out / ARRAYS, out / CERTIFICATES, *out.glob(f"{JOURNAL}*")]:
        path.unlink(missing_ok=True)


def _write_report(run: Run, out: Path, decision: int | None) -> Path:
    from gedppl.study.report import write_report

    return write_report(run, out, decision=decision)


def _bar(options: argparse.Namespace) -> bool:
    return not options.quiet and sys.stderr.isatty()


def failed(error: Exception, options: argparse.Namespace, code: int) -> int:
    """Say what went wrong, in one line if it is an error of ours."""
    if options.traceback:
        traceback.print_exception(error)
    if isinstance(error, GedError):
        say(f"error: {error}")
    else:
        hint = "" if options.traceback else " (--traceback shows where)"
        say(f"error: {type(error).__name__}: {error}{hint}")
    return code


USAGE_ERRORS = (ScriptError, SettingError, RunNotFoundError, JournalNotFoundError)
