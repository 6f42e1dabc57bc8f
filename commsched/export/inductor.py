"""TorchInductor: the cap of its bucketing passes, or module bucket plans of its manual scheduler."""

from __future__ import annotations

import json

from commsched.export.fsdp_groups import module_groups
from commsched.export.knob import best_value, handy_bytes, mib_of
from commsched.export.result import Draft, difference, lines, same_buckets
from commsched.export.source import ExportSource
from commsched.models import Plan
from commsched.models.errors import NotApplicableError
from commsched.optimizer.rules.inductor import inductor
from commsched.optimizer.rules.order import in_launch_order

TITLE = "TorchInductor"
KINDS = ("allreduce", "reduce_scatter", "all_gather")
PASS = {
    "allreduce": "bucket_all_reduces_fx",
    "reduce_scatter": "bucket_reduce_scatters_fx",
    "all_gather": "bucket_all_gathers_fx",
}
MIN_TORCH = "2.13"
"""The oldest torch whose passes were looked at."""


def export_inductor(source: ExportSource) -> Draft:
    """Return Inductor's settings for a plan.

    If one cap gives exactly the plan's buckets, it is returned. Else a plan of reduce-scatters whose
    buckets are whole modules is a list of module bucket plans. Else the best cap is taken.

    Raises
    ------
    NotApplicableError
        If the plan has what Inductor has not, the torch is too old, or the problem is needed and
        not there.
    """
    source.check(TITLE, KINDS)
    source.no_sparse(TITLE)
    if source.options.older_than(MIN_TORCH):
        raise NotApplicableError(
            f"torch {source.options.version} has other bucketing passes; these are those of {MIN_TORCH}"
        )
    problem = source.problem
    several = [launch.bytes for launch in source.launches if len(launch.names) > 1]
    own = max(1, *several) if several else 1
    if problem is not None:
        plan = inductor(problem, own)
        if same_buckets(problem, source.plan, plan):
            return _cap(source, own, plan)
    why = "a size for each bucket: the passes ask their callback only for bucket 0"
    kinds = {key.kind for key in source.keys}
    if kinds == {"reduce_scatter"}:
        try:
            return _module_plans(source)
        except NotApplicableError as error:
            why = f"{why}; {error}"
    if problem is None:
        return _cap(source, own, None, (why,))
    found = best_value(source, inductor, handy_bytes)
    missed = difference(problem, source.plan, found.plan)
    return _cap(source, found.value, found.plan, (why, *found.notes, *missed))


def _cap(
    source: ExportSource, cap_bytes: int, projected: Plan | None, cannot: tuple[str, ...] = ()
) -> Draft:
    cap = mib_of(cap_bytes)
    shown = int(cap) if cap == int(cap) else cap
    config: dict[str, object] = {}
    text = ["from torch._inductor import config", ""]
    for kind in KINDS:
        if any(key.kind == kind for key in source.keys):
            config |= {PASS[kind]: "all", f"{PASS[kind]}_bucket_size_determinator": shown}
            text += [
                f'config.{PASS[kind]} = "all"',
                f"config.{PASS[kind]}_bucket_size_determinator = lambda bucket: {shown!r}  # MiB",
            ]
    return Draft(
        TITLE,
        {"config": config},
        lines(text),
        "python",
        cannot,
        (
            f"torch {MIN_TORCH} or later, with the collectives inside of the compiled graph",
            "the graph waits for the collectives in the problem's order",
        ),
        projected,
    )


def _module_plans(source: ExportSource) -> Draft:
    groups = module_groups(source, TITLE)
    if groups.root:
        raise NotApplicableError(
            f"{TITLE}: module bucket plans name modules; {groups.root[0]!r:.100} belongs to the model"
        )
    plans: list[str | list[str]] = [
        list(names) if len(names) > 1 else names[0] for names in groups.modules
    ]
    projected = None
    missed: tuple[str, ...] = ()
    problem = source.problem
    if problem is not None:
        projected = in_launch_order(
            problem, [[problem.index[n] for n in b.names] for b in source.plan.buckets]
        )
        missed = difference(problem, source.plan, projected)
    text = lines(
        "from torch._inductor.fx_passes.overlap_manual_scheduling import manual_overlap_bucketing",
        "",
        "PLANS = [",
        (f"    {json.dumps(plan, ensure_ascii=False)}," for plan in plans),
        "]",
        "",
        "",
        "def bucket(gm):",
        '    """Bucket a joint graph; gm.meta must name the modules of its nodes."""',
        "    return manual_overlap_bucketing(gm, PLANS, insert_overlap_deps=True)",
    )
    return Draft(
        TITLE,
        {"module_bucket_plans": plans},
        text,
        "python",
        ("how far all-gathers run ahead: always one group", *missed),
        (
            f"torch {MIN_TORCH} or later, a graph traced with module names (as SimpleFSDP's)",
            "the problem holds the reduce-scatters only; all-gathers are grouped in the same way",
        ),
        projected,
    )
