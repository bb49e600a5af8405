"""One small world with a known truth and one run of the agent in it, shared by the tests of what
comes after the agent.
"""

from __future__ import annotations

from functools import cache

import gedppl as ged
from gedppl.study.simulation import draw_members, simulate
from gedppl.study.simulation.runs import Run
from tests.problems import TableWorld

K = 3
# one object: its compiled functions are kept
WORLD = TableWorld(n_contexts=2, n_actions=K, members=12, seed=1)


@cache
def _agents_run() -> Run:
    agent = ged.GEDUCB(WORLD.problem(), seed=0)
    run = simulate(WORLD.problem(), WORLD, agent, 60, seed=5)
    run.members = draw_members(agent)
    return run


def agents_run() -> Run:
    """60 rounds of the agent, with members of its sets; a new object every time, made of the
    same rounds.
    """
    made = _agents_run()
    return Run(
        made.problem, made.seed, list(made.rounds), made.environment_state, members=made.members
    )
