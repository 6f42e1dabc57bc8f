"""The bundled library of steps: estimated ones by name, and the project's recorded ones.

An estimated step is named by its model, accelerator, network, and how it is trained on how many ranks:
``llama3-8b/h100/400g/dp64``. Every combination that fits together is a step; names and what they
mean do not change. A recorded step is ``recorded/transformer-rank0`` and the like.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from commsched.models import CostCurve, Kind, Problem
from commsched.models.dtypes import ITEM_BYTES
from commsched.models.errors import InputError
from commsched.problems.cost_rows import read_network
from commsched.problems.estimates.architectures import spread_gradients
from commsched.problems.estimates.hardware import (
    ACCELERATORS,
    MAX_RANKS,
    Accelerator,
    Figure,
    check_network,
    network_cost,
    network_figures,
)
from commsched.problems.estimates.library_models import SETTINGS, Setting
from commsched.problems.readers import ReadOptions
from commsched.problems.reading import load
from commsched.problems.steps.builders import gradient_problem
from commsched.problems.steps.ddp_step import ddp_step
from commsched.problems.steps.experts import EXPERTS, estimated_experts
from commsched.problems.steps.fsdp_step import FSDP2_PREFETCH, fsdp_step
from commsched.problems.steps.layer_models import PROFILED, estimated_profile
from commsched.problems.steps.layers import LayerProfile
from commsched.problems.steps.moe_step import moe_step

DATA = Path(__file__).resolve().parents[1] / "data"
RECORDED_COSTS = "gloo_loopback_costs.json"
FORMS: Mapping[str, tuple[str, str]] = {
    "dp": ("", "backward of data-parallel training: gradients and their all-reduces"),
    "next-forward": ("-next", "the same and the next forward pass, which waits for them"),
    "fsdp": ("", "sharded training as FSDP2 runs it: gathers, and scatters of gradients"),
    "moe": ("", "a model with experts: all-to-alls in forward and backward, and all-reduces"),
}
"""The forms of a step: what stands after the number of ranks, and what the step is."""
_RANKS = re.compile(r"(dp|fsdp|moe)([1-9][0-9]{0,5})(-next)?", re.ASCII)


NAMES = (
    "resnet50/a100/10g/dp16",
    "resnet50/a100/nvlink/dp8",
    "vgg16/a100/25g/dp16",
    "vgg16/a100/nvlink/dp8",
    "bert-large/a100/25g/dp32",
    "bert-large/a100/200g/dp64",
    "gpt2-xl/a100/100g/dp32",
    "gpt2-xl/h100/400g/dp64",
    "llama3-8b/a100/200g/dp64",
    "llama3-8b/h100/400g/dp64",
    "llama3-8b/mi300x/400g/dp64",
    "llama3-8b/b200/400g/dp64",
    "llama3-8b/h100/400g/dp64-next",
    "llama3-8b/h100/400g/fsdp64",
    "llama3-8b/mi300x/infinity-fabric/fsdp8",
    "llama3-70b/h100/400g/fsdp256",
    "llama3-70b/mi300x/400g/fsdp64",
    "llama3-70b/b200/nvlink/fsdp8",
    "mixtral-8x7b/h100/nvlink/moe8",
    "mixtral-8x7b/h100/400g/moe32",
)
"""The estimated steps that are listed; every other combination can be made, too."""


@dataclass(frozen=True, slots=True)
class RecordedName:
    """A recorded step of the project.

    Attributes
    ----------
    member
        The files of ``problems/data`` that hold it.
    what
        What it is.
    """

    member: str
    what: str


_SMALL = "DDP backward of a 12-block transformer, 2 ranks, gloo over loopback"
RECORDED: Mapping[str, RecordedName] = {
    "recorded/transformer-rank0": RecordedName(
        "transformer_ddp_gloo_rank0.json.gz", f"{_SMALL}: rank 0"
    ),
    "recorded/transformer-rank1": RecordedName(
        "transformer_ddp_gloo_rank1.json.gz", f"{_SMALL}: rank 1"
    ),
    "recorded/transformer": RecordedName(
        "transformer_ddp_gloo_rank?.json.gz", f"{_SMALL}: both ranks, merged"
    ),
}
"""The recorded steps, by name."""


@dataclass(frozen=True, slots=True)
class Named:
    """An estimated step's name, taken apart.

    Attributes
    ----------
    model, accelerator, network
        Names of the library's tables.
    form
        One of :data:`FORMS`.
    ranks
        Number of ranks.
    """

    model: str
    accelerator: Accelerator
    network: str
    form: str
    ranks: int

    @property
    def text(self) -> str:
        """The name as people write it."""
        way = "dp" if self.form == "next-forward" else self.form
        last = f"{way}{self.ranks}{FORMS[self.form][0]}"
        return f"{self.model}/{self.accelerator.name}/{self.network}/{last}"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of its collectives."""
        if self.form == "fsdp":
            return "all_gather", "reduce_scatter"
        return ("all_to_all", "allreduce") if self.form == "moe" else ("allreduce",)

    @property
    def tflops(self) -> Fraction:
        """What a rank computes, in 1e12 operations a second, exactly."""
        share = SETTINGS[self.model].share.value
        return Fraction(str(self.accelerator.peak.value)) * Fraction(str(share))

    def cost(self, kind: Kind) -> CostCurve:
        """Return what one of its collectives costs."""
        return network_cost(self.accelerator, self.network, kind, self.ranks)


@dataclass(frozen=True, slots=True)
class Made:
    """A step of the library.

    Attributes
    ----------
    name
        Its name.
    problem
        The step.
    known
        ``"estimated"`` or ``"measured"``.
    figures
        The numbers it is made of.
    notes
        What is assumed, and what to know before trusting it.
    """

    name: str
    problem: Problem
    known: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]


def parse_name(name: str, form: str | None = None) -> Named:
    """Return what an estimated step's name says.

    Parameters
    ----------
    name
        ``MODEL/ACCELERATOR/NETWORK/RANKS``, where the last is ``dp64``, ``dp64-next``, ``fsdp64``
        or ``moe64``.
    form
        One of :data:`FORMS` in place of the name's own.

    Raises
    ------
    InputError
        If a part is unknown or does not fit the others; the message lists what is known.

    Examples
    --------
    >>> named = parse_name("llama3-8b/h100/400g/dp64")
    >>> named.form, named.ranks, parse_name(named.text, "fsdp").text
    ('dp', 64, 'llama3-8b/h100/400g/fsdp64')
    """
    parts = name.split("/")
    if len(parts) != 4:
        raise InputError(
            f"{name!r:.100} is no step of the library: MODEL/ACCELERATOR/NETWORK/RANKS, such as "
            f"{NAMES[0]}, or one of {', '.join(RECORDED)}"
        )
    model, chip, network, last = parts
    if model not in SETTINGS:
        raise InputError(f"model: {model!r:.60} is not one of {', '.join(SETTINGS)}")
    if chip not in ACCELERATORS:
        raise InputError(f"accelerator: {chip!r:.60} is not one of {', '.join(ACCELERATORS)}")
    found = _RANKS.fullmatch(last)
    if found is None or (found[3] and found[1] != "dp"):
        raise InputError(f"ranks: {last!r:.60} is not one of dp64, dp64-next, fsdp64, moe64")
    own = "next-forward" if found[3] else found[1]
    if form is not None and form not in FORMS:
        raise InputError(f"form: {form!r:.60} is not one of {', '.join(FORMS)}")
    ranks, accelerator = int(found[2]), ACCELERATORS[chip]
    if ranks > MAX_RANKS:
        raise InputError(f"ranks: {ranks} must be at most {MAX_RANKS}")
    check_network(accelerator, network, ranks)
    named = Named(model, accelerator, network, form or own, ranks)
    if (named.form == "moe") != (model in EXPERTS):
        having = ", ".join(EXPERTS)
        raise InputError(
            f"{name}: {model} has no experts, those with experts are: {having}"
            if named.form == "moe"
            else f"{name}: {model} has experts, its steps are moe{ranks}"
        )
    return named


def make(name: str, form: str | None = None) -> Made:
    """Return a step of the library.

    Parameters
    ----------
    name
        One of :data:`NAMES` or :data:`RECORDED`, or another combination of the same parts.
    form
        One of :data:`FORMS` in place of the name's own; only of estimated steps.

    Raises
    ------
    InputError
        If there is no such step.

    Examples
    --------
    >>> step = make("resnet50/a100/10g/dp16")
    >>> step.known, len(step.problem.names), sum(step.problem.bytes) // 4
    ('estimated', 161, 25557032)
    >>> from commsched.optimizer import optimize
    >>> result = optimize(step.problem)
    >>> result.status == "optimal"
    True
    """
    if name in RECORDED:
        if form is not None:
            raise InputError(f"{name}: is recorded, its form is what ran")
        return _recorded(name)
    named = parse_name(name, form)
    setting = SETTINGS[named.model]
    problem = _MAKERS[named.form](named, setting)
    figures = [setting.samples, setting.share, *named.accelerator.figures]
    figures += [
        figure
        for kind in named.kinds
        for figure in network_figures(named.accelerator, named.network, kind)
    ]
    return Made(named.text, problem, "estimated", tuple(dict.fromkeys(figures)), _notes(named))


def _title(named: Named) -> str:
    return f"{named.text} (estimated)"


def _backward(named: Named, setting: Setting) -> Problem:
    samples = int(setting.samples.value)
    parameters = list(PROFILED[named.model]())
    # Two operations a multiply-add, and backward does twice what forward does.
    operations = 4 * samples * sum(parameter.work for parameter in parameters)
    backward_ms = operations / (named.tflops * 10**9)
    gradients = spread_gradients(parameters, float(backward_ms), dtype=setting.dtype)
    return gradient_problem(gradients, named.cost("allreduce"), _title(named))


def _blocks(named: Named, setting: Setting) -> LayerProfile:
    profile = estimated_profile(
        named.model,
        samples=int(setting.samples.value),
        tflops=float(named.tflops),
        dtype=setting.dtype,
        by="block",
    )
    return replace(profile, name=_title(named))


def _next_forward(named: Named, setting: Setting) -> Problem:
    return ddp_step(_blocks(named, setting), named.cost("allreduce"))


def _sharded(named: Named, setting: Setting) -> Problem:
    return fsdp_step(
        _blocks(named, setting),
        {kind: named.cost(kind) for kind in named.kinds},
        units="layers",
        prefetch=FSDP2_PREFETCH,
        scatter_buffers=1,
    )


def _with_experts(named: Named, setting: Setting) -> Problem:
    profile, experts = estimated_experts(
        named.model,
        samples=int(setting.samples.value),
        tflops=float(named.tflops),
        dtype=setting.dtype,
    )
    costs = {kind: named.cost(kind) for kind in named.kinds}
    return moe_step(replace(profile, name=_title(named)), experts, costs, one_nic=True)


_MAKERS: Mapping[str, Callable[[Named, Setting], Problem]] = {
    "dp": _backward,
    "next-forward": _next_forward,
    "fsdp": _sharded,
    "moe": _with_experts,
}


def _notes(named: Named) -> tuple[str, ...]:
    setting = SETTINGS[named.model]
    notes = [
        "estimated: sizes are exact; times are two operations for each multiply-add with a "
        "parameter in forward and twice that in backward, without attention scores, norms and "
        "activations, over the peak times the share",
        f"{FORMS[named.form][1]}; gradients are {setting.dtype}",
        f"latency by NCCL's own model for {named.ranks} ranks; a measured curve (commsched fit) is "
        "better",
    ]
    if named.accelerator.link_name != "nvlink":
        notes.append("NCCL's latencies and the A100's share of the link stand for RCCL's")
    if named.form == "fsdp":
        notes.append("one unit a block, two gathered ahead in forward and one in backward (FSDP2)")
    if named.form == "moe":
        notes.append("tokens spread evenly over experts and ranks, in one chunk; one card for all")
    size = sum(p.elements for p in PROFILED[named.model]()) * ITEM_BYTES[setting.dtype]
    memory = named.accelerator.memory.value * 10**9
    if named.form in ("dp", "next-forward") and 2 * size > memory:
        notes.append(
            f"does not fit: parameters and gradients take {2 * size / 1e9:.0f} GB of "
            f"{memory / 1e9:.0f} GB: for real training it must be sharded (fsdp)"
        )
    return tuple(notes)


def _recorded(name: str) -> Made:
    recorded = RECORDED[name]
    costs = read_network(DATA / RECORDED_COSTS)
    loaded = load(DATA, cost=costs, options=ReadOptions(member=recorded.member))
    source = "problems/data/README.md"
    count = len(loaded.problem.names)
    total = sum(loaded.problem.bytes)
    report = loaded.recorded.report if loaded.recorded is not None else None
    figures = (
        Figure("gradients", count, "", "measured", f"torch.profiler trace, {source}"),
        Figure("bytes of gradients", total, "", "measured", f"torch.profiler trace, {source}"),
        Figure(
            "end of backward",
            loaded.problem.compute_ns / 1e6,
            "ms",
            "measured",
            f"torch.profiler trace, {source}",
        ),
    )
    notes = (recorded.what, f"costs are measured, too: problems/data/{RECORDED_COSTS}")
    assumed = () if report is None else report.assumptions
    return Made(name, loaded.problem, "measured", figures, (*notes, *assumed))
