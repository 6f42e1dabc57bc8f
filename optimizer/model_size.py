"""How large CP-SAT's models of the whole step may become; known without loading OR-Tools."""

from __future__ import annotations

from commsched.models import Problem

MAX_PAIRS = 60_000
"""Pairs of places in one fusion key's ready order: candidate buckets of scope in-order, or bucket
and member of scope any."""


def pairs(problem: Problem) -> int:
    """Return how many pairs of places there are."""
    return sum(len(chain) * (len(chain) + 1) // 2 for chain in problem.chains.values())


def small_enough(problem: Problem) -> bool:
    """Return whether a problem is small enough for a model of the whole."""
    return pairs(problem) <= MAX_PAIRS
