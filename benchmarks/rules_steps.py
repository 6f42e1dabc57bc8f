"""The steps of the rules' study: models, networks and the library, and what is found about each.

Sizes of the models are exact; backward times are estimated from the work of each layer at the sustained
rate that STEPS states. The networks' constants are those that the projects published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import commsched
from commsched.models import GradientProblem, Problem
from commsched.problems.estimates.architectures import estimated_gradients, parameters
from commsched.problems.estimates.library import NAMES, RECORDED, make, parse_name
from commsched.problems.steps.ddp_step import ddp_step
from commsched.problems.steps.layer_models import estimated_profile


@dataclass(frozen=True)
class Step:
    """A model with its samples (images or tokens) a rank and step, and a sustained rate."""

    model: str
    samples: int
    tflop_s: float
    dtype: str = "float32"

    @property
    def backward_ms(self) -> float:
        """Backward does two multiply-adds for each of the forward pass, of two operations each."""
        work = sum(parameter.work for parameter in parameters(self.model))
        return 4 * work * self.samples / (self.tflop_s * 1e9)


STEPS = (
    Step("resnet50", 64, 30),
    Step("vgg16", 64, 40),
    Step("bert-large", 8 * 512, 60),
    Step("gpt2-xl", 4 * 1024, 80),
    Step("llama3-8b", 4096, 250, "bfloat16"),
)


class Network(NamedTuple):
    """An all-reduce's start-up in seconds and its time for a byte, with the source."""

    name: str
    alpha_s: float
    beta_s: float
    source: str

    @property
    def short(self) -> str:
        """The name for the head of a narrow column."""
        name = self.name.replace(" GbE", "G").replace(" Gb/s", "G").replace("HDR ", "")
        return name.replace(" GPUs", "").replace(",", "")


MGWFBP_10, MGWFBP_56 = "MG-WFBP, 10Gbps", "MG-WFBP, 56Gbps"
DEAR_10, DEAR_56 = "DeAR's copy of MG-WFBP, 10Gbps", "DeAR's copy of MG-WFBP, 56Gbps"
ECHO = "fit of Echo's nccl-tests logs"
NETWORKS = (
    Network("10 GbE, 8 GPUs", 5.230272768511732e-4, 8.570746975492128e-10, MGWFBP_10),
    Network("10 GbE, 16 GPUs", 9.080981007148093e-4, 7.395651186836712e-10, MGWFBP_10),
    Network("10 GbE, 32 GPUs", 3 * 1.3476410788581382e-3, 8.643300782166769e-10, DEAR_10),
    Network("10 GbE, 48 GPUs", 3 * 1.8476410788581382e-3, 9.643300782166769e-10, DEAR_10),
    Network("10 GbE, 64 GPUs", 3 * 2.3476410788581382e-3, 9.643300782166769e-10, DEAR_10),
    Network("56 Gb/s, 2 GPUs", 2.554691138304671e-6, 9.837548167872609e-11, MGWFBP_56),
    Network("56 Gb/s, 4 GPUs", 4.204298980348825e-5, 2.0589360830118177e-10, MGWFBP_56),
    Network("56 Gb/s, 8 GPUs", 9.75367204301171e-5, 3.0568230536676206e-10, MGWFBP_56),
    Network("56 Gb/s, 16 GPUs", 2.3583677659915685e-4, 4.0594787739537565e-10, MGWFBP_56),
    Network("56 Gb/s, 16 GPUs, DeAR", 3 * 2.3583677659915685e-4, 4.0594787739537565e-10, DEAR_56),
    Network("56 Gb/s, 32 GPUs", 4.0632079996292579e-4, 1.5 * 3.2713239529771973e-10, DEAR_56),
    Network("56 Gb/s, 64 GPUs", 8.0632079996292579e-4, 1.8 * 3.2713239529771973e-10, DEAR_56),
    Network("A100, NVLink, 8 GPUs", 71e-6, 7.83e-12, ECHO),
    Network("A100, HDR IB, 16 GPUs", 86e-6, 15.0e-12, ECHO),
    Network("A100, HDR IB, 32 GPUs", 133e-6, 16.0e-12, ECHO),
    Network("A100, HDR IB, 64 GPUs", 159e-6, 16.4e-12, ECHO),
    Network("A100, HDR IB, 128 GPUs", 183e-6, 17.4e-12, ECHO),
    Network("NVLink, 8 GPUs", 28e-6, 5.19e-12, "fit of AutoParallel's table"),
)
WHOLE_NETWORKS = (
    "10 GbE, 16 GPUs",
    "56 Gb/s, 4 GPUs",
    "56 Gb/s, 16 GPUs",
    "A100, HDR IB, 128 GPUs",
)
"""Where whole steps are looked at: their best settings take long, and where a network is fast next to
nothing is exposed."""

Kind = Literal["backward", "whole", "sharded"]


class Case(NamedTuple):
    """A step on a network; ``network`` is empty for a step of the library, named by ``step``."""

    kind: Kind
    step: str
    network: str = ""

    @property
    def title(self) -> str:
        """The case for people."""
        return f"{self.step}, {self.network}" if self.network else self.step


class Distance(NamedTuple):
    """How far a rule is from the optimum in a case, or from its lower bound."""

    rule: str
    title: str
    case: Case
    makespan_ns: int
    launches: int
    exposed_ns: int
    best_ns: int
    best_exposed_ns: int

    @property
    def over_ns(self) -> int:
        """How much longer the step is; plans can be shorter by rounding."""
        return max(0, self.makespan_ns - self.best_ns)

    @property
    def optimal(self) -> bool:
        """Whether that is nothing but rounding."""
        return self.over_ns <= self.launches

    @property
    def share(self) -> float:
        """The same as a share of the optimum."""
        return self.over_ns / self.best_ns


class Refusal(NamedTuple):
    """A best setting that was not looked for, and why."""

    rule: str
    title: str
    case: Case
    reason: str


def problem_of(step: Step, network: Network) -> GradientProblem:
    """Return the problem of a step's backward pass on a network."""
    gradients = estimated_gradients(step.model, step.backward_ms, dtype=step.dtype)
    return commsched.gradient_problem(gradients, cost_of(network), f"{step.model}, {network.name}")


def cost_of(network: Network) -> commsched.AlphaBeta:
    """Return what an all-reduce costs on a network."""
    return commsched.AlphaBeta(round(network.alpha_s * 1e6, 3), round(1e-9 / network.beta_s, 4))


def whole_step(step: Step, network: Network) -> Problem:
    """Return a step with the next forward pass, in which each block waits for its gradients."""
    profile = estimated_profile(
        step.model, samples=step.samples, tflops=step.tflop_s, dtype=step.dtype, by="block"
    )
    return ddp_step(profile, cost_of(network))


def cases(models: tuple[str, ...]) -> list[Case]:
    """Return the cases of some models, the longest to compute first."""
    large = [step.model for step in sorted(STEPS, key=lambda s: -len(parameters(s.model)))]
    found = [Case("whole", model, network) for model in large for network in WHOLE_NETWORKS]
    found += [Case("backward", model, each.name) for model in large for each in NETWORKS]
    found = [case for case in found if case.step in models]
    for name in reversed(NAMES):
        kinds: dict[str, Kind] = {"dp": "backward", "next-forward": "whole"}
        named = parse_name(name)
        if named.model in models or named.form not in kinds:
            found.append(Case(kinds.get(named.form, "sharded"), name))
    return [*found, *(Case("backward", name) for name in RECORDED)]


def problem_in(case: Case) -> Problem:
    """Return the problem of a case."""
    if not case.network:
        return make(case.step).problem
    step = next(step for step in STEPS if step.model == case.step)
    network = next(network for network in NETWORKS if network.name == case.network)
    return whole_step(step, network) if case.kind == "whole" else problem_of(step, network)
