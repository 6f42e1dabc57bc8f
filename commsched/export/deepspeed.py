"""DeepSpeed: the best ``reduce_bucket_size`` for a plan, as a fragment of its JSON configuration."""

from __future__ import annotations

import json
from typing import Any

from commsched.export.knob import best_value
from commsched.export.result import Draft, difference, same_buckets
from commsched.export.source import ExportSource
from commsched.models import Plan
from commsched.models.dtypes import elements
from commsched.models.errors import NotApplicableError
from commsched.models.timeline import play
from commsched.optimizer.handy import handy_number
from commsched.optimizer.rules.deepspeed import deepspeed

TITLE = "DeepSpeed"
UNIT_BYTES = 16
"""The bytes of the largest element, of which the knob counts."""


def export_deepspeed(source: ExportSource) -> Draft:
    """Return DeepSpeed's configuration for a plan.

    There is one number for all buckets, in elements: a true maximum. A bucket is launched when the
    first gradient that no longer fits arrives, and the last one at the end of backward.

    Raises
    ------
    NotApplicableError
        If the plan has what DeepSpeed has not, or the stage has no such number.
    """
    source.check(TITLE, ("allreduce",), holds=True)
    source.one_group(TITLE)
    source.no_sparse(TITLE)
    stage = source.options.zero_stage
    if stage == 0:
        raise NotApplicableError(
            "DeepSpeed without ZeRO (stage 0) reduces after backward in buckets of 500,000,000 "
            "elements that no key changes; use stage 1, 2 or 3"
        )
    size, projected, notes = _size(source)
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": size,
    }
    settings = {"zero_optimization": zero}
    cannot = [
        "a size for each bucket: there is one number for all",
        "a launch as soon as a bucket is complete: it waits for the gradient that does not fit",
    ]
    cannot += notes
    if source.problem is not None and projected is not None:
        cannot += difference(source.problem, source.plan, projected)
    if stage == 3:
        cannot.append(
            "what stage 3 gathers: stage3_prefetch_bucket_size, stage3_max_live_parameters and "
            "stage3_param_persistence_threshold stay as they are"
        )
    needs = [
        f"ZeRO stage {stage}; each bucket is priced as one all-reduce",
        "the order of gradients of the problem; sizes count elements of the communication dtype",
    ]
    return Draft(
        TITLE,
        settings,
        json.dumps(settings, indent=2),
        "json",
        tuple(cannot),
        tuple(needs),
        projected,
    )


def _size(source: ExportSource) -> tuple[int, Plan | None, tuple[str, ...]]:
    """Return the number of elements and what comes out: the plan's buckets if they cost no more."""
    problem = source.problem
    # A gradient alone may be larger than the number.
    own = max(
        (
            elements(launch.bytes, launch.key.dtype)
            for launch in source.launches
            if problem is None or len(launch.names) > 1
        ),
        default=1,
    )
    own = max(1, own)
    if problem is None:
        return own, None, ()
    found = best_value(source, deepspeed, handy_number, UNIT_BYTES)
    plan = deepspeed(problem, own)
    if (
        same_buckets(problem, source.plan, plan)
        and play(problem, plan).makespan_ns <= found.makespan_ns
    ):
        return own, plan, found.notes
    return found.value, found.plan, found.notes
