"""The best cap over all caps, against trying every cap."""

from __future__ import annotations

import random
import re
from decimal import Decimal
from itertools import pairwise

import pytest
from strategies import random_gradient_problem

from commsched.models import AlphaBeta, Gradient, GradientProblem, NotApplicableError
from commsched.models.knob import Knob
from commsched.models.timeline import play
from commsched.models.units import MIB
from commsched.optimizer import RULES, ddp, tune, tuning
from commsched.optimizer.handy import bytes_range, handy_mib, handy_number
from commsched.optimizer.registry import KnobOf
from commsched.optimizer.tuning import setting_ranges


def random_gradients(rng: random.Random, most: int = 9) -> GradientProblem:
    """Return gradients with small sizes, so that every cap can be tried."""
    gradients = [
        Gradient(f"g{k}", rng.randint(0, 12), rng.randint(0, 60), rng.choice(["f4", "f4", "f2"]))
        for k in range(rng.randint(1, most))
    ]
    return GradientProblem(gradients, AlphaBeta(rng.choice([0, 0.002, 0.01]), 1))


def best_cap(problem):
    """Return the best single cap for DDP."""
    return tune(problem, lambda problem, cap: ddp(problem, [cap]))


@pytest.mark.parametrize("seed", range(4))
def test_cap_ranges_hold_exactly_the_caps_with_one_plan(seed):
    """Within a range the plan is the same; the ranges follow each other without gaps."""
    rng = random.Random(seed)
    for _ in range(100):
        problem = random_gradients(rng)
        ranges = [found[:2] for found in setting_ranges(lambda cap, p=problem: ddp(p, [cap]))]
        assert ranges[0][0] == 1
        assert ranges[-1][1] is None
        for (_, last), (first, _) in pairwise(ranges):
            assert first == last + 1
        for first, last in ranges:
            plans = {
                ddp(problem, [cap])
                for cap in range(first, (sum(problem.bytes) + 3 if last is None else last) + 1)
            }
            assert len(plans) <= 1


@pytest.mark.parametrize("seed", range(4))
def test_best_cap_equals_trying_every_cap(seed):
    """The best makespan, its launches, and exactly the caps that reach it or nearly, all of them."""
    rng, apart = random.Random(seed), 0
    for _ in range(100):
        problem = random_gradients(rng)
        top = sum(problem.bytes) + 2
        tried = {}
        for cap in range(1, top + 1):
            plan = ddp(problem, [cap])
            tried[cap] = (play(problem, plan).makespan_ns, plan.launches)
        found = best_cap(problem)
        best = min(tried.values())
        assert (found.best.makespan_ns, found.best.launches) == best
        high = top if found.best.high is None else found.best.high
        for cap in range(found.best.low, high + 1):
            assert tried[min(cap, top)] == best
        low, high = found.flat
        for cap in range(low, (top if high is None else min(high, top)) + 1):
            assert tried[cap][0] <= best[0] * 1.01
        if low > 1:
            assert tried[low - 1][0] > best[0] * 1.01
        if high is not None and high < top:
            assert tried[high + 1][0] > best[0] * 1.01
        for cap in range(1, found.ranges[0].low):
            assert tried[cap][0] > best[0] * 1.01
        spans = {"best": [(found.best.low, found.best.high), *found.equal_elsewhere]}
        spans["flat"] = [found.flat, *found.flat_elsewhere]
        caps = {
            name: sorted(c for low, high in each for c in range(low, min(high or top, top) + 1))
            for name, each in spans.items()
        }
        assert caps["best"] == [cap for cap in tried if tried[cap] == best]
        assert caps["flat"] == [cap for cap in tried if tried[cap][0] <= best[0] * 1.01]
        apart += len(found.flat_elsewhere) + len(found.equal_elsewhere)
    assert apart > 0


def test_small_caps_are_left_out_only_when_start_ups_alone_are_too_slow():
    """With a large start-up most small caps need no look, and the result is the same."""
    rng = random.Random(3)
    gradients = [Gradient(f"g{k}", rng.randint(1, 40) * 4096, k * 1000) for k in range(120)]
    problem = GradientProblem(gradients, AlphaBeta(50, 10))
    found = best_cap(problem)
    assert found.ranges[0].low > 1
    for cap in (1, found.ranges[0].low // 2, found.ranges[0].low - 1):
        assert play(problem, ddp(problem, [cap])).makespan_ns > found.best.makespan_ns * 1.01


def test_too_many_plans_are_refused(monkeypatch):
    """Beyond the limit the search says so and returns nothing."""
    monkeypatch.setattr(tuning, "MAX_VISITS", 3)
    with pytest.raises(NotApplicableError, match="too many plans"):
        best_cap(GradientProblem([Gradient(f"g{k}", k, k) for k in range(5)], AlphaBeta(0, 1)))


def test_a_handy_cap_lies_in_its_range_as_torch_reads_it():
    """torch computes int(cap * 2**20): the handy number must land inside."""
    rng = random.Random(1)
    for _ in range(3000):
        low = rng.randint(1, 10 ** rng.randint(1, 9))
        high = low + rng.randint(0, 10 ** rng.randint(0, 9))
        assert low <= int(handy_mib(low, high) * MIB) <= high
    assert handy_mib(5 * MIB, None) == 10.0


def test_what_is_pasted_gives_the_best_plan():
    """Caps keep all their digits: where a byte decides, the printed text still hits the plan."""
    rng = random.Random(6)
    for _ in range(150):
        large = rng.choice((1, 10**6, 10**8))
        sizes = [rng.choice((rng.randint(1, 9), large + rng.randint(0, 30))) for _ in range(6)]
        problem = GradientProblem(
            [Gradient(f"g{k}", size, k * large) for k, size in enumerate(sizes)],
            AlphaBeta(rng.choice((0.001, 1)), rng.choice((1, 10))),
        )
        for knob in RULES[0].knobs:
            best = knob.best(problem)
            text = best.setting.partition("=")[2].strip("[]")
            caps = [int(float(cap) * MIB) for cap in text.split(", ")]
            assert ddp(problem, caps) == best.plan, best.setting


def test_a_range_that_is_shown_does_not_leave_the_range_that_is_meant():
    """Somebody pastes an end of it: rounding must not have moved that to another plan."""
    rng = random.Random(7)
    unit = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    for _ in range(3000):
        low = rng.randint(2, 10 ** rng.randint(1, 9))
        high = rng.choice((None, low + rng.randint(0, 10 ** rng.randint(0, 9))))
        text = bytes_range(low, high)
        ends = re.findall(r"([0-9.,]+) (\w*B)", text)
        assert len(ends) == (1 if high in (None, low) else 2), text
        for number, name in ends:
            shown = Decimal(number.replace(",", "")) * unit[name]
            assert low <= shown <= (high or 10**11), (low, high, text)
    # What is as good as the best is within 1% of it, in print as well.
    assert bytes_range(102190330, 102190450) == "from 97.4563 MiB to 97.4564 MiB"
    assert bytes_range(1, 102190450, (102190330, 102190450)) == "up to 97.4564 MiB"


def test_a_handy_number_lies_in_its_range():
    """The value to paste is one of the range."""
    rng = random.Random(2)
    for _ in range(3000):
        low = rng.randint(1, 10 ** rng.randint(1, 9))
        high = low + rng.randint(0, 10 ** rng.randint(0, 9))
        assert low <= handy_number(low, high) <= high


def test_a_knob_narrows_to_exactly_the_values_that_answer_alike():
    """For comparisons either way round and for pieces, against trying every value."""
    rng = random.Random(4)
    asks = (
        lambda knob, n: knob <= n,
        lambda knob, n: knob < n,
        lambda knob, n: n <= knob,
        lambda knob, n: n < knob,
        lambda knob, n: knob.pieces(n),
    )
    for _ in range(2000):
        questions = [(rng.choice(asks), rng.randint(0, 40)) for _ in range(rng.randint(0, 4))]
        knob = Knob(rng.randint(1, 50))
        answers = [ask(knob, n) for ask, n in questions]
        alike = [
            value
            for value in range(1, 100)
            if [ask(Knob(value), n) for ask, n in questions] == answers
        ]
        assert knob.low == alike[0]
        assert alike[-1] == (99 if knob.high is None else knob.high)
        assert alike == list(range(alike[0], alike[-1] + 1))


@pytest.mark.parametrize("escape", [lambda k: k + 1, lambda k: k == 3, int, hash, bool, float])
def test_a_knob_cannot_be_computed_with(escape):
    """A rule that would escape the record fails instead."""
    if escape is bool:
        assert bool(Knob(3))  # always true, so it tells a rule nothing
        return
    with pytest.raises(TypeError):
        escape(Knob(3))


def test_the_plan_beside_a_setting_is_what_the_setting_gives():
    """Several plans may do equally well in one range: the one shown is that of the value shown."""
    for seed in range(40):
        problem = random_gradient_problem(random.Random(seed))
        for rule in RULES:
            for knob in rule.knobs:
                if not isinstance(knob, KnobOf):
                    continue
                try:
                    found = knob.best(problem)
                except NotApplicableError:
                    continue
                value, setting = knob.handy(found.tuning.best.low, found.tuning.best.high)
                assert found.setting == setting
                assert found.plan == knob.make(problem, value)
                best_ns = play(problem, found.tuning.plan).makespan_ns
                assert play(problem, found.plan).makespan_ns == best_ns
