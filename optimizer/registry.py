"""The registry of rules: what a comparison runs, with default settings and with the best ones.

A new rule is one file in ``optimizer/rules/`` and one entry in :data:`RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from commsched.models import Plan, Problem
from commsched.models.dtypes import ITEM_BYTES
from commsched.models.errors import InputError
from commsched.models.knob import Setting
from commsched.models.step import FusionKey
from commsched.models.units import MIB
from commsched.optimizer.handy import (
    bytes_range,
    handy_mib,
    handy_number,
    handy_threshold,
    mib_text,
    number_range,
    ranges_text,
)
from commsched.optimizer.rules import (
    byteps,
    bytescheduler,
    ddp,
    dear,
    deepcompile,
    deepspeed,
    each,
    fsdp,
    fsdp_default,
    horovod,
    inductor,
    megatron,
    mgwfbp,
    no_overlap,
    one,
    p3,
    simplefsdp,
    square_root,
)
from commsched.optimizer.rules.rows import Decide, Sketch
from commsched.optimizer.tuning import Tuning, tune
from commsched.optimizer.tuning_pair import tune_first_and_cap

ELEMENT_BYTES = max(ITEM_BYTES.values())
"""The unit of a knob that counts elements: no more bytes than this."""


@dataclass(frozen=True)
class BestSetting:
    """The best setting of a rule, over all values.

    Attributes
    ----------
    setting
        What to paste.
    plan
        What the rule makes of it.
    range_text
        Which values do equally well, and which lie within 1% of the step, for people.
    tuning
        Every plan that a value gives, where there is one scalar knob.
    """

    setting: str
    plan: Plan
    range_text: str
    tuning: Tuning | None = None


class Tunable(Protocol):
    """A way of setting a rule; ``suffix`` tells its row's name from others'."""

    @property
    def suffix(self) -> str:
        """Stands after the rule's name."""

    def best(self, problem: Problem) -> BestSetting:
        """Return the best setting; raise NotApplicableError where it cannot be found."""


def _only_plans(_: Problem) -> None:
    """Know nothing."""


@dataclass(frozen=True, slots=True)
class KnobOf:
    """The scalar knob of a rule.

    Attributes
    ----------
    make
        The rule with its knob. It may only compare the knob or ask it for pieces.
    handy
        The value that is easiest to type in a range (first and last; None: no end), and the setting
        to paste for it.
    range_text
        A range of values for people.
    unit_bytes
        The most bytes that one unit of the knob stands for.
    cuts
        Whether the rule cuts collectives into pieces of at most the knob's size.
    decide
        From a step to the rule up to its decisions, which are quicker than plans, or None.
    largest
        From a step to the bytes of each fusion key's largest part, as for ``tune``.
    launches_from
        As for :func:`commsched.optimizer.tuning.tune`.
    suffix
        Stands after the rule's name in a comparison.
    """

    make: Callable[[Problem, Setting], Plan]
    handy: Callable[[int, int | None], tuple[int, str]]
    range_text: Callable[..., str] = bytes_range
    unit_bytes: int = 1
    cuts: bool = False
    decide: Callable[[Problem], Decide | None] = _only_plans
    largest: Callable[[Problem], Mapping[FusionKey, int] | None] = _only_plans
    launches_from: Callable[[Problem, int, int], int] | None = None
    suffix: str = "best"

    def best(self, problem: Problem) -> BestSetting:
        """Return the best value over all values.

        Raises
        ------
        NotApplicableError
            As for :func:`commsched.optimizer.tuning.tune`.
        """
        unit_bytes = self.unit_bytes
        if unit_bytes == ELEMENT_BYTES:
            unit_bytes = max(ITEM_BYTES.get(key.dtype, ELEMENT_BYTES) for key in problem.chains)
        tuning = tune(
            problem,
            self.make,
            unit_bytes,
            cuts=self.cuts,
            decide=self.decide(problem),
            largest=self.largest(problem),
            launches_from=self.launches_from,
        )
        low, high = tuning.best.low, tuning.best.high
        equal = ranges_text(self.range_text, (low, high), tuning.equal_elsewhere)
        flat = ranges_text(self.range_text, tuning.flat, tuning.flat_elsewhere, (low, high))
        text = f"equally good: {equal}; within 1% of that step: {flat}"
        # Values of one range do equally well, but need not give one plan.
        value, setting = self.handy(low, high)
        return BestSetting(setting, self.make(problem, value), text, tuning)


@dataclass(frozen=True, slots=True)
class FirstAndCap:
    """DDP's first cap and cap together."""

    suffix: str = "best-pair"

    def best(self, problem: Problem) -> BestSetting:
        """Return the best pair over all pairs.

        Raises
        ------
        NotApplicableError
            As for :func:`commsched.optimizer.tuning_pair.tune_first_and_cap`.
        """
        found = tune_first_and_cap(problem)
        caps = [mib_text(handy_mib(*span)) for span in (found.first, found.cap)]
        text = f"first {bytes_range(*found.first)}; then {bytes_range(*found.cap)}"
        return BestSetting(f"bucket_cap_mb_list=[{', '.join(caps)}]", found.plan, text)


@dataclass(frozen=True, slots=True)
class Rule:
    """A way of making a plan without searching.

    Attributes
    ----------
    name
        Short and fixed; scripts compare by it.
    title
        What people read.
    setting
        The setting that the plan is made with.
    make
        The rule with that setting.
    knobs
        Its scalar knob, if it has one, and other ways of setting it.
    """

    name: str
    title: str
    setting: str
    make: Callable[[Problem], Plan]
    knobs: tuple[Tunable, ...] = ()


def _cap(name: str) -> Callable[[int, int | None], tuple[int, str]]:
    """Return the value and text of a setting that is a cap in MiB."""

    def handy(low: int, high: int | None) -> tuple[int, str]:
        mib = handy_mib(low, high)
        return int(mib * MIB), f"{name}={mib_text(mib)}"

    return handy


def _count(name: str) -> Callable[[int, int | None], tuple[int, str]]:
    """Return the value and text of a setting that is a whole number."""

    def handy(low: int, high: int | None) -> tuple[int, str]:
        number = handy_number(low, high)
        return number, f"{name}{number}"

    return handy


def _threshold(low: int, high: int | None) -> tuple[int, str]:
    """Return the value and text of Horovod's threshold."""
    threshold = handy_threshold(low, high)
    return threshold, f"HOROVOD_FUSION_THRESHOLD={threshold}"


def _elements(
    make: Callable[[Problem, Setting], Plan], decide: Callable[[Problem], Decide], name: str
) -> KnobOf:
    """Return a knob that counts elements."""
    return KnobOf(make, _count(name), number_range, unit_bytes=ELEMENT_BYTES, decide=decide)


def _one_cap(
    make: Callable[[Problem, Sequence[Setting]], Plan],
    decide: Callable[[Problem], Callable[[Sequence[Setting]], Sketch]],
) -> KnobOf:
    """Return DDP's knob: one cap for all buckets."""

    def decides(problem: Problem) -> Decide:
        sketch = decide(problem)
        return lambda cap: sketch([cap])

    return KnobOf(lambda p, cap: make(p, [cap]), _cap("bucket_cap_mb"), decide=decides)


def _threshold_of(*, waits: bool) -> KnobOf:
    """Return Horovod's knob."""
    return KnobOf(
        partial(horovod.horovod, waits=waits),
        _threshold,
        decide=partial(horovod.horovod_sketcher, waits=waits),
    )


DDP_CAPS = "1 MiB, then 25 MiB"

RULES: tuple[Rule, ...] = (
    Rule(
        "ddp",
        "PyTorch DDP",
        DDP_CAPS,
        ddp.ddp,
        (_one_cap(ddp.ddp, ddp.ddp_sketcher), FirstAndCap()),
    ),
    Rule("ddp-first", "PyTorch DDP, first iteration", "", ddp.ddp_first_iteration),
    Rule(
        "ddp-unused",
        "PyTorch DDP, unused parameters",
        DDP_CAPS,
        ddp.ddp_unused,
        (_one_cap(ddp.ddp_unused, partial(ddp.registered_sketcher, indexed=False)),),
    ),
    Rule(
        "ddp-last-cap",
        "PyTorch DDP, small bucket last",
        "DDP_SET_LAST_BUCKET_CAP=1",
        ddp.ddp_last_cap,
        (_one_cap(ddp.ddp_last_cap, partial(ddp.registered_sketcher, indexed=True)),),
    ),
    Rule(
        "horovod",
        "Horovod",
        "128 MiB, 1 ms",
        horovod.horovod,
        (_threshold_of(waits=True),),
    ),
    Rule(
        "horovod-gpu",
        "Horovod, wakes every cycle",
        "128 MiB, 1 ms",
        lambda p: horovod.horovod(p, waits=False),
        (_threshold_of(waits=False),),
    ),
    Rule("mg-wfbp", "MG-WFBP", "", mgwfbp.mg_wfbp),
    Rule("mg-wfbp-dear", "MG-WFBP, DeAR's copy", "", mgwfbp.mg_wfbp_dear),
    Rule(
        "deepspeed",
        "DeepSpeed ZeRO-1/2",
        "500,000,000 elements",
        deepspeed.deepspeed,
        (_elements(deepspeed.deepspeed, deepspeed.deepspeed_sketcher, "reduce_bucket_size="),),
    ),
    Rule(
        "megatron",
        "Megatron-core",
        "40,000,000 parameters",
        megatron.megatron,
        (_elements(megatron.megatron, megatron.megatron_sketcher, "--ddp-bucket-size "),),
    ),
    Rule("fsdp", "FSDP, one unit a layer", "", fsdp.fsdp_units),
    Rule("fsdp2", "FSDP2's order of issue", "", fsdp_default.fsdp_default),
    Rule(
        "dear",
        "DeAR",
        "25 MiB",
        dear.dear,
        (
            KnobOf(
                dear.dear,
                _cap("THRESHOLD"),
                unit_bytes=-(-ELEMENT_BYTES // dear.BYTES_AN_ELEMENT),
                decide=dear.dear_sketcher,
                largest=dear.largest_modules,
            ),
        ),
    ),
    Rule(
        "bytescheduler",
        "ByteScheduler",
        "1,000,000 elements, credit 4,000,000",
        bytescheduler.bytescheduler,
        (
            KnobOf(
                bytescheduler.bytescheduler,
                _count("BYTESCHEDULER_PARTITION="),
                number_range,
                unit_bytes=ELEMENT_BYTES,
                cuts=True,
                decide=bytescheduler.bytescheduler_decides,
                launches_from=bytescheduler.launches_from,
            ),
        ),
    ),
    Rule("byteps", "BytePS", "4,096,000 bytes, scheduling off", byteps.byteps),
    Rule(
        "byteps-credit",
        "BytePS, scheduling on",
        "4,096,000 bytes, credit 4",
        lambda p: byteps.byteps(p, credit=4),
    ),
    Rule("p3", "P3", "40,000 elements", p3.p3),
    Rule(
        "inductor",
        "TorchInductor bucketing",
        "2000 MiB",
        inductor.inductor,
        (KnobOf(inductor.inductor, _cap("bucket cap MiB"), decide=inductor.inductor_sketcher),),
    ),
    Rule(
        "inductor-saturation",
        "TorchInductor, saturation cap",
        "90% of bandwidth",
        inductor.inductor_saturation,
    ),
    Rule("simple-fsdp", "SimpleFSDP greedy (adapted)", "", simplefsdp.simple_fsdp),
    Rule("deep-compile", "DeepCompile fusion", "factor 1.2", deepcompile.deep_compile),
    Rule("square-root", "square-root formula", "", square_root.square_root),
    Rule("one-each", "one launch for each", "", each.one_each),
    Rule("one-bucket", "one bucket for all", "", one.one_bucket),
    Rule("no-overlap", "no overlap", "", no_overlap.no_overlap),
)


def rule(name: str) -> Rule:
    """Return the rule of a name.

    Raises
    ------
    InputError
        If there is none; the message lists the names.

    Examples
    --------
    >>> rule("ddp").title
    'PyTorch DDP'
    """
    for known in RULES:
        if known.name == name:
            return known
    raise InputError(f"rule: {name!r} is not one of {', '.join(known.name for known in RULES)}")
