"""The exact counterfactual pass with nothing precomputed: what the fast one in
`gedppl.counterfactual` is compared with.
"""

from __future__ import annotations

import numpy as np

from gedppl.counterfactual import PassResult, expected_inverse_count
from gedppl.counterfactual.inputs import checked
from gedppl.errors import InfeasibleError
from gedppl.selection import select_policy


def clear_pass(
    base_score,
    cost_upper,
    at_most,
    bonus_weight,
    block_start,
    t,
    *,
    available=None,
    reveals=None,
    warmup_pulls=1,
    safe_action=None,
    keep_path=False,
) -> PassResult:
    """At every context, round by round: score, select, count."""
    given = checked(
        base_score,
        cost_upper,
        at_most,
        bonus_weight,
        block_start,
        t,
        available,
        reveals,
        warmup_pulls,
        safe_action,
    )
    found = []
    for c in range(len(given.base)):
        # what each past round showed, after a row of nothing
        seen, path = [np.zeros(given.base.shape[2])], []
        for i in range(t + 1):
            b = int(np.searchsorted(given.start, i, side="right")) - 1
            inverse, count = (
                expected_inverse_count(np.array(seen), pulls=given.pulls),
                np.sum(seen, axis=0),
            )
            score = given.base[c, b] + given.bonus[i] * inverse
            limits = {
                "allowed": given.available[c, b],
                "played": count - given.eager,
                "safe_action": given.safe_action,
            }
            try:
                policy = select_policy(score, given.cost[c, b], given.limit[b], **limits)
            except InfeasibleError:
                if i == t:
                    raise
                policy = given.stand_in(c, b)
            path.append(policy)
            seen.append(np.minimum(policy @ given.reveals, 1.0))
        found.append((policy, inverse, count, np.array(path)))
    policy, inverse, count, path = (np.array(part) for part in zip(*found))
    return PassResult(
        policy,
        inverse,
        count,
        given.base[:, -1] + given.bonus[-1] * inverse,
        path if keep_path else None,
    )
