"""Megatron-core: ``--ddp-bucket-size`` where one number gives the plan, else a parameter layout."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from commsched.export.knob import best_value
from commsched.export.names import first_other
from commsched.export.result import Draft, difference, lines, same_buckets
from commsched.export.source import ExportSource
from commsched.models import Plan, Problem
from commsched.models.dtypes import elements
from commsched.models.errors import NotApplicableError
from commsched.models.knob import Setting
from commsched.optimizer.handy import handy_number
from commsched.optimizer.rules.megatron import ALIGNED_ELEMENTS, megatron
from commsched.optimizer.rules.order import in_launch_order

TITLE = "Megatron-core"
KINDS = ("allreduce", "reduce_scatter")
UNIT_BYTES = 16
FUNCTION = '''\
def full_param_layout(model, data_parallel_size, distributed_optimizer={distributed}):
    """Return the layout of the planned buckets; the sizes are those of the model."""
    named = {{name: p for name, p in model.named_parameters() if p.requires_grad}}
    if sorted(named) != sorted(name for rows in BUCKETS.values() for row in rows for name in row):
        raise ValueError("the plan is for other parameters than the model's")
    place, counts = {{}}, {{}}
    for name, p in named.items():
        place[name] = counts[p.dtype] = counts.get(p.dtype, -1) + 1
    align = {aligned} if distributed_optimizer else 1
    pad = math.lcm(data_parallel_size, 128) if distributed_optimizer else 1
    layouts = {{}}
    for grad_dtype, rows in BUCKETS.items():
        layout = PerBufferParamLayout()
        (param_dtype,) = {{named[name].dtype for row in rows for name in row}}
        end = 0
        for number, row in enumerate(rows):
            begin = end
            for name in row:
                start = -(-end // align) * align
                end = start + named[name].numel()
                layout.param_index_map[named[name]] = (start, end, number)
                layout.param_indices.append(place[name])
            layout.per_bucket_numel_unpadded.append(end - begin)
            end = -(-end // pad) * pad
            layout.bucket_indices.append((begin, end))
        key = BufferKey(param_dtype, getattr(torch, grad_dtype), is_expert_parallel=False)
        layouts[key] = layout
    return FullParamLayout(layouts=layouts)'''
"""What builds Megatron's layout from the names; doubled braces stand for single ones."""


def export_megatron(source: ExportSource) -> Draft:
    """Return Megatron-core's settings for a plan.

    If some ``--ddp-bucket-size`` forms exactly the plan's buckets, it is returned. Else any partition
    is a ``full_param_layout``, which needs parameter names. Without these the best bucket size
    is taken.

    Raises
    ------
    NotApplicableError
        If the plan has what Megatron-core has not, or the problem is needed and not there.
    """
    source.check(TITLE, KINDS)
    source.one_group(TITLE)
    source.no_sparse(TITLE)
    kinds = {key.kind for key in source.keys}
    if len(kinds) > 1:
        raise NotApplicableError(f"{TITLE} uses all-reduces or reduce-scatters, the plan has both")
    if any(key.device for key in source.keys):
        raise NotApplicableError(f"{TITLE} keeps its buffers on one device; the plan names several")
    aligned = source.options.distributed_optimizer or kinds == {"reduce_scatter"}
    problem = source.problem
    if problem is not None:
        rule = partial(megatron, distributed_optimizer=aligned)
        own = _own_size(source, aligned)
        plan = rule(problem, own)
        if same_buckets(problem, source.plan, plan):
            return _of_size(own, plan, aligned, ())
    other = first_other([key.dtype for key in source.keys])
    if other is not None:
        raise NotApplicableError(f"{TITLE}: the type {other!r:.100} is none of torch's")
    other = first_other(name for name, _ in source.members())
    if other is None:
        return _layout(source, aligned)
    why = f"a layout needs parameter names; {other!r:.100} is none"
    if problem is None:
        raise NotApplicableError(
            f"{TITLE}: {why}; the best bucket size cannot be found without the problem"
        )

    def make(problem: Problem, size: Setting) -> Plan:
        return rule(problem, size)

    found = best_value(source, make, handy_number, UNIT_BYTES)
    missed = difference(problem, source.plan, found.plan)
    return _of_size(found.value, found.plan, aligned, (why, *found.notes, *missed))


def _own_size(source: ExportSource, aligned: bool) -> int:
    """Return the only size worth trying: what the smallest bucket that must close has.

    The last bucket of a dtype closes by itself. A larger size would keep one of the others open.
    """
    problem = source.problem
    assert problem is not None
    align = ALIGNED_ELEMENTS if aligned else 1
    rank = {position: place for place, position in enumerate(problem.ready_order)}
    extents: dict[str, list[int]] = {}
    for launch in source.launches:
        extent = 0
        positions = sorted((problem.index[name] for name in launch.names), key=rank.__getitem__)
        for position in positions:
            extent = -(-extent // align) * align
            extent += elements(problem.bytes[position], launch.key.dtype)
        extents.setdefault(launch.key.dtype, []).append(extent)
    closed = [extent for found in extents.values() for extent in found[:-1]]
    left = [found[-1] for found in extents.values()]
    return max(1, min(closed)) if closed else max(1, *left)


def _of_size(size: int, projected: Plan, aligned: bool, cannot: tuple[str, ...]) -> Draft:
    flags = ["--overlap-grad-reduce", f"--ddp-bucket-size {size}"]
    settings: dict[str, Any] = {"overlap_grad_reduce": True, "ddp_bucket_size": size}
    if aligned:
        flags.insert(0, "--use-distributed-optimizer")
        settings["use_distributed_optimizer"] = True
    return Draft(TITLE, settings, " ".join(flags), "sh", cannot, _needs(), projected)


def _needs() -> tuple[str, ...]:
    return (
        "pipeline rank 0 (Megatron does not bucket on other stages), no shared embedding in a bucket",
        "gradients become ready in the reverse order of registration",
    )


def _layout(source: ExportSource, aligned: bool) -> Draft:
    buckets: dict[str, list[list[str]]] = {}
    for launch in source.launches:
        buckets.setdefault(launch.key.dtype, []).append(list(launch.names))
    rows: list[str] = []
    for dtype, members in buckets.items():
        rows += [f"    {json.dumps(dtype)}: ["]
        rows += [f"        {json.dumps(names, ensure_ascii=False)}," for names in members]
        rows += ["    ],"]
    text = lines(
        "import math",
        "",
        "import torch",
        "from megatron.core.optimizer.param_layout import (",
        "    BufferKey, FullParamLayout, PerBufferParamLayout,",
        ")",
        "",
        "BUCKETS = {  # gradient dtype -> buckets in order of launch",
        rows,
        "}",
        "",
        "",
        FUNCTION.format(distributed=aligned, aligned=ALIGNED_ELEMENTS),
    )
    projected = None
    cannot: tuple[str, ...] = ()
    if source.problem is not None:
        problem = source.problem
        projected = in_launch_order(
            problem, [[problem.index[n] for n in b.names] for b in source.plan.buckets]
        )
        cannot = difference(problem, source.plan, projected)
    settings = {"buckets": buckets, "distributed_optimizer": aligned}
    return Draft(
        TITLE,
        settings,
        text,
        "python",
        cannot,
        (
            "a Megatron-core whose DistributedDataParallel takes full_param_layout= "
            "(megatron/core/optimizer/param_layout.py), with overlap_grad_reduce=True",
            "no expert-parallel, FP8 or shared parameters; one parameter dtype for each gradient dtype",
            *_needs()[:1],
        ),
        projected,
    )
