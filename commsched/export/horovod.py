"""Horovod: a plan as ``groups=``, or else the best fusion threshold and cycle time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from commsched.export.knob import MOST_TUNED, best_value
from commsched.export.names import first_other
from commsched.export.result import Draft, difference, lines
from commsched.export.source import ExportSource
from commsched.models import Plan, Problem
from commsched.models.errors import NotApplicableError
from commsched.models.timeline import play
from commsched.models.units import MIB, NS_PER_MS
from commsched.optimizer.handy import handy_threshold
from commsched.optimizer.rules.horovod import THRESHOLD_BYTES, horovod, horovod_groups

TITLE = "Horovod"
MIN_GROUPS = "0.21.3"
"""The first Horovod with ``groups``."""
CYCLES_NS = (1_000_000, 500_000, 200_000, 100_000)
"""Cycle times that are tried; the default first, which is taken where nothing is won."""
PADDED_BYTES = 16
"""CUDA builds count each tensor as a multiple of so many bytes."""
NEEDS = (
    "HOROVOD_AUTOTUNE is not set: it would change threshold and cycle time while training",
    "one background loop that waits for its launches; what negotiating takes is not in the figures",
)


class _Best(NamedTuple):
    """The best of several cycle times."""

    makespan_ns: int
    cycle_ns: int
    threshold: int
    plan: Plan


def export_horovod(source: ExportSource) -> Draft:
    """Return Horovod's settings for a plan.

    Any partition can be expressed as groups. They are kept apart by
    ``HOROVOD_DISABLE_GROUP_FUSION=1``; a group that is larger than the fusion threshold would still
    be cut, so the threshold is raised. Horovod launches groups at the ticks of its cycle, in the
    order in which they become complete.

    Without parameter names, or with a Horovod that has no ``groups``, the best threshold is taken.

    Raises
    ------
    NotApplicableError
        If the plan has what Horovod has not, or the problem is needed and not there.
    """
    source.check(TITLE, ("allreduce",), holds=True)
    source.one_group(TITLE)
    source.no_sparse(TITLE)
    other = first_other(name for name, _ in source.members())
    if source.options.older_than(MIN_GROUPS):
        why = f"Horovod {source.options.version} has no groups, they came with {MIN_GROUPS}"
    elif other is not None:
        why = f"groups need parameter names; {other!r:.100} is none"
    else:
        return _groups(source)
    return _threshold(source, why)


def _groups(source: ExportSource) -> Draft:
    groups = [list(bucket.names) for bucket in source.plan.buckets]
    most = max(launch.bytes + PADDED_BYTES * len(launch.names) for launch in source.launches)
    threshold = max(THRESHOLD_BYTES, -(-most // MIB) * MIB)
    projected, cycle_ns = None, CYCLES_NS[0]
    if source.problem is not None:
        best = _best_cycle(
            source.problem,
            lambda problem, cycle: (
                threshold,
                horovod_groups(problem, groups, threshold=threshold, cycle_ns=cycle),
            ),
        )
        projected, cycle_ns = best.plan, best.cycle_ns
    environment = _environment(threshold, cycle_ns) | {"HOROVOD_DISABLE_GROUP_FUSION": "1"}
    text = lines(
        "import os",
        "",
        *_exports(environment),
        "",
        "GROUPS = [",
        (f"    {json.dumps(names, ensure_ascii=False)}," for names in groups),
        "]",
        "named = dict(model.named_parameters())",
        "optimizer = hvd.DistributedOptimizer(",
        "    optimizer,",
        "    named_parameters=model.named_parameters(),",
        "    groups=[[named[name] for name in names] for names in GROUPS],",
        ")",
    )
    cannot = ["launches between the ticks of the cycle time"]
    if source.problem is not None and projected is not None:
        cannot += difference(source.problem, source.plan, projected)
    return Draft(
        TITLE,
        {"groups": groups, "environment": environment},
        text,
        "python",
        tuple(cannot),
        (
            f"Horovod {MIN_GROUPS} or later",
            "the environment is set before hvd.init(), on every rank",
            *NEEDS,
        ),
        projected,
    )


def _threshold(source: ExportSource, why: str) -> Draft:
    if source.problem is None:
        raise NotApplicableError(
            f"{TITLE}: {why}; the best threshold cannot be found without the problem"
        )

    notes: tuple[str, ...] = ()

    def best(_: Problem, cycle_ns: int) -> tuple[int, Plan]:
        nonlocal notes
        found = best_value(
            source,
            lambda p, threshold: horovod(p, threshold, cycle_ns=cycle_ns),
            handy_threshold,
            most=MOST_TUNED // len(CYCLES_NS) * 2,
        )
        notes = found.notes
        return found.value, found.plan

    chosen = _best_cycle(source.problem, best)
    environment = _environment(chosen.threshold, chosen.cycle_ns)
    return Draft(
        TITLE,
        {"environment": environment},
        lines("import os", "", *_exports(environment)),
        "python",
        (why, *notes, *difference(source.problem, source.plan, chosen.plan)),
        (
            "the environment is set before hvd.init(), on every rank",
            "Horovod rounds the threshold up to a multiple of 512 bytes times the ranks of a node",
            *NEEDS,
        ),
        chosen.plan,
    )


def _best_cycle(problem: Problem, make: Callable[[Problem, int], tuple[int, Plan]]) -> _Best:
    """Return the best of the cycle times; the longest of those that are equally good."""
    found: list[_Best] = []
    for cycle_ns in CYCLES_NS:
        threshold, plan = make(problem, cycle_ns)
        found.append(_Best(play(problem, plan).makespan_ns, cycle_ns, threshold, plan))
    return min(found, key=lambda best: (best.makespan_ns, -best.cycle_ns))


def _environment(threshold: int, cycle_ns: int) -> dict[str, Any]:
    return {
        "HOROVOD_FUSION_THRESHOLD": str(threshold),
        "HOROVOD_CYCLE_TIME": f"{cycle_ns / NS_PER_MS:g}",
    }


def _exports(environment: dict[str, Any]) -> list[str]:
    return [f'os.environ["{name}"] = "{value}"' for name, value in sorted(environment.items())]
