"""Rules of data-parallel training on steps that send other things, too."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import deque

import pytest

from commsched.models import AlphaBeta, DeadlockError, Gradient, GradientProblem, NotApplicableError
from commsched.models.knob import Knob
from commsched.models.timeline import play
from commsched.optimizer import RULES, optimize, rule
from commsched.optimizer.registry import KnobOf
from commsched.optimizer.rules.fusing import fuse_responses
from commsched.optimizer.tuning import tune
from commsched.optimizer.worthwhile import least_worthwhile
from commsched.problems.steps.experts import Experts
from commsched.problems.steps.layers import Layer, LayerProfile
from commsched.problems.steps.moe_step import moe_step

CUTTING = ("bytescheduler", "byteps", "byteps-credit", "p3")
DDP = ("ddp", "ddp-first", "ddp-unused", "ddp-last-cap")
APPLY = (*DDP, "mg-wfbp", "mg-wfbp-dear", "deepspeed", "megatron", "dear", *CUTTING)


def experts_step(rng: random.Random, layers: int, *, one_nic: bool):
    """Return a step with experts whose own parameters are all-reduced."""
    profile = LayerProfile(
        tuple(
            Layer(
                f"layers.{k}",
                rng.randint(1000, 9000),
                rng.randint(1000, 9000),
                4 * rng.randint(1, 400_000),
            )
            for k in range(layers)
        )
    )
    costs = {"all_to_all": AlphaBeta(2, 50), "allreduce": AlphaBeta(rng.randint(0, 9), 100)}
    experts = Experts(4000, rng.randint(1, 200_000), 8000)
    return moe_step(profile, experts, costs, chunks=rng.choice([1, 2]), one_nic=one_nic)


@pytest.mark.parametrize("one_nic", [False, True])
def test_rules_bucket_the_all_reduces_of_a_step_with_experts(one_nic):
    """Each plan covers all bytes once and ends; what is no all-reduce goes alone, in ready order."""
    for seed in range(6):
        problem = experts_step(random.Random(seed), 5, one_nic=one_nic)
        place = {problem.names[k]: n for n, k in enumerate(problem.ready_order)}
        for name in APPLY:
            plans = [rule(name).make(problem)]
            plans += [knob.best(problem).plan for knob in rule(name).knobs]
            for plan in plans:
                timeline = play(problem, plan)
                assert sum(launch.bytes for launch in timeline.launches) == sum(problem.bytes)
                others = [n.names for n in timeline.launches if n.key.kind != "allreduce"]
                assert all(len(names) == 1 for names in others), name
                launched = [b.names[0] for b in plan.buckets if b.names in others]
                if name not in CUTTING:
                    assert launched == sorted(launched, key=place.__getitem__)


def test_no_rule_beats_the_optimum_of_scope_any_on_a_step_with_experts():
    """Rules that cut nothing and hold nothing back are plans of the scope."""
    looked = 0
    for seed in range(3):
        problem = experts_step(random.Random(seed), 2, one_nic=seed % 2 == 0)
        bound_ns = optimize(problem, scope="any", time_limit_s=5).lower_bound_ns
        for each in RULES:
            try:
                plan = each.make(problem)
                makespan_ns = play(problem, plan).makespan_ns
            except (NotApplicableError, DeadlockError):
                continue
            if not plan.splits:
                looked += 1
                assert makespan_ns >= bound_ns - plan.launches, each.name
    assert looked > 20


def test_a_step_without_all_reduces_is_refused():
    """There is nothing to bucket."""
    profile = LayerProfile((Layer("a", 1000, 2000, 8),))
    problem = moe_step(profile, Experts(4000, 8000, 4000), {"all_to_all": AlphaBeta(1, 4)})
    for name in APPLY:
        with pytest.raises(NotApplicableError, match="the step has all_to_all"):
            rule(name).make(problem)


def mixed(rng: random.Random, most: int) -> GradientProblem:
    """Return gradients of several dtypes, some sparse, some of 0 bytes."""
    dtypes = ["float32", "bfloat16", "float16"][: rng.randint(1, 3)]
    gradients = [
        Gradient(
            f"m{rng.randint(0, 5)}.{k}",
            4 * rng.choice([0, 1, rng.randint(0, 9), rng.randint(0, 200)]),
            rng.randint(0, 90) * rng.choice([1, 1000]),
            rng.choice(dtypes),
            sparse=rng.random() < rng.choice([0, 0.3]),
        )
        for k in range(rng.randint(1, most))
    ]
    return GradientProblem(gradients, AlphaBeta(rng.choice([0, 0.01, 1]), rng.choice([1, 10])))


KNOBS = [(each.name, knob) for each in RULES for knob in each.knobs if isinstance(knob, KnobOf)]


@pytest.mark.parametrize(("name", "knob"), KNOBS, ids=[name for name, _ in KNOBS])
def test_what_a_rule_decides_is_its_plan(name, knob):
    """Makespan, launches and plan of a sketch are those of the evaluator, for any value."""
    for seed in range(80):
        rng = random.Random(seed)
        problem = mixed(rng, 25)
        decide = knob.decide(problem)
        assert decide is not None
        for value in (1, 3, 8, 40, rng.randint(1, 900), 10**6):
            decided, plan = decide(Knob(value)), knob.make(problem, value)
            assert decided.plan() == plan, name
            assert decided.makespan_ns() == play(problem, plan).makespan_ns
            assert len(decided.cuts) == plan.launches


@pytest.mark.parametrize(("name", "knob"), KNOBS, ids=[name for name, _ in KNOBS])
def test_all_values_agree_with_trying_every_value(name, knob):
    """Best and flat values of every rule, with two dtypes and more on one channel."""
    for seed in range(12):
        problem = mixed(random.Random(seed), 6)
        found = knob.best(problem).tuning
        top = 2 * sum(problem.bytes) + 4
        tried = {}
        for value in range(1, top):
            plan = knob.make(problem, value)
            tried[value] = (play(problem, plan).makespan_ns, plan.launches)
        best = min(tried.values())
        assert found.best.key == best, name
        spans = [found.flat, *found.flat_elsewhere]
        inside = {v for low, high in spans for v in range(low, min(high or top, top - 1) + 1)}
        assert inside == {
            v
            for v, key in tried.items()
            if key[0] * 100 // 101 <= best[0] and key[0] <= best[0] * 101 // 100
        }


def fuse_one_by_one(sizes, keys, threshold):
    """Return what ``FuseResponses`` does, looking at each tensor of the queue in turn."""
    queue, launches = deque(range(len(sizes))), []
    while queue:
        front = queue.popleft()
        launch, size, skipped, skipped_size = [front], sizes[front], [], 0
        while queue:
            following = queue[0]
            if keys[following] == keys[front] and size + sizes[following] <= threshold:
                launch.append(following)
                size += sizes[following]
            else:
                skipped_size += sizes[following]
                if size + skipped_size > threshold:
                    break
                skipped.append(following)
            queue.popleft()
        queue.extendleft(reversed(skipped))
        launches.append(launch)
    return launches


def test_fusing_equals_looking_at_each_tensor():
    """In any order of sizes and keys."""
    rng = random.Random(1)
    for _ in range(4000):
        count = rng.randint(0, 14)
        sizes = [rng.choice([0, 1, rng.randint(0, 9)]) for _ in range(count)]
        keys = [rng.randint(0, rng.choice([0, 1, 3, 9])) for _ in range(count)]
        threshold = rng.randint(1, 30)
        assert fuse_responses(sizes, keys, threshold) == fuse_one_by_one(sizes, keys, threshold)


def test_small_values_are_left_out_for_several_dtypes():
    """Chains that share a channel count together, and what comes late counts by itself."""
    rng = random.Random(2)
    gradients = [
        Gradient(f"g{k}", 4 * rng.randint(1, 5000), k * 2000, rng.choice(["float32", "float16"]))
        for k in range(150)
    ]
    problem = GradientProblem(gradients, AlphaBeta(50, 10))
    found = rule("ddp").knobs[0].best(problem).tuning
    assert found.ranges[0].low > 1
    for cap in (1, found.ranges[0].low // 2, found.ranges[0].low - 1):
        plan = rule("ddp").knobs[0].make(problem, cap)
        assert play(problem, plan).makespan_ns > found.best.makespan_ns * 1.01
    assert least_worthwhile(problem, found.best.makespan_ns * 1000, 1) == 1


def test_too_many_pieces_are_refused_before_any_is_played():
    """Tiny start-ups leave all partitions worth a look; that is found without looking."""
    gradients = [Gradient(f"g{k}", 4 * 10**6 + 4 * k, k * 1000) for k in range(200)]
    problem = GradientProblem(gradients, AlphaBeta(0.001, 25))
    knob = rule("bytescheduler").knobs[0]
    played = []

    def decide(partition):
        played.append(partition)
        return knob.decide(problem)(partition)

    with pytest.raises(NotApplicableError, match="too many plans"):
        tune(problem, knob.make, 4, cuts=True, decide=decide, launches_from=knob.launches_from)
    assert len(played) <= 7


OPTIMISED = """
import random
from commsched import AlphaBeta, Gradient, gradient_problem
from commsched.optimizer import RULES
from commsched.models.errors import NotApplicableError

for seed in range(3):
    rng = random.Random(seed)
    types = ("float32", "float16", "float64")[: 1 + seed]
    gradients = [
        Gradient(f"g{k}", rng.randint(1, 40) * 1000, rng.randint(0, 400) * 1000, rng.choice(types))
        for k in range(20)
    ]
    problem = gradient_problem(gradients, AlphaBeta(60, 1))
    for rule in RULES:
        for knob in rule.knobs:
            try:
                best = knob.best(problem)
            except NotApplicableError as error:
                print(rule.name, error)
            else:
                print(rule.name, best.setting, best.range_text, best.plan)
"""


def test_best_settings_do_not_rest_on_assertions():
    """A knob remembers what it is compared with, so no comparison may stand in an assert."""
    found = [
        subprocess.run(
            [sys.executable, *flags, "-c", OPTIMISED], capture_output=True, text=True, check=True
        ).stdout
        for flags in ([], ["-O"])
    ]
    assert found[0] == found[1]
    assert found[0].count("\n") > 20
