"""Parametric plans against brute force: every in-order plan, priced at many factors, in fractions."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from oracles import exact_price
from strategies import (
    PROPERTY,
    gradient_problems,
    random_affine,
    random_gradient_problem,
    random_piecewise,
    random_step,
    random_table,
)

from commsched import read
from commsched.models import (
    AlphaBeta,
    Bucket,
    Gradient,
    GradientProblem,
    MostLaunches,
    PiecewiseLinear,
    Plan,
    StepTable,
    evaluate,
)
from commsched.models.errors import InputError, NotApplicableError, PlanError
from commsched.optimizer import optimize
from commsched.optimizer import sensitivity as module
from commsched.optimizer.hiding import hiding_bandwidth
from commsched.optimizer.lines import Line, Pieces, between, overlaps, upper
from commsched.optimizer.parametric import Family, Knob
from commsched.optimizer.parametric_chain import LineChain, affine_intervals, least_end
from commsched.optimizer.sensitivity import Span, sensitivity
from commsched.problems import read_network

F = Fraction
KNOBS = ("alpha", "bandwidth", "compute")


def launch_ns(curve, size, knob, factor):
    """Price one launch, unrounded: start-up is the price of nothing."""
    start = exact_price(curve, 0)
    transfer = exact_price(curve, size) - start
    if knob == "alpha":
        return start * factor + transfer
    if knob == "bandwidth":
        return start + transfer / factor
    return start + transfer


def makespan_ns(problem, plan, knob, factor):
    """Play a plan of a settled step channel by channel, unrounded."""
    speed = factor if knob == "compute" else 1
    ready = dict(zip(problem.names, problem.ready_ns, strict=True))
    size = dict(zip(problem.names, problem.bytes, strict=True))
    key = dict(zip(problem.names, problem.keys, strict=True))
    free = {}
    for bucket in plan.buckets:
        mine = key[bucket.names[0]]
        channel = problem.channel(mine)
        start = max(
            F(max(ready[name] for name in bucket.names)) / speed,
            bucket.not_before_ns,
            free.get(channel, 0),
        )
        total = sum(size[name] for name in bucket.names)
        free[channel] = start + launch_ns(problem.cost(mine), total, knob, factor)
    return max(F(problem.compute_ns) / speed, *free.values())


def cuts(items):
    """Yield every way to cut a sequence into contiguous parts."""
    for mask in range(2 ** (len(items) - 1)):
        parts, part = [], [items[0]]
        for k in range(1, len(items)):
            if mask >> (k - 1) & 1:
                parts.append(tuple(part))
                part = []
            part.append(items[k])
        yield [*parts, tuple(part)]


def merges(queues):
    """Yield every interleaving of some queues."""
    if not any(queues):
        yield []
        return
    for number, queue in enumerate(queues):
        if queue:
            rest = [q[1:] if k == number else q for k, q in enumerate(queues)]
            for tail in merges(rest):
                yield [queue[0], *tail]


def in_order_plans(problem):
    """Yield every plan of scope in-order."""
    chains = [[problem.names[k] for k in chain] for chain in problem.chains.values()]
    for parts in itertools.product(*(list(cuts(chain)) for chain in chains)):
        for order in merges([list(part) for part in parts]):
            yield Plan(tuple(Bucket(names) for names in order))


def one_key(problem):
    """Return a gradient problem's copy in which all gradients may share a bucket."""
    (cost,) = problem.costs.values()
    gradients = [replace(g, dtype="float32", sparse=False) for g in problem.gradients]
    return GradientProblem(gradients, cost, backward_end_ns=problem.backward_end_ns)


def check(problem, knob, plan=None):
    """Check everything that a sensitivity says against every plan."""
    plans = list(in_order_plans(problem))
    found = sensitivity(problem, knob, plan)
    assert found.complete

    def best(factor):
        return min(makespan_ns(problem, plan, knob, factor) for plan in plans)

    def kept(factor):
        return makespan_ns(problem, found.plan, knob, factor)

    over = kept(F(1)) - best(F(1))
    assert found.rounding_ns == (over if over < found.plan.launches else 0)
    assert (found.optimal is None) == (over >= max(found.plan.launches, 1) and over > 0)
    ends = sorted({p for s in found.segments for p in (s.low, s.high)} | {F(1)})
    middles = [(a + b) / 2 for a, b in itertools.pairwise(ends)]
    # Segments cover the range without holes, and each plan is optimal wherever it is said to be.
    assert found.segments[0].low == found.searched.low
    assert found.segments[-1].high == found.searched.high
    assert all(a.high == b.low for a, b in itertools.pairwise(found.segments))
    for segment in found.segments:
        slack = found.rounding_ns if segment.plan == found.plan else 0
        for factor in [segment.low, segment.high, *(m for m in middles)]:
            if segment.low <= factor <= segment.high:
                planned = makespan_ns(problem, segment.plan, knob, factor)
                assert 0 <= planned - best(factor) <= slack
    for factor in [*ends, *middles]:
        inside = found.optimal and found.optimal.low <= factor <= found.optimal.high
        if inside:
            assert kept(factor) - best(factor) <= found.rounding_ns
        if found.good and found.good.low <= factor <= found.good.high:
            assert kept(factor) <= (1 + found.within) * best(factor) + found.rounding_ns
    # Immediately outside of the ranges the plan is no longer what was promised.
    for span, share in ((found.optimal, F(0)), (found.good, found.within)):
        for end, outside in ((span.low, -1), (span.high, 1)) if span else ():
            if found.searched.low < end < found.searched.high:
                factor = end + outside * F(1, 10**9)
                assert kept(factor) > (1 + share) * best(factor) + found.rounding_ns
    for regret in found.regrets:
        assert regret.makespan_ns == kept(regret.factor)
        assert best(regret.factor) <= regret.optimum_ns
        assert regret.optimum_ns <= best(regret.factor) + found.rounding_ns
        assert regret.ns >= 0
    # Between its bends the regret is straight, so no other place can be worse.
    worst = max(kept(f) - best(f) for f in [*ends, *middles])
    assert worst <= found.worst.ns + found.rounding_ns
    return found


@pytest.mark.parametrize("knob", KNOBS)
@pytest.mark.parametrize("seed", range(3))
def test_affine_costs_equal_brute_force(knob, seed):
    """Ranges, segments and regrets are those of every plan at every end and in between."""
    rng = random.Random(f"{knob} {seed}")
    for _ in range(25):
        check(one_key(random_gradient_problem(rng, 6, curve=random_affine)), knob)


@pytest.mark.parametrize("knob", KNOBS)
@pytest.mark.parametrize("curve", [random_piecewise, random_table])
def test_other_curves_equal_brute_force(knob, curve):
    """Costs that bend and jump."""
    rng = random.Random(f"{knob} {curve.__name__}")
    for _ in range(20):
        check(one_key(random_gradient_problem(rng, 5, curve=curve)), knob)


@pytest.mark.parametrize("knob", KNOBS)
def test_several_keys_on_one_channel_equal_brute_force(knob):
    """Two dtypes share the channel, so that launches of the two interleave."""
    rng = random.Random(knob)
    for _ in range(15):
        check(random_gradient_problem(rng, 4, curve=random_affine), knob)


@pytest.mark.parametrize("knob", KNOBS)
def test_several_channels_equal_brute_force(knob):
    """Groups on channels of their own, each with a curve of its own."""
    rng = random.Random(knob)
    for _ in range(15):
        check(random_step(rng, 4, settled=True), knob)


@pytest.mark.parametrize("knob", KNOBS)
def test_a_plan_that_is_given_is_judged(knob):
    """A plan that is not optimal at 1 has no range; one that is held back is judged with that."""
    rng = random.Random(knob)
    outcomes = set()
    for _ in range(30):
        problem = one_key(random_gradient_problem(rng, 5, curve=random_affine))
        plan = rng.choice(list(in_order_plans(problem)))
        if rng.random() < 0.3:
            first, *rest = plan.buckets
            plan = Plan((replace(first, not_before_ns=rng.randint(0, 30)), *rest))
        outcomes.add(check(problem, knob, plan).optimal is None)
    assert outcomes == {True, False}


def hand():
    """Two launches end at 20 + 5 + a, one at 20 + 10 + a; from a = 10 on the channel is busy."""
    return GradientProblem(
        [Gradient("b", 5, ready_ns=10), Gradient("a", 5, ready_ns=20)], AlphaBeta(0.003, 1)
    )


def test_by_hand_alpha():
    """Two launches: max(25 + a, 20 + 2a); one: 30 + a. They cross at a = 10, that is 10/3 of 3."""
    found = sensitivity(hand(), "alpha")
    assert found.optimal == Span(F(1, 10), F(10, 3))
    assert [(s.low, s.high, s.launches) for s in found.segments] == [
        (F(1, 10), F(10, 3), 2),
        (F(10, 3), F(10), 1),
    ]
    # At a = 30 two launches end at 80 and one at 60.
    assert (found.worst.factor, found.worst.ns, found.worst.share) == (10, 20, 20 / 60)
    # Within 1%: 20 + 2a <= 1.01 (30 + a) up to a = 10.3 / 0.99.
    assert found.good.high == F(1030, 99) / 3


def test_by_hand_compute():
    """With compute s times as fast: two max(20/s + 8, 10/s + 16), one 20/s + 13; cross at 10/s = 3."""
    found = sensitivity(hand(), "compute")
    assert found.optimal == Span(F(1, 10), F(10, 3))
    assert found.segments[1].launches == 1


def test_by_hand_bandwidth():
    """With 1/w = x: two max(23 + 5x, 16 + 10x), one 23 + 10x: two launches always win."""
    found = sensitivity(hand(), "bandwidth")
    assert found.optimal == found.searched == Span(F(1, 10), F(10))
    assert len(found.segments) == 1
    assert found.worst.ns == 0


def test_hidden_bandwidth_by_hand():
    """25 + 3 + ... : one launch of 100 bytes may take 49 ns until 1% of the step is exposed."""
    problem = GradientProblem(
        [Gradient("a", 100, ready_ns=51)], AlphaBeta(0.001, 1), backward_end_ns=99
    )
    # 52 + 100 / w = 99 / 0.99 = 100 at w = 100 / 48.
    assert hiding_bandwidth(problem).factor == F(100, 48)
    # Until 99 there are 47 ns.
    exact = hiding_bandwidth(problem, 0)
    assert (exact.factor, exact.bandwidth_gb_s) == (F(100, 47), F(100, 47))
    assert exact.least_exposed_ns == 0


def test_hiding_is_impossible_where_the_last_launch_is_too_late():
    """The last gradient is ready when backward ends: its start-up is always exposed."""
    problem = GradientProblem([Gradient("a", 100, ready_ns=100)], AlphaBeta(0.002, 1))
    found = hiding_bandwidth(problem)
    assert (found.factor, found.plan, found.least_exposed_ns) == (None, None, 2)
    assert hiding_bandwidth(problem, 0.5).factor == 100 / F(98)


def test_hiding_with_nothing_to_send():
    """Without bytes bandwidth does not matter."""
    empty = Gradient("a", 0, ready_ns=10)
    late = GradientProblem([empty], AlphaBeta(0.002, 1))
    assert hiding_bandwidth(late).factor is None
    early = GradientProblem([empty], AlphaBeta(0.002, 1), backward_end_ns=20)
    assert hiding_bandwidth(early).factor == 0


@pytest.mark.parametrize("curve", [random_affine, random_piecewise, random_table])
def test_hiding_bandwidth_equals_brute_force(curve):
    """Above the factor the best plan hides, below it does not."""
    rng = random.Random(curve.__name__)
    seen = 0
    for _ in range(60):
        problem = random_gradient_problem(rng, 4, curve=curve)
        share = F(rng.choice((0, 1, 10, 40)), 100)
        plans = list(in_order_plans(problem))
        found = hiding_bandwidth(problem, share)

        def hides(factor, share=share, plans=plans, problem=problem):
            ns = min(makespan_ns(problem, plan, "bandwidth", factor) for plan in plans)
            return (1 - share) * ns < problem.compute_ns if share else ns == problem.compute_ns

        if found.factor is None:
            assert not hides(F(10**9)) or (share == 0 and found.least_exposed_ns == 0)
        elif found.factor:
            seen += 1
            assert hides(found.factor + F(1, 10**9))
            assert not hides(found.factor - found.factor / 10**9)
            best = makespan_ns(problem, found.plan, "bandwidth", found.factor)
            assert (1 - share) * best == problem.compute_ns
    assert seen > 5


def larger(count, seed=0):
    """Return a step with many gradients."""
    rng = random.Random(seed)
    gradients = [
        Gradient(f"g{k}", rng.choice((4096, 2**16, 2**20, 2**22)), ready_ns=k * 10_000_000 // count)
        for k in range(count)
    ]
    return GradientProblem(gradients, AlphaBeta(30, 40))


@pytest.mark.parametrize("knob", KNOBS)
def test_large_steps_agree_with_the_optimizer(knob):
    """At the segments' ends and middles the plan is what the recurrence finds for that step."""
    problem = larger(60)
    found = sensitivity(problem, knob)
    family = Family(problem, Knob(knob))
    assert found.complete
    assert len(found.segments) > 2
    for segment in found.segments:
        for factor in (segment.low, (segment.low + segment.high) / 2, segment.high):
            best = family.optimum(Knob(knob).x(factor)).makespan / family.scale
            assert makespan_ns(problem, segment.plan, knob, factor) == best


@pytest.mark.parametrize("knob", KNOBS)
def test_the_two_exact_methods_agree(knob):
    """A straight line that is given as points is solved by the recurrence on functions."""
    problem = larger(14, seed=5)
    (cost,) = problem.costs.values()
    line = PiecewiseLinear([(0, 30), (40_000_000, 1030)])
    assert line.affine == cost.affine
    bent = PiecewiseLinear([(0, 30), (4_000_000, 130), (40_000_000, 1030)])
    assert bent.affine is None
    ours = sensitivity(problem, knob)
    theirs = sensitivity(GradientProblem(problem.gradients, bent), knob)
    assert (ours.optimal, ours.good) == (theirs.optimal, theirs.good)
    assert ours.worst == theirs.worst


def test_the_nominal_plan_is_the_optimizers():
    """At 1 nothing is regretted, and the evaluator agrees up to rounding."""
    problem = larger(80)
    result = optimize(problem)
    found = sensitivity(problem, "alpha", result.plan)
    (nominal,) = [regret for regret in found.regrets if regret.factor == 1]
    assert nominal.ns == 0
    timeline = evaluate(problem, result.plan)
    assert 0 <= timeline.makespan_ns - nominal.makespan_ns < result.plan.launches


def test_ten_thousand_gradients_are_quick_enough():
    """The range needs no pass over all pairs."""
    found = sensitivity(larger(10_000), "alpha", segments=False)
    assert found.optimal.low < 1 < found.optimal.high
    assert found.segments == ()
    assert not found.complete
    assert found.worst is None


def test_a_search_that_stops_early_says_so(monkeypatch):
    """What it found is right, what is missing is not claimed."""
    monkeypatch.setattr(module, "MAX_PLANS", 3)
    found = sensitivity(larger(60), "bandwidth")
    assert not found.complete
    assert found.worst is None
    assert found.worst_share is None
    assert found.optimal.low <= 1 <= found.optimal.high
    assert all(regret.ns >= 0 for regret in found.regrets)


def test_refused():
    """Wrong values are one clear line; other classes are not pretended to be exact."""
    problem = hand()
    with pytest.raises(InputError, match="knob: 'beta' is not one of alpha, bandwidth, compute"):
        sensitivity(problem, "beta")
    with pytest.raises(InputError, match="range: 2 to 10 must contain 1"):
        sensitivity(problem, "alpha", low=2)
    with pytest.raises(InputError, match="range: 0 to 10"):
        sensitivity(problem, "alpha", low=0)
    with pytest.raises(InputError, match="within: -1 must be at least 0"):
        sensitivity(problem, "alpha", within=-1)
    with pytest.raises(InputError, match="low: nan is not a finite number"):
        sensitivity(problem, "alpha", low=float("nan"))
    with pytest.raises(InputError, match="share: 1 must be at least 0 and below 1"):
        hiding_bandwidth(problem, 1)
    with pytest.raises(PlanError):
        sensitivity(problem, "alpha", Plan.of([["b"]]))
    with pytest.raises(NotApplicableError, match="plans are limited"):
        sensitivity(problem.with_limits([MostLaunches(1)]), "alpha")
    table = StepTable([(2**21, 100), (2**30, 2000)])
    many = GradientProblem(larger(2_000).gradients, table)
    with pytest.raises(
        NotApplicableError, match="2000 collectives of 1 fusion keys on one channel"
    ):
        sensitivity(many, "alpha")


def test_an_unsettled_step_is_refused():
    """Where compute waits for collectives, ready times are not lines."""
    rng = random.Random(1)
    while True:
        problem = random_step(rng, 4)
        if not problem.settled:
            break
    with pytest.raises(NotApplicableError, match="ready times are fixed: tasks wait"):
        sensitivity(problem, "alpha")


@PROPERTY
@given(gradient_problems(6, curve=random_affine))
def test_properties(problem):
    """A plan's makespan is convex, the optimum never falls with time, and no plan beats it."""
    for knob in Knob:
        family = Family(problem, knob)
        low, high = F(1, 4), F(4)
        plan = family.optimum(F(1)).plan
        kept = family.makespan(plan, low, high)
        slopes = [line.slope for line in kept.lines]
        assert slopes == sorted(set(slopes))
        places = [low, F(1, 2), F(1), F(7, 3), high]
        best = [family.optimum(x).makespan for x in places]
        assert best == sorted(best)
        assert all(kept.at(x) >= value for x, value in zip(places, best, strict=True))
        assert kept.at(F(1)) == best[2]


@PROPERTY
@given(gradient_problems(5))
def test_scaling_everything_scales_the_range(problem):
    """Seconds instead of milliseconds: the factors do not change."""
    try:
        found = sensitivity(problem, "compute", segments=False)
    except NotApplicableError:
        return
    (cost,) = problem.costs.values()
    if not isinstance(cost, AlphaBeta):
        return
    slower = AlphaBeta(F(str(cost.alpha_us)) * 7, F(str(cost.bandwidth_gb_s)) / 7)
    gradients = [replace(g, ready_ns=7 * g.ready_ns) for g in problem.gradients]
    other = GradientProblem(gradients, slower, backward_end_ns=7 * problem.backward_end_ns)
    assert sensitivity(other, "compute", found.plan, segments=False).optimal == found.optimal


def test_lines():
    """The larger and the smaller of two functions, and their crossings."""
    flat = Pieces.line(Line(4, 0), F(0), F(8))
    steep = Pieces.line(Line(0, 1), F(0), F(8))
    most = flat.most(steep)
    assert (most.starts, most.lines) == ([F(0), F(4)], [Line(4, 0), Line(0, 1)])
    least = flat.least(steep)
    assert (least.starts, least.lines) == ([F(0), F(4)], [Line(0, 1), Line(4, 0)])
    assert [most.at(F(x)) for x in (0, 4, 8)] == [4, 4, 8]
    assert most.exceeds(least) == [(F(0), F(4)), (F(4), F(8))]
    assert least.exceeds(most) == []
    assert upper([Line(4, 0), Line(0, 1), Line(2, 0)], F(0), F(8)) == most
    assert upper([Line(0, 1), Line(3, 1)], F(0), F(8)).lines == [Line(3, 1)]
    assert overlaps([(F(0), F(3)), (F(4), F(9))], [(F(2), F(5))]) == [(F(2), F(3)), (F(4), F(5))]


@pytest.mark.parametrize("seed", range(4))
def test_functions_equal_their_values(seed):
    """Sums, extremes and comparisons of random functions, looked at place by place."""
    rng = random.Random(seed)
    places = [F(n, 8) for n in range(81)]
    for _ in range(100):
        f, g = (
            upper([Line(rng.randint(-5, 5), rng.randint(-2, 2)) for _ in range(4)], F(0), F(10))
            for _ in range(2)
        )
        f = f.least(upper([Line(rng.randint(-5, 5), rng.randint(-2, 2))], F(0), F(10)))
        above = f.exceeds(g)
        for x in places:
            assert f.most(g).at(x) == max(f.at(x), g.at(x))
            assert f.least(g).at(x) == min(f.at(x), g.at(x))
            inside = any(low < x < high for low, high in above)
            part = f.part(F(1, 3), F(9)) if F(1, 3) <= x <= 9 else f
            assert part.at(x) == f.at(x)
            on_end = any(x in interval for interval in above)
            assert inside == (f.at(x) > g.at(x)) or on_end


@pytest.mark.parametrize("seed", range(4))
def test_affine_intervals_equal_the_recurrence_on_functions(seed):
    """Both say where a chain can end before a target line."""
    rng = random.Random(seed)
    for _ in range(60):
        count = rng.randint(1, 7)
        base, slope = rng.choice([(1, 0), (0, 1)])
        times = sorted(rng.randint(0, 40) for _ in range(count))
        ready = [Line(base * t, slope * t) for t in times]
        sent = list(itertools.accumulate((rng.randint(0, 5) for _ in range(count)), initial=0))
        start = rng.choice([Line(0, 3), Line(3, 0), Line(0, 0)])
        each = rng.choice([Line(0, 1), Line(2, 0)])
        chain = LineChain(ready, sent, lambda s, a=start, b=each: a.plus(b.times(s)))
        target, times_ = Line(rng.randint(0, 90), rng.randint(0, 9)), rng.randint(1, 2)
        low, high = F(1, 3), F(5)
        end = least_end([chain], low, high)
        found = affine_intervals(chain, low, high, target, times_)
        expected = Pieces.line(target, low, high).exceeds(end, times_)
        for n in range(1, 200):
            x = low + (high - low) * F(n, 200)
            if target.at(x) != times_ * end.at(x):
                inside = [any(a <= x <= b for a, b in spans) for spans in (found, expected)]
                assert inside[0] == inside[1] == (target.at(x) > times_ * end.at(x))


def test_between_takes_a_simple_fraction():
    """It lies inside, and its denominator is small."""
    rng = random.Random(0)
    for _ in range(200):
        low = F(rng.randint(0, 999), rng.randint(1, 99))
        high = low + F(rng.randint(1, 99), rng.randint(1, 999))
        middle = between(low, high)
        assert low < middle < high
        assert middle.denominator <= 2 / (high - low) + 1


def test_a_recorded_step():
    """A real backward pass with measured costs: the plan holds around 1 and is regretted outside."""
    data = Path(__file__).resolve().parents[1] / "problems" / "data"
    problem = read(
        data / "transformer_ddp_gloo_rank0.json.gz",
        cost=read_network(data / "gloo_loopback_costs.json"),
    )
    plan = optimize(problem).plan
    for knob in KNOBS:
        found = sensitivity(problem, knob, plan)
        assert found.complete
        assert found.rounding_ns < plan.launches
        assert found.optimal.low <= 1 <= found.optimal.high
        assert found.good.low <= found.optimal.low
        assert found.optimal.high <= found.good.high
        assert all(regret.ns >= 0 for regret in found.regrets)
