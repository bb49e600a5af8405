"""Every row that a stream was told, from the ledger and from logged rows: what a posterior is computed from."""

from __future__ import annotations

from gedppl.agent import recorder
from gedppl.agent.feedback import Entry, rows_by_stream
from gedppl.agent.keeper import Keeper
from gedppl.rows import Rows


def rows_of(keeper: Keeper, stream: str) -> Rows | None:
    """The rows learned of a stream, logged ones first; None if there are none. Outcomes that are too young wait on."""
    problem, ledger = keeper.memory.problem, keeper.ledger
    payloads = [record.payload for record in keeper.records("observe")]
    logged = recorder.logged_entries(problem, payloads, None) if payloads else []
    old = keeper.rounds - problem.outcome_age
    told = [
        Entry(len(logged) + key, *ledger.asked[key], ledger.told[key], first=True) for key in sorted(ledger.told) if key <= old
    ]
    found = rows_by_stream(problem, [*logged, *told]).get(stream)
    return None if found is None else Rows.of(*found)
