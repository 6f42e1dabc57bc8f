"""PyTorch DDP: a plan as ``bucket_cap_mb_list``, or else the best that other settings give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from commsched.export.knob import MOST_TUNED, best_value, handy_bytes, mib_of
from commsched.export.result import Draft, difference, lost
from commsched.export.source import ExportSource
from commsched.models import Plan, Problem
from commsched.models.errors import NotApplicableError
from commsched.models.units import MIB
from commsched.optimizer import BestSetting, ddp, rule
from commsched.optimizer.exact import exact_plan, why_not_exact
from commsched.optimizer.handy import mib_text
from commsched.optimizer.rules.ddp import ddp_last_cap

MIN_TORCH = "2.11"
"""The first torch with ``bucket_cap_mb_list``."""


@dataclass(frozen=True, slots=True)
class DdpSettings:
    """What to pass to ``torch.nn.parallel.DistributedDataParallel``.

    Attributes
    ----------
    bucket_cap_mb_list
        One cap a bucket, in MiB. torch multiplies by 2**20 and rounds down, and bytes over 2**20
        are exact in a float, so every cap arrives to the byte.
    """

    bucket_cap_mb_list: tuple[float, ...]

    @property
    def line(self) -> str:
        """The line to paste."""
        caps = ", ".join(map(mib_text, self.bucket_cap_mb_list))
        return f"DistributedDataParallel(model, bucket_cap_mb_list=[{caps}])"


def ddp_settings(problem: Problem, plan: Plan) -> DdpSettings:
    """Return the caps with which DDP's rule forms exactly the buckets of a plan.

    The rule is run on the caps and the buckets are compared, so what is returned does come out,
    as long as DDP sees the gradients become ready in the same order.

    Raises
    ------
    NotApplicableError
        If DDP cannot run the plan: several dtypes, other collectives, buckets that are not
        contiguous in ready order or not launched in it.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient("b", 2**20, 10), Gradient("a", 2**19, 20)], AlphaBeta(3, 1))
    >>> ddp_settings(problem, Plan.of([["b"], ["a"]])).line
    'DistributedDataParallel(model, bucket_cap_mb_list=[1, 0.5])'
    """
    if len(problem.chains) > 1:
        raise NotApplicableError(
            "DDP walks through the caps once for each dtype and group, "
            "so a list cannot express this plan"
        )
    size = dict(zip(problem.names, problem.bytes, strict=True))
    caps = [sum(size[name] for name in bucket.names) for bucket in plan.buckets]
    formed = ddp(problem, caps)
    if formed != plan:
        raise NotApplicableError(
            "DDP only forms buckets that are contiguous in ready order, "
            "are launched in that order and hold at least one byte each"
        )
    return DdpSettings(tuple(cap / MIB for cap in caps))


TITLE = "PyTorch DDP"
LAST_CAP = "DDP_SET_LAST_BUCKET_CAP"
NEEDS = (
    "find_unused_parameters=False, or static_graph=True: only then are buckets rebuilt after the "
    "first step, which itself runs with one bucket for everything",
    "gradients become ready in the problem's order in the first step of rank 0, whose buckets all "
    "ranks take",
    "not under torch.compile's DDPOptimizer or Python reducer",
)


def export_ddp(source: ExportSource) -> Draft:
    """Return DDP's settings for a plan.

    A plan that is contiguous in ready order, of one dtype, is a list of caps, exactly. For others,
    and for a torch without the list, the best of what is left is taken: the list of the best plan
    in ready order, a first cap and a cap, a single cap, or a single cap that is counted from the
    end (``DDP_SET_LAST_BUCKET_CAP=1``).

    Raises
    ------
    NotApplicableError
        If the plan has what DDP has not, or the problem is needed and not there.
    """
    source.check(TITLE, ("allreduce",))
    source.one_group(TITLE)
    old = source.options.older_than(MIN_TORCH)
    listed = not old
    if source.problem is None:
        return _unproved(source, listed)
    if listed:
        try:
            found = ddp_settings(source.problem, source.plan)
        except NotApplicableError as error:
            why = str(error)
        else:
            return _of_list(found.bucket_cap_mb_list, source.plan)
    else:
        why = f"torch {source.options.version} has no bucket_cap_mb_list, it came with {MIN_TORCH}"
    best = min(_alternatives(source, listed=listed), key=lambda found: found.key, default=None)
    if best is None:
        raise NotApplicableError(f"{TITLE}: no setting can be found: {why}")
    missed = difference(source.problem, source.plan, best.draft.projected or source.plan)
    return Draft(
        TITLE,
        best.draft.settings,
        best.draft.text,
        "python",
        (why, *best.draft.cannot, *missed),
        best.draft.needs,
        best.draft.projected,
    )


def _of_list(caps: Sequence[float], projected: Plan | None) -> Draft:
    return Draft(
        TITLE,
        {"bucket_cap_mb_list": list(caps)},
        DdpSettings(tuple(caps)).line,
        "python",
        (),
        (f"torch {MIN_TORCH} or later", f"{LAST_CAP} is not set", *NEEDS),
        projected,
    )


def _unproved(source: ExportSource, listed: bool) -> Draft:
    """Return the list of a plan file alone: each bucket's bytes are its cap."""
    if not listed:
        raise NotApplicableError(
            f"torch {source.options.version} has no bucket_cap_mb_list, and the best single cap "
            "cannot be found without the problem"
        )
    if len(source.keys) > 1:
        raise NotApplicableError(
            "DDP walks through the caps once for each dtype and group, "
            "so a list cannot express this plan"
        )
    caps = [launch.bytes / MIB for launch in source.launches]
    draft = _of_list(caps, None)
    order = "the plan's buckets are contiguous in ready order, launched in it, no gradient is empty"
    return Draft(TITLE, draft.settings, draft.text, "python", (), (order, *draft.needs))


@dataclass(frozen=True)
class _Alternative:
    """A setting with what it loses; fewer launches win a tie."""

    key: tuple[int, int]
    draft: Draft


def _alternatives(source: ExportSource, *, listed: bool) -> Iterator[_Alternative]:
    """Yield what DDP can be set to, apart from the plan's own list."""
    problem = source.problem
    assert problem is not None
    drafts: list[Draft] = []
    if listed and why_not_exact(problem, "in-order") is None:
        found = exact_plan(problem, "in-order").plan
        with suppress(NotApplicableError):  # several dtypes, or a bucket of no bytes
            drafts.append(_of_list(ddp_settings(problem, found).bucket_cap_mb_list, found))
    found_best = bool(drafts)  # no cap does better than the optimum in ready order
    if listed and not found_best:
        pair = _best_pair(problem)
        if pair is not None:
            caps = [float(cap) for cap in pair.setting.partition("[")[2].rstrip("]").split(", ")]
            drafts.append(_of_list(caps, ddp(problem, [int(cap * MIB) for cap in caps])))
    singles = () if found_best else (False, True)
    for last in singles:
        make = ddp_last_cap if last else ddp
        tuned = best_value(source, lambda p, knob, make=make: make(p, [knob]), handy_bytes)  # type: ignore[misc]
        cap = mib_of(tuned.value)
        settings: dict[str, Any] = {"bucket_cap_mb": cap}
        text = f"DistributedDataParallel(model, bucket_cap_mb={mib_text(cap)})"
        needs: tuple[str, ...] = (f"{LAST_CAP} is not set", *NEEDS)
        if last:
            settings["environment"] = {LAST_CAP: "1"}
            text = f'import os\n\nos.environ["{LAST_CAP}"] = "1"\n{text}'
            needs = (f"{LAST_CAP}=1 on every rank before the model is wrapped", *NEEDS)
        drafts.append(Draft(TITLE, settings, text, "python", tuned.notes, needs, tuned.plan))
    for draft in drafts:
        if draft.projected is not None:
            try:
                key = (lost(problem, source.plan, draft.projected, TITLE), draft.projected.launches)
            except NotApplicableError:
                continue  # it breaks a limit of the problem
            yield _Alternative(key, draft)


def _best_pair(problem: Problem) -> BestSetting | None:
    if len(problem.names) > MOST_TUNED:
        return None
    try:
        return rule("ddp").knobs[1].best(problem)
    except NotApplicableError:
        return None
