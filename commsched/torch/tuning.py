"""From a model and its step to the arguments of DDP, in one call on every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commsched.export import ExportOptions, export
from commsched.models import CostCurve, Gradient, GradientProblem, Plan, Problem, evaluate
from commsched.models.errors import CommschedError, InputError, NotApplicableError
from commsched.models.overheads import Overheads, play_overheads
from commsched.models.units import format_bytes, format_ns
from commsched.optimizer import Result, Row, optimize, rule, verdict
from commsched.optimizer.overheads import MAX_CASES, WITHIN, optimize_overheads, why_not_planned
from commsched.optimizer.solve import TIME_LIMIT_S
from commsched.problems import RecordedStep, problem_digest
from commsched.torch.capturing import Captured, captured
from commsched.torch.measure import SIZES, MeasuredCosts, measure_costs
from commsched.torch.overheads import MeasuredOverheads, measure_overheads
from commsched.torch.ranks import gathered, world_size
from commsched.torch.running import ddp_kwargs

_TERM_STEPS = 5
"""Steps of the stand-in with which DDP's overheads are measured."""
MOST_MEASURED_BYTES = 256 * 1024 * 1024
"""No larger all-reduce is timed; beyond twice this size a cost warns that it is a guess."""


@dataclass(frozen=True)
class Tuned:
    """A plan for a model, ready to wrap it; on every rank the same.

    Attributes
    ----------
    kwargs
        For ``DistributedDataParallel(model, **tuned.kwargs)``.
    environment
        Variables that must be set on every rank before that; nearly always none.
    plan
        What DDP runs with these: the best plan with DDP's overheads and with room to spare where
        that was planned, else the plan of ``result`` if DDP can form it, else the nearest.
    result
        The best plan without overheads, with its bound and proof.
    recorded
        The captured step.
    costs
        What was measured on the process group; None if the cost was given.
    overheads
        What DDP adds, as it was measured or given; None if it does not count.
    verdict
        In one sentence whether it is worth it.
    report
        All of it in a few lines, for people.
    """

    kwargs: Mapping[str, Any]
    environment: Mapping[str, str]
    plan: Plan = field(repr=False)
    result: Result
    recorded: RecordedStep = field(repr=False)
    costs: MeasuredCosts | None = field(repr=False)
    overheads: Overheads | None = field(repr=False)
    verdict: str
    report: str = field(repr=False)

    @property
    def problem(self) -> Problem:
        """The problem that was solved."""
        return self.result.problem


def tune(
    model: torch.nn.Module,
    step: Callable[[], object],
    *,
    cost: CostCurve | None = None,
    overheads: Overheads | None = None,
    spare: bool = True,
    views: bool = False,
    steps: int = 5,
    warmup: int = 2,
    restore: bool = True,
    group: dist.ProcessGroup | None = None,
    name: str = "",
    time_limit_s: float = TIME_LIMIT_S,
) -> Tuned:
    """Capture a step, measure what an all-reduce costs, and plan; every rank makes this call.

    The first rank plans, and all ranks take its plan if their problem has the same digest. Either
    no rank raises or all do, but for what ``step`` itself raises.

    Parameters
    ----------
    model
        The model, plain or in ``DistributedDataParallel``; see :func:`~commsched.torch.capture`.
        A plain model's step must be that of one rank alone: forward, backward, optimizer.
    step
        Runs one whole training step.
    cost
        What an all-reduce costs; by default it is measured on the process group, from 4 KiB up
        to all the gradients at once. With one rank it must be given.
    overheads
        What DDP adds to a step; by default it is measured (:func:`measure_overheads`) where that
        can be done. ``Overheads()`` counts nothing.
    spare
        Whether, of the plans whose step is within a thousandth of the best, one is taken that late
        gradients and launches harm least, also in the steps that were captured. False takes the
        one with the fewest launches.
    views
        Whether the model is to be wrapped with ``gradient_as_bucket_view=True``; it is then among
        the arguments.
    steps, warmup
        How many steps are measured, and run before that.
    restore
        Whether parameters, buffers and optimizers are put back afterwards. True by default: ranks
        whose plain models trained apart would not start alike.
    group
        The ranks that share the gradients; by default DDP's group, without DDP all ranks.
    name
        A title for people; by default the model's class.
    time_limit_s
        For problems that need a search (gradients of several types).

    Raises
    ------
    InputError
        As for :func:`~commsched.torch.capture` and :func:`~commsched.torch.measure_costs`, or if
        the ranks have different problems.
    NotApplicableError
        If DDP has no setting for this model.

    Examples
    --------
    >>> import torch, commsched
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    >>> def step():
    ...     model.zero_grad()
    ...     model(torch.ones(4, 64)).sum().backward()
    >>> tuned = tune(model, step, cost=commsched.AlphaBeta(alpha_us=100_000, bandwidth_gb_s=1))
    >>> tuned.kwargs  # 18,720 bytes in one bucket
    {'bucket_cap_mb_list': [0.017852783203125]}
    """
    if cost is not None and not isinstance(cost, CostCurve):
        raise InputError(f"cost: {type(cost).__name__} is no cost curve, such as AlphaBeta")
    if group is None:
        outer = getattr(model, "_orig_mod", model)  # what torch.compile has wrapped
        group = outer.process_group if isinstance(outer, DistributedDataParallel) else None
    ranks = world_size(group) or 1
    if cost is None and ranks < 2:
        raise InputError(
            "cost: with one rank nothing can be measured; give what an all-reduce costs"
        )
    found = captured(
        model, step, steps=steps, warmup=warmup, restore=restore, group=group, name=name
    )
    recorded, costs = found.recorded, None
    if cost is None:
        device = next(model.parameters()).device
        total = sum(gradient.bytes for gradient in recorded.gradients)
        costs = measure_costs(_sizes(total), group=group, device=device)
        cost = costs.curve
    problem = recorded.problem(cost)
    terms, words = _overheads(model, overheads, found, views, group)
    wanted = _Wanted(terms, cases_of(problem, found, cost) if spare else None, words)
    agreed = _agreed(problem, group, time_limit_s, wanted)
    result = Result(problem, *agreed.outcome)
    settings = dict(agreed.settings)
    if views:
        settings["gradient_as_bucket_view"] = True
    environment = settings.pop("environment", {})
    verdict_text = verdict(result, _today(recorded, problem))
    return Tuned(
        settings,
        environment,
        agreed.plan,
        result,
        recorded,
        costs,
        terms,
        verdict_text,
        _report(recorded, costs, ranks, result, agreed, verdict_text, terms),
    )


def _sizes(total: int) -> list[int]:
    """Return the sizes to measure: up to all the gradients, two at least."""
    most = max(2 * SIZES[0], min(-(-total // 4) * 4, MOST_MEASURED_BYTES))
    return [*(size for size in SIZES if size < most), most]


class _Agreed(NamedTuple):
    """What the first rank found: a result without its problem, what DDP runs, and its settings."""

    outcome: tuple[Any, ...]
    plan: Plan
    settings: Mapping[str, Any]
    missed: str
    how: str


class _Wanted(NamedTuple):
    """With which overheads to plan, with what cases to spare for (None: none), and what was found."""

    overheads: Overheads | None
    cases: tuple[GradientProblem, ...] | None
    words: str


class _Failed(NamedTuple):
    """Why the first rank found nothing, and whether what it was given is at fault."""

    text: str
    input: bool


def _overheads(
    model: torch.nn.Module,
    given: Overheads | None,
    found: Captured,
    views: bool,
    group: dist.ProcessGroup | None,
) -> tuple[Overheads | None, str]:
    """Return DDP's overheads for ready times as they were captured, and where they are from."""
    if given is not None:
        return given, "as given"
    if world_size(group) is None:
        return None, "not measured: torch.distributed is not initialised"
    outer = getattr(model, "_orig_mod", model)
    views = views or bool(getattr(outer, "gradient_as_bucket_view", False))  # DDP's own
    try:
        measured: MeasuredOverheads = measure_overheads(
            model, views=views, steps=_TERM_STEPS, group=group
        )
    except NotApplicableError as error:
        return None, f"not measured: {error}"
    spread = max(measured.spread[name] for name in ("hook_us", "finish_us"))
    words = f"measured with {measured.gradients} gradients, spread {spread:.0%}"
    return replace(measured.overheads, filled=found.in_ddp), words


def cases_of(problem: Problem, found: Captured, cost: CostCurve) -> tuple[GradientProblem, ...]:
    """Return the captured steps that had all gradients, for plans with room to spare.

    Parameters
    ----------
    problem
        What is to be planned.
    found
        What was captured.
    cost
        What an all-reduce costs.
    """
    cases = []
    if problem.gradients is None:
        return ()
    for ready, backward_end in found.steps[-MAX_CASES:]:
        if all(name in ready for name in problem.names):
            own = [
                Gradient(g.name, g.bytes, ready[g.name], g.dtype, g.device, g.sparse)
                for g in problem.gradients
            ]
            end = max(backward_end, *(g.ready_ns for g in own))
            cases.append(GradientProblem(own, cost, backward_end_ns=end))
    return tuple(cases)


def _agreed(
    problem: Problem, group: dist.ProcessGroup | None, time_limit_s: float, wanted: _Wanted
) -> _Agreed:
    """Return the first rank's plan; all ranks raise the same if they cannot agree on it."""
    first = world_size(group) is None or dist.get_rank(group) == 0
    found: _Agreed | _Failed | None = None
    if first:
        try:
            found = _planned(problem, time_limit_s, wanted)
        except CommschedError as error:  # the others wait for what came out
            found = _Failed(str(error), isinstance(error, InputError))
    everybody = gathered((problem_digest(problem), wanted.overheads, found), group)
    for rank, (digest, terms, _) in enumerate(everybody):
        if terms != everybody[0][1]:
            raise InputError(f"rank {rank} has other overheads than rank 0")
        if digest != everybody[0][0]:
            raise InputError(
                f"rank {rank} has problem {digest:.23}, rank 0 {everybody[0][0]:.23}: "
                "every rank must call tune with the same cost"
            )
    agreed = everybody[0][2]
    assert agreed is not None
    if isinstance(agreed, _Failed):
        raise (InputError if agreed.input else NotApplicableError)(agreed.text)
    return agreed


def _planned(problem: Problem, time_limit_s: float, wanted: _Wanted) -> _Agreed:
    result = optimize(problem, time_limit_s=time_limit_s)
    if result.plan is None:
        raise NotApplicableError(f"no plan was found within {time_limit_s:g} s")
    outcome = (
        result.scope,
        result.status,
        result.plan,
        result.bound,
        result.method,
        result.reason,
        result.wall_s,
    )
    how = why_not_planned(problem)
    if how is None and (wanted.overheads is not None or wanted.cases is not None):
        terms = wanted.overheads or Overheads()
        spare = wanted.cases is not None
        found = optimize_overheads(
            problem, terms, slack=spare, within=WITHIN, cases=wanted.cases or ()
        )
        how = f"{wanted.words}{'; with room to spare' * spare}"
        with suppress(NotApplicableError):
            return _Agreed(outcome, found.plan, ddp_kwargs(found), "", how)
    how = how or "not counted"
    try:
        return _Agreed(outcome, result.plan, ddp_kwargs(result), "", how)
    except NotApplicableError:
        nearest = export(problem, result.plan, "ddp", ExportOptions(version=str(torch.__version__)))
        if nearest.projected is None:
            raise
        missed = "; ".join(nearest.cannot)
        return _Agreed(outcome, nearest.projected, nearest.settings, missed, how)


def _today(recorded: RecordedStep, problem: Problem) -> Row:
    """Return what runs without the plan: DDP's buckets as captured, else those of its default."""
    known = rule("ddp")
    name, title, setting, plan = known.name, known.title, known.setting, recorded.plan
    if plan is not None:
        name, title, setting = "recorded", "the recorded buckets", ""
    else:
        plan = known.make(problem)
    return Row(name, title, setting, plan, evaluate(problem, plan), 0)


def _report(
    recorded: RecordedStep,
    costs: MeasuredCosts | None,
    ranks: int,
    result: Result,
    agreed: _Agreed,
    words: str,
    overheads: Overheads | None,
) -> str:
    size = sum(gradient.bytes for gradient in recorded.gradients)
    found = [
        f"{recorded.name}: {len(recorded.gradients)} gradients, {format_bytes(size)}, backward ends "
        f"at {format_ns(recorded.backward_end_ns)} ({recorded.step_name})",
        *(f"doubtful: {check.text}" for check in recorded.report.checks if not check.passed),
    ]
    if costs is not None:
        (least, quick), (most, slow) = costs.points[0], costs.points[-1]
        found.append(
            f"all-reduce on {ranks} ranks ({costs.backend}): {format_bytes(least)} take "
            f"{format_ns(round(quick * 1000))}, {format_bytes(most)} {format_ns(round(slow * 1000))}"
        )
    timeline = evaluate(result.problem, agreed.plan)
    found.append(
        f"plan: {agreed.plan.launches} launches, {format_ns(timeline.exposed_ns)} exposed; "
        f"the best has {format_ns(result.exposed_ns)}, {result.status} ({result.method}), no plan is "
        f"below {format_ns(max(0, result.lower_bound_ns - timeline.compute_ns))}"
    )
    found.append(f"overheads of DDP: {agreed.how}")
    if overheads is not None:
        terms = ", ".join(f"{name} {value}" for name, value in overheads.as_row().items())
        best = play_overheads(result.problem, agreed.plan, overheads)
        found.append(
            f"with them ({terms or 'none'}): {format_ns(best.exposed_ns)} exposed, "
            f"{format_ns(best.makespan_ns)} in all"
        )
        bare = replace(overheads, copy_gb_s=None)
        saved = best.makespan_ns - play_overheads(result.problem, agreed.plan, bare).makespan_ns
        if saved:
            found.append(
                f"gradient_as_bucket_view=True would save {format_ns(saved)} of that: the copies of "
                "the gradients out of their buckets"
            )
    if agreed.missed:
        found.append(f"DDP does not run the best plan: {agreed.missed}")
    return "\n".join([*found, f"verdict: {words}"])
