"""The front door: every method against every plan, and what must hold for any step."""

from __future__ import annotations

import dataclasses
import random
from fractions import Fraction

import pytest
from hypothesis import given
from oracles import brute_force, simulate
from strategies import PROPERTY, gradient_problems, problems, random_problem, random_step

from commsched.models import (
    AlphaBeta,
    Bucket,
    Collective,
    Compute,
    DeadlockError,
    Gradient,
    GradientProblem,
    InputError,
    NotApplicableError,
    PiecewiseLinear,
    Plan,
    Problem,
    SolverError,
    evaluate,
)
from commsched.optimizer import RULES, Bound, Result, Status, closed_form_bound, ddp, optimize
from commsched.optimizer.cpsat import AnyOrderModel, Budget, InOrderModel, solve
from commsched.optimizer.cpsat.search import extract
from commsched.optimizer.starting import best_known


def check(problem: Problem, scope: str, method: str) -> Result:
    """Solve, compare with every plan of the scope, and return the result."""
    best = brute_force(problem, scope)
    result = optimize(problem, scope=scope, method=method, workers=1)
    assert result.status is Status.OPTIMAL
    assert result.lower_bound_ns <= best.makespan
    assert best.makespan <= result.makespan_ns <= best.makespan + result.plan.launches
    assert simulate(problem, result.plan).makespan == result.makespan_ns
    if "launches is" not in result.reason:
        assert (result.makespan_ns, result.plan.launches) == (best.makespan, best.launches)
    return result


@pytest.mark.parametrize("scope", ["in-order", "any"])
@pytest.mark.parametrize("block", range(4))
def test_auto_equals_brute_force_on_random_steps(block, scope):
    """Whatever method is chosen: the best of all partitions and orders, with a true bound."""
    methods = set()
    for seed in range(250 * block, 250 * block + 250):
        methods.add(check(random_problem(random.Random(seed), 5), scope, "auto").method)
    assert {"recurrence", "cpsat"} <= methods


@pytest.mark.parametrize("scope", ["in-order", "any"])
@pytest.mark.parametrize("block", range(4))
def test_cpsat_equals_brute_force_on_random_steps(block, scope):
    """CP-SAT alone finds the same optimum, on settled steps and on general ones."""
    for seed in range(5000 + 60 * block, 5060 + 60 * block):
        check(random_problem(random.Random(seed), 5), scope, "cpsat")


@pytest.mark.parametrize("block", range(4))
def test_recurrence_equals_cpsat_on_gradients(block):
    """The exact recurrence and CP-SAT agree on whole nanoseconds."""
    for seed in range(40 * block, 40 * block + 40):
        rng = random.Random(seed)
        gradients = [
            Gradient(f"g{k}", rng.randint(0, 40), rng.randint(0, 120))
            for k in range(rng.randint(1, 9))
        ]
        problem = GradientProblem(gradients, AlphaBeta(Fraction(rng.randint(0, 30), 1000), 1))
        by_cpsat = optimize(problem, method="cpsat", workers=1)
        by_recurrence = optimize(problem, method="recurrence")
        assert by_cpsat.makespan_ns == by_recurrence.makespan_ns
        assert by_cpsat.plan.launches == by_recurrence.plan.launches


@PROPERTY
@given(problems())
def test_bound_below_optimum_below_every_rule(problem):
    """No rule beats the optimum of its scope, and the closed-form bound is below both."""
    result = optimize(problem, workers=1)
    assert closed_form_bound(problem).ns <= result.makespan_ns
    assert result.lower_bound_ns <= result.makespan_ns
    for rule in RULES:
        try:
            timeline = evaluate(problem, rule.make(problem))
        except (NotApplicableError, DeadlockError):
            continue
        assert timeline.makespan_ns >= result.lower_bound_ns
        assert timeline.makespan_ns >= result.makespan_ns


@PROPERTY
@given(gradient_problems(6))
def test_more_of_the_network_or_earlier_gradients_never_hurt(problem):
    """Less start-up, more bandwidth or earlier ready times never make the optimum worse."""
    (curve,) = problem.costs.values()
    if not isinstance(curve, AlphaBeta):
        return
    best = optimize(problem).lower_bound_ns
    alpha, bandwidth = Fraction(str(curve.alpha_us)), Fraction(str(curve.bandwidth_gb_s))
    for better in (AlphaBeta(alpha / 2, bandwidth), AlphaBeta(alpha, bandwidth * 3)):
        cheaper = GradientProblem(
            problem.gradients, better, backward_end_ns=problem.backward_end_ns
        )
        assert optimize(cheaper).lower_bound_ns <= best
    earlier = [dataclasses.replace(g, ready_ns=g.ready_ns // 2) for g in problem.gradients]
    assert optimize(GradientProblem(earlier, curve)).lower_bound_ns <= best


@PROPERTY
@given(gradient_problems(6))
def test_scaling_time_scales_the_answer_and_names_do_not_matter(problem):
    """All times times k: the optimum times k. Other names: the same plan."""
    (curve,) = problem.costs.values()
    if not isinstance(curve, AlphaBeta):
        return
    result = optimize(problem)
    times = 1000
    slower = GradientProblem(
        [
            dataclasses.replace(g, name=f"other {k}", ready_ns=g.ready_ns * times)
            for k, g in enumerate(problem.gradients)
        ],
        AlphaBeta(
            Fraction(str(curve.alpha_us)) * times, Fraction(str(curve.bandwidth_gb_s)) / times
        ),
        backward_end_ns=problem.backward_end_ns * times,
    )
    scaled = optimize(slower)
    # Rounding up weighs less at the larger scale.
    assert 0 <= result.makespan_ns * times - scaled.makespan_ns <= times * len(problem.names)
    renamed = GradientProblem(
        [dataclasses.replace(g, name=f"other {k}") for k, g in enumerate(problem.gradients)],
        curve,
        backward_end_ns=problem.backward_end_ns,
    )
    other = dict(zip(problem.names, renamed.names, strict=True))
    assert [[other[n] for n in b.names] for b in result.plan.buckets] == [
        list(b.names) for b in optimize(renamed).plan.buckets
    ]


@pytest.mark.parametrize("scope", ["in-order", "any"])
def test_hints_are_complete_and_feasible(scope):
    """Fixing every variable to its hint leaves the known plan, with the same objective."""
    from ortools.sat.python import cp_model

    for seed in range(80):
        problem = random_step(random.Random(seed), 6)
        _, known = best_known(problem)
        build = InOrderModel if scope == "in-order" else AnyOrderModel
        model = build(problem, known, closed_form_bound(problem).ns)
        hinted = {variable.index for variable, _ in model.step.hints}
        assert hinted == set(range(len(model.step.cp.proto.variables)))
        for variable, value in model.step.hints:
            model.step.cp.add(variable == value)
        model.step.cp.minimize(model.step.makespan)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        assert solver.solve(model.step.cp) == cp_model.OPTIMAL
        makespan_ns = evaluate(problem, known).makespan_ns
        assert solver.value(model.step.makespan) // model.step.scale == makespan_ns
        assert evaluate(problem, extract(model, solver)).makespan_ns == makespan_ns


def next_forward(layers: int, seed: int = 0) -> Problem:
    """Return backward, all-reduces and the next forward pass of some layers."""
    rng = random.Random(seed)
    tasks: list[Compute | Collective] = []
    for k in reversed(range(layers)):
        tasks.append(Compute(f"b{k}", rng.randint(50, 200) * 1000))
        tasks.append(Collective(f"ar{k}", rng.randint(1, 40) * 100_000, after=(f"b{k}",)))
    tasks += [
        Compute(f"f{k}", rng.randint(20, 100) * 1000, after=(f"ar{k}",)) for k in range(layers)
    ]
    return Problem(tasks, {("dp", "allreduce"): AlphaBeta(40, 20)})


def test_priority_matters_when_the_next_forward_waits():
    """With the next forward pass in the step, scope any is better than in-order, as it should."""
    problem = next_forward(6)
    in_order, anyhow = optimize(problem), optimize(problem, scope="any")
    assert in_order.status is anyhow.status is Status.OPTIMAL
    assert anyhow.makespan_ns < in_order.makespan_ns


def test_a_short_limit_keeps_the_bound_and_the_best_known_plan():
    """Stopped early: a plan, a true bound, the gap between them, and the reason."""
    result = optimize(next_forward(24, seed=1), scope="any", time_limit_s=0.01, workers=1)
    assert result.status in (Status.FEASIBLE, Status.OPTIMAL)
    assert 0 < result.lower_bound_ns <= result.makespan_ns
    assert result.gap == (result.makespan_ns - result.lower_bound_ns) / result.makespan_ns
    assert result.status is Status.OPTIMAL or "limit" in result.reason


def test_a_step_too_large_for_cpsat_still_gets_a_good_plan():
    """Beyond the model's size there is a plan close to its bound; insisting on CP-SAT says why not."""
    problem = next_forward(400)
    result = optimize(problem, scope="any", time_limit_s=3)
    assert result.gap < 0.01
    assert result.makespan_ns <= optimize(problem).makespan_ns
    assert closed_form_bound(problem).ns <= result.lower_bound_ns
    with pytest.raises(NotApplicableError, match="candidate buckets"):
        optimize(problem, method="cpsat")
    with pytest.raises(NotApplicableError, match="pairs of bucket"):
        optimize(problem, scope="any", method="cpsat", time_limit_s=1)


def test_a_rule_that_meets_the_bound_ends_the_matter(monkeypatch):
    """No solver runs where a simple rule is already proved optimal."""
    monkeypatch.setitem(__import__("sys").modules, "commsched.optimizer.cpsat", None)
    problem = Problem(
        [Compute("b", 10), Collective("ar", 5, after=("b",)), Compute("f", 3, after=("ar",))],
        {("dp", "allreduce"): AlphaBeta(1, 1)},
    )
    result = optimize(problem, scope="any")
    assert result.status is Status.OPTIMAL
    assert result.method.startswith("rule ")
    assert optimize(problem).method == "recurrence"


def test_a_cost_with_a_jump_can_need_scope_any():
    """With a jump in the cost a non-contiguous grouping can be strictly better."""
    better = 0
    for seed in range(150):
        rng = random.Random(seed)
        gradients = [Gradient(f"g{k}", rng.randint(1, 9), rng.randint(0, 12)) for k in range(4)]
        curve = PiecewiseLinear([(9, 0.004), (10, 0.020), (40, 0.025)])
        problem = GradientProblem(gradients, curve)
        in_order = optimize(problem)
        anyhow = check(problem, "any", "auto")
        assert anyhow.makespan_ns <= in_order.makespan_ns
        better += anyhow.makespan_ns < in_order.makespan_ns
    assert better > 0


def test_several_channels_are_solved_together():
    """The slower channel sets the makespan; the other has as few launches as that allows."""
    tasks = [
        Compute("b0", 100),
        Collective("x0", 10, group="a", after=("b0",)),
        Collective("y0", 10, group="b", after=("b0",)),
        Compute("b1", 100),
        Collective("x1", 10, group="a", after=("b1",)),
        Collective("y1", 500, group="b", after=("b1",)),
    ]
    cost = AlphaBeta(0.01, 1)
    problem = Problem(tasks, {("a", "allreduce"): cost, ("b", "allreduce"): cost})
    result = optimize(problem)
    assert result.method == "recurrence"
    assert result.makespan_ns == 710
    assert result.plan.launches == 3
    assert result.makespan_ns == brute_force(problem, "any").makespan


def test_compute_that_goes_on_after_the_last_gradient_saves_launches():
    """Ending before compute does gains nothing, so the launches are as few as end in time."""
    gradients = [Gradient("a", 10, 0), Gradient("b", 10, 100), Gradient("c", 10, 200)]
    early = GradientProblem(gradients, AlphaBeta(0.001, 1))
    late = GradientProblem(gradients, AlphaBeta(0.001, 1), backward_end_ns=231)
    assert optimize(early).plan.launches == 2
    assert optimize(late).plan.launches == 1
    assert optimize(late).exposed_ns == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scope": "all"}, "scope: 'all' is not one of in-order, fifo, any"),
        ({"method": "magic"}, "method: 'magic' is not one of"),
        ({"time_limit_s": 0}, "time_limit_s: 0 must be above 0"),
        ({"time_limit_s": float("nan")}, "time_limit_s: nan is not a finite number"),
        ({"workers": 0}, "workers: 0 must be"),
        ({"workers": True}, "workers: True must be"),
        ({"seed": -1}, "seed: -1 must be"),
        ({"within": -0.1}, "within: -0.1 must be from 0 to 1"),
        ({"within": 2}, "within: 2 must be from 0 to 1"),
    ],
)
def test_invalid_options_are_refused(options, message):
    """A bad option raises and names itself."""
    with pytest.raises(InputError, match=message):
        optimize(next_forward(2), **options)


def test_recurrence_is_refused_where_it_proves_nothing():
    """Insisting on a recurrence where collectives wait for others, or in scope any, says why not."""
    tasks = [Collective("x", 5), Compute("c", 5, after=("x",)), Collective("y", 5, after=("c",))]
    problem = Problem(tasks, {("dp", "allreduce"): AlphaBeta(1, 1)})
    assert optimize(next_forward(2), method="recurrence").status is Status.OPTIMAL
    for refused, scope in ((problem, "in-order"), (next_forward(2), "any")):
        with pytest.raises(NotApplicableError, match="tasks wait for collectives"):
            optimize(refused, method="recurrence", scope=scope)


def test_a_solver_that_contradicts_the_evaluator_raises(monkeypatch):
    """A plan worse than promised, or better than a proved bound, is our bug and not a result."""
    problem = next_forward(3)
    outcome = solve(
        InOrderModel(problem, best_known(problem)[1], 0), Budget(time_limit_s=20, workers=1)
    )
    worse = dataclasses.replace(outcome, objective_ns=outcome.objective_ns - 1)
    monkeypatch.setattr("commsched.optimizer.cpsat.solve", lambda *_: worse)
    with pytest.raises(SolverError, match="promised"):
        optimize(problem, method="cpsat")
    too_high = Bound(outcome.objective_ns + 1, "CP-SAT")
    wrong = dataclasses.replace(outcome, bound=too_high)
    monkeypatch.setattr("commsched.optimizer.cpsat.solve", lambda *_: wrong)
    with pytest.raises(SolverError, match="below the proved bound"):
        optimize(problem, method="cpsat")


def test_results_do_not_claim_a_plan_that_is_not_there():
    """A status that contradicts the plan cannot be constructed; without a plan the gap is 1."""
    problem = next_forward(2)
    with pytest.raises(SolverError, match="contradicts"):
        Result(problem, "any", Status.OPTIMAL, None, Bound(0, ""), "cpsat", "", 0.0)
    unknown = Result(problem, "any", Status.UNKNOWN, None, Bound(7, "x"), "cpsat", "", 0.0)
    assert (unknown.gap, unknown.lower_bound_ns) == (1.0, 7)
    with pytest.raises(SolverError, match="no plan"):
        _ = unknown.timeline


def test_the_same_call_gives_the_same_plan():
    """Two runs agree, for the recurrence and for CP-SAT."""
    for problem in (next_forward(5), GradientProblem([Gradient("a", 3, 1)], AlphaBeta(1, 1))):
        for scope in ("in-order", "any"):
            plans = {optimize(problem, scope=scope, workers=1).plan for _ in range(2)}
            assert len(plans) == 1


def test_a_plan_is_plain_data():
    """Plans compare and hash by value."""
    assert Plan.of([["a"], ["b"]]) == Plan((Bucket(("a",)), Bucket(("b",))))
    assert len({Plan.of([["a"]]), Plan.of([["a"]])}) == 1


@pytest.mark.parametrize("scope", ["in-order", "any"])
def test_devices_and_sparse_gradients_are_never_fused_with_others(scope):
    """Whatever the method: a bucket holds one device, and a sparse gradient travels alone."""
    methods = set()
    for seed in range(60):
        rng = random.Random(seed)
        tasks: list[Compute | Collective] = []
        for k in range(rng.randint(2, 5)):
            tasks.append(Compute(f"b{k}", rng.randint(0, 30)))
            device, sparse = rng.choice(["", "cuda:1"]), rng.random() < 0.3
            tasks.append(
                Collective(
                    f"x{k}", rng.randint(0, 40), after=(f"b{k}",), device=device, sparse=sparse
                )
            )
        if rng.random() < 0.6:
            tasks.append(Compute("f", 5, after=("x0",)))
            tasks.append(Collective("last", 7, dtype="float16", after=("f",)))
        problem = Problem(tasks, {("dp", "allreduce"): AlphaBeta(0.01, 1)})
        result = optimize(problem, scope=scope, workers=1)
        methods.add(result.method)
        assert result.status is Status.OPTIMAL
        for bucket in result.plan.buckets:
            members = [problem.collectives[problem.index[name]] for name in bucket.names]
            assert len({task.device for task in members}) == 1
            assert len(members) == 1 or not any(task.sparse for task in members)
        if scope == "in-order":
            # One bucket a key; that of "last" must not come before x0's, as DDP's might.
            buckets = sorted(ddp(problem, [50]).buckets, key=lambda b: "last" in b.names)
            assert result.lower_bound_ns <= evaluate(problem, Plan(tuple(buckets))).makespan_ns
    assert {"recurrence", "cpsat"} <= methods


def test_rounding_never_makes_a_proved_plan_look_unproved():
    """Scope any, start-ups that are no whole nanoseconds, several keys: optimal, and never an error."""
    for seed in range(400):
        rng = random.Random(seed)
        tasks: list[Compute | Collective] = []
        for k in range(rng.randint(2, 5)):
            tasks.append(Compute(f"b{k}", rng.choice((0, 0, 1, 2, 8)), stream=f"s{k % 2}"))
            dtype = rng.choice(("float32", "float16"))
            tasks.append(
                Collective(f"x{k}", rng.choice((0, 1, 2, 3, 5)), dtype=dtype, after=(f"b{k}",))
            )
        cost = AlphaBeta(rng.choice((0.0005, 0.0125, 0.001)), rng.choice((3, 0.3, 0.7)))
        check(Problem(tasks, {("dp", "allreduce"): cost}), "any", "auto")
