"""The first uniform number of many random streams at once.

Every decision draws from a stream of its own, `numpy.random.default_rng([seed, id])`, and one
number of it. Making a generator takes longer than all else that a decision of a large cohort needs;
here NumPy's seeding (`SeedSequence`, O'Neill's `seed_seq_fe128`) and the first step of its PCG64
are done for all ids together. Both are part of NumPy's promise of stable streams; a test compares
them number by number.

References
----------
O'Neill, "PCG: A family of simple fast space-efficient statistically good algorithms for random
number generation" (2014).
"""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np

POOL = 4  # words
BLOCK = 64  # streams begun together
INIT_A, MULT_A = 0x43B0D7E5, 0x931E8875
INIT_B, MULT_B = 0x8B51F9DD, 0x58F38DED
MIX_L, MIX_R = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
WORD, SHIFT = 0xFFFFFFFF, np.uint32(16)


def first_uniforms(seed: int, ids: np.ndarray, last: int = 0) -> np.ndarray:
    """`default_rng([seed, id, last]).random()` of every id (n,); without `last` where it is 0.

    >>> first_uniforms(7, np.array([3])) == np.random.default_rng([7, 3]).random()
    array([ True])
    """
    if len(ids) and ids.max() > WORD:  # two words: not worth a second case
        tail = [last] if last else []
        return np.array([np.random.default_rng([seed, i, *tail]).random() for i in ids.tolist()])
    return np.array([_first(*words) for words in zip(*_seeded(seed, ids, last))])


@lru_cache(maxsize=64)
def block_of_uniforms(seed: int, block: int, last: int = 0) -> list[float]:
    """The same of ids block * BLOCK, ..., (block + 1) * BLOCK - 1, kept: a run asks for one after
    the other.
    """
    found: list[float] = first_uniforms(seed, block * BLOCK + np.arange(BLOCK), last).tolist()
    return found


def _seeded(seed: int, ids: np.ndarray, last: int) -> list[list[int]]:
    """Four 64-bit words of every stream, `SeedSequence([seed, id, last]).generate_state(4,
    uint64)`; up to four words of zeros change nothing.
    """
    known = [seed & WORD, *([seed >> 32] if seed >> 32 else [])]
    entropy = [np.full(len(ids), word, np.uint32) for word in known] + [ids.astype(np.uint32)]
    entropy.append(np.full(len(ids), last, np.uint32))
    entropy += [np.zeros(len(ids), np.uint32)] * (POOL - len(entropy))
    constants = _constants(INIT_A, MULT_A)
    pool = [_hashed(word, *next(constants)) for word in entropy]
    for i, j in itertools.permutations(range(POOL), 2):
        mixed: np.ndarray = MIX_L * pool[j] - MIX_R * _hashed(pool[i], *next(constants))
        pool[j] = mixed ^ (mixed >> SHIFT)
    constants = _constants(INIT_B, MULT_B)
    out = [_hashed(pool[k % POOL], *next(constants)).astype(np.uint64) for k in range(2 * POOL)]
    return [(low | (high << np.uint64(32))).tolist() for low, high in zip(out[::2], out[1::2])]


def _constants(first: int, factor: int) -> itertools.chain[tuple[np.uint32, np.uint32]]:
    """What each word is combined with, and multiplied by: the next of the same sequence."""
    found, now = [], first
    for _ in range(POOL * POOL):
        after = now * factor & WORD
        found.append((np.uint32(now), np.uint32(after)))
        now = after
    return itertools.chain(found)


def _hashed(word: np.ndarray, before: np.uint32, after: np.uint32) -> np.ndarray:
    mixed: np.ndarray = (word ^ before) * after
    found: np.ndarray = mixed ^ (mixed >> SHIFT)
    return found


def _first(high: int, low: int, stream_high: int, stream_low: int) -> float:
    """The first number of PCG64 with this state and stream."""
    whole = 2**128 - 1
    step = (stream_high << 65 | stream_low << 1 | 1) & whole
    state = (step + (high << 64 | low)) & whole
    for _ in range(2):  # once to begin, once for the number
        state = (state * MULTIPLIER + step) & whole
    word, turn = (state >> 64 ^ state) & (2**64 - 1), state >> 122
    word = (word >> turn | word << (-turn & 63)) & (2**64 - 1)
    return (word >> 11) * 2.0**-53
