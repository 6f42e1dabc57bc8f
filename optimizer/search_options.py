"""What a search may use: its limits, its parts and their shares of the time."""

from __future__ import annotations

from dataclasses import dataclass, field

from commsched.optimizer.incumbent import Progress

PIECES_SHARE = 0.15
"""Share of the time limit for the search of groupings; twice that for large steps."""
FEW = 24
"""So few collectives are left to CP-SAT without a search of groupings, which would take longer."""
PAUSES_SHARE = 0.25
"""Share of the time limit for filling pauses."""
CPSAT_SHARE = 0.5
"""Share of the time limit for which CP-SAT's work is counted where plans are to be repeatable."""
RULES_SHARE = 0.15
"""Share of the time limit after which no further rule is tried."""
WINDOWS_SHARE = 0.45
"""Share of the time limit for the search of nested windows."""
LOCAL_SHARE = 0.7
"""Share of the time limit after which local search leaves the rest to CP-SAT."""
MOVES_A_PAIR = 300
"""Before CP-SAT proves it, no more moves than that for each pair of collectives."""
MOST_AFTER_LOCAL = 100
"""Where local search applies, CP-SAT only follows it for up to so many collectives."""
ORDERS_SHARE = 0.3
"""The same for the search over general orders."""
PATIENCE_A_PAIR = 5
"""Before CP-SAT, moves without a better plan after which it stops, for each pair of collectives."""
MOST_S = 3600.0
"""Of longer limits no more than that is counted in moves and states."""
REDUCING_MOVES = 20_000
WHOLE_NS_JOBS = 12
"""Up to so many collectives a plan is also proved to the last nanosecond, without any rounding."""
PARTS = frozenset(
    {
        "ancestors",
        "chains",
        "cpsat",
        "deadlines",
        "launches",
        "nested",
        "orders",
        "pauses",
        "pieces",
        "priorities",
        "rules",
        "subsets",
        "two-sided",
    }
)
"""What a search is made of; benchmarks leave parts out to see what they bring."""


@dataclass(frozen=True)
class Options:
    """What a search may use.

    Attributes
    ----------
    time_limit_s, workers, seed, log, within, progress, repeatable
        As for :func:`commsched.optimize`.
    parts
        Some of :data:`PARTS`.
    """

    time_limit_s: float
    workers: int
    seed: int
    log: bool = False
    within: float = 0.0
    progress: Progress | None = None
    repeatable: bool = False
    parts: frozenset[str] = field(default=PARTS)
