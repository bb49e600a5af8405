"""What comes in from outside: outcomes, corrections, logged rows, actions taken off the list. Each
is read, checked, and handed to the keeper as one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gedppl.agent import memory as steps
from gedppl.agent import recorder
from gedppl.agent.deciding import Decision
from gedppl.agent.feedback import (
    amended_outcomes,
    new_outcomes,
    read_log,
    read_outcomes,
    read_triples,
)
from gedppl.agent.keeper import Keeper
from gedppl.agent.memory import Memory
from gedppl.errors import ActionRangeError, DataError, UnknownDecisionError
from gedppl.ged_ucb import Entry, Outcomes
from gedppl.guard import Alarm
from gedppl.numerics.arrays import is_whole


def known_id(keeper: Keeper, decision: Decision | int) -> int:
    """The id of a decision that was made."""
    asked = keeper.ledger.asked
    decision_id = decision.id if isinstance(decision, Decision) else decision
    if not is_whole(decision_id) or int(decision_id) not in asked:
        raise UnknownDecisionError(
            f"there is no decision {decision_id!r}; decisions so far: {len(asked)}"
        )
    return int(decision_id)


def tell(keeper: Keeper, outcomes: Sequence[tuple[Decision | int, Any, Any]]) -> None:
    """See `GEDUCB.tell_many`."""
    asked, told = keeper.ledger.asked, keeper.ledger.told
    fresh: dict[int, Outcomes] = {}
    entries = []
    for decision, y, z in read_triples(outcomes):
        key = known_id(keeper, decision)
        x, action = asked[key]
        known = told.get(key, {}) | fresh.get(key, {})
        news = new_outcomes(key, known, read_outcomes(keeper.memory.problem, x, action, y, z))
        first = key not in told and key not in fresh
        if news or first:
            entries.append(Entry(key, x, action, news, first))
            fresh[key] = fresh.get(key, {}) | news
    if entries:
        records: list[recorder.Step] = [
            ("outcome", recorder.outcome_payload(e.id, e.outcomes)) for e in entries
        ]
        now = {key: told.get(key, {}) | news for key, news in fresh.items()}
        keeper.commit(records, steps.told(keeper.memory, entries), told=now)


def amend(keeper: Keeper, decision: Decision | int, y: Any, z: Any) -> None:
    """See `GEDUCB.amend`."""
    key = known_id(keeper, decision)
    given = read_outcomes(keeper.memory.problem, *keeper.ledger.asked[key], y, z)
    if not given:
        raise DataError(f"amend() was given no outcome of decision {key}; pass y=, z= or both")
    known = keeper.ledger.told.get(key, {})
    news = amended_outcomes(key, known, given)
    if news:
        memory, ledger = keeper.amended(key, news)
        was = recorder.outcome_payload(key, {name: known[name] for name in news})
        keeper.commit(
            [("amend", recorder.outcome_payload(key, news) | {"was": was})], memory, ledger=ledger
        )


def observe(keeper: Keeper, x: Any, a: Any, y: Any, z: Any) -> list[Alarm]:
    """See `GEDUCB.observe`; the alarms that the rows set off."""
    memory = keeper.memory
    rows = read_log(memory.problem, x, a, y, z, memory.width)
    payloads = recorder.observe_payloads(memory.problem, rows)
    entries = recorder.logged_entries(memory.problem, payloads, memory.width)
    after = steps.observed(memory, entries)
    return keeper.commit([("observe", payload) for payload in payloads], after)


def offer(memory: Memory, action: int | str, on_offer: bool) -> dict[str, Any]:
    """The record of an action that is on offer from now on, or no longer."""
    names = memory.problem.names
    key = names.action(action)
    label = names.label(key)
    if key == memory.problem.safe_action and not on_offer:
        raise ActionRangeError(
            f"action {label} is the safe action and cannot be retired; retire another"
        )
    available = memory.available
    available[key] = on_offer
    return recorder.actions_payload(
        f"action {label} {'restored' if on_offer else 'retired'}", available
    )
