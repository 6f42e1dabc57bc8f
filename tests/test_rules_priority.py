"""ByteScheduler, BytePS and P3: worked examples, a second scheduler, and agreement with the clock."""

from __future__ import annotations

import itertools
import random

import pytest
from strategies import random_curve, random_gradient_problem, random_step

from commsched.models import (
    AlphaBeta,
    Chunk,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    InputError,
    NotApplicableError,
    Problem,
    evaluate,
)
from commsched.models.dtypes import ITEM_BYTES
from commsched.models.knob import Knob
from commsched.models.timeline import play
from commsched.models.units import MIB
from commsched.optimizer import ddp
from commsched.optimizer.rules import priority
from commsched.optimizer.rules.byteps import byteps, byteps_of
from commsched.optimizer.rules.bytescheduler import bytescheduler, bytescheduler_of
from commsched.optimizer.rules.p3 import p3, p3_of
from commsched.optimizer.rules.priority import run
from commsched.optimizer.rules.waiting import MostUrgent, MostUrgentFitting
from commsched.optimizer.tuning import setting_ranges

RULES = {
    "bytescheduler": lambda problem: bytescheduler(problem, 2, credit_elements=3),
    "byteps": lambda problem: byteps(problem, 5, page_bytes=1),
    "byteps credit": lambda problem: byteps(problem, 5, page_bytes=1, credit=2),
    "p3": lambda problem: p3(problem, 2),
}
SCHEDULERS = {
    "bytescheduler": lambda problem: bytescheduler_of(problem, 2, 3),
    "bytescheduler large": lambda problem: bytescheduler_of(problem, 1, 10**9),
    "byteps": lambda problem: byteps_of(problem, 5, 0),
    "byteps credit": lambda problem: byteps_of(problem, 5, 2),
    "p3": lambda problem: p3_of(problem, 1),
}


def all_reduces(rng):
    """Return a gradient problem or a step, with a next forward or not, of all-reduces only."""
    if rng.random() < 0.3:
        return random_gradient_problem(rng, 6)
    return random_step(rng, 6, settled=rng.random() < 0.2, kinds=("allreduce",))


def sent(plan):
    """Return (name, begin, end) of each launch; a whole collective has no begin and end."""
    return [(bucket.names[0], *itertools.chain(*bucket.chunks)) for bucket in plan.buckets]


def two_tensors():
    """Return 10 elements ready at 0 and 2 elements of the layer before ready at 5, a byte a ns."""
    return GradientProblem([Gradient("b", 40, 0), Gradient("a", 8, 5)], AlphaBeta(0, 1))


# ByteScheduler, pieces of 5 elements: b0 and b1 of 5, a of 2 elements.
# Credit 1: b0 goes and overshoots; a, ready meanwhile, is more urgent than b1.
# Credit 5: b0 takes all of it. Credit 6: one is left, so b1 goes too, and a comes last.
@pytest.mark.parametrize(
    ("credit", "order"),
    [
        (1, [("b", 0, 20), ("a",), ("b", 20, 40)]),
        (5, [("b", 0, 20), ("a",), ("b", 20, 40)]),
        (6, [("b", 0, 20), ("b", 20, 40), ("a",)]),
    ],
)
def test_bytescheduler_by_hand(credit, order):
    """One piece may overshoot the credit; what was committed is not overtaken."""
    assert sent(bytescheduler(two_tensors(), 5, credit_elements=credit)) == order


def test_bytescheduler_cuts_into_equal_pieces():
    """10 elements in pieces of at most 4: 3, 3 and 4; a tensor of the partition's size is whole."""
    problem = GradientProblem([Gradient("a", 20, 0, "bfloat16")], AlphaBeta(0, 1))
    assert sent(bytescheduler(problem, 4)) == [("a", 0, 6), ("a", 6, 12), ("a", 12, 20)]
    assert sent(bytescheduler(problem, 10)) == [("a",)]
    assert sent(bytescheduler(problem, 9)) == [("a", 0, 10), ("a", 10, 20)]


def test_bytescheduler_more_than_a_thousand_pieces_mix_with_the_next_layer():
    """The priority is layer * 1000 + piece: piece 1001 of layer 0 goes after piece 0 of layer 1."""
    problem = GradientProblem([Gradient("b", 4, 0), Gradient("a", 4008, 0)], AlphaBeta(0, 1))
    order = sent(bytescheduler(problem, 1, credit_elements=1))
    assert order[999:1003] == [("a", 3996, 4000), ("a", 4000, 4004), ("b",), ("a", 4004, 4008)]


# BytePS, pieces of 16 bytes: b0, b1 of 16 and b2 of 8; a of 8 bytes.
# Off: in ready order. Credit 1 (16 bytes): b0 0-16; at 5 a is ready and does not fit. At 16 a goes
# (8 are left), b1 does not fit, b2 does: it passes b1.
@pytest.mark.parametrize(
    ("credit", "order"),
    [
        (0, [("b", 0, 16), ("b", 16, 32), ("b", 32, 40), ("a",)]),
        (1, [("b", 0, 16), ("a",), ("b", 32, 40), ("b", 16, 32)]),
        (2, [("b", 0, 16), ("b", 16, 32), ("a",), ("b", 32, 40)]),
        (3, [("b", 0, 16), ("b", 16, 32), ("b", 32, 40), ("a",)]),
    ],
)
def test_byteps_by_hand(credit, order):
    """A piece that does not fit into the credit is passed over."""
    assert sent(byteps(two_tensors(), 16, credit=credit, page_bytes=1)) == order


def test_byteps_rounds_the_partition_up():
    """To whole pages for each GPU of the machine; the default is a whole number of them."""
    problem = GradientProblem([Gradient("a", 100_000, 0)], AlphaBeta(0, 1))
    assert sent(byteps(problem, 1))[0] == ("a", 0, 4096)
    assert sent(byteps(problem, 4097, local_size=8))[0] == ("a", 0, 32768)
    large = GradientProblem([Gradient("a", 10_000_000, 0)], AlphaBeta(0, 1))
    assert (
        sent(byteps(large, local_size=8))
        == sent(byteps(large))
        == [
            ("a", 0, 4_096_000),
            ("a", 4_096_000, 8_192_000),
            ("a", 8_192_000, 10_000_000),
        ]
    )


def test_p3_by_hand():
    """The most urgent ready slice each time that the channel is free."""
    order = sent(p3(two_tensors(), 3))
    assert order == [("b", 0, 12), ("a",), ("b", 12, 24), ("b", 24, 36), ("b", 36, 40)]
    assert sent(p3(two_tensors(), 1))[2:4] == [("a", 0, 4), ("a", 4, 8)]
    assert sent(p3(two_tensors())) == [("b",), ("a",)]


def six_layers_and_the_next_forward():
    """Return a model whose layers grow from input to output, as convolutional networks' do.

    Backward takes 1 ms a layer, forward half a ms, and forward of a layer needs its gradient.
    """
    sizes = (1, 4, 8, 24, 64, 32)
    tasks = []
    for layer in range(6, 0, -1):
        tasks.append(Compute(f"backward {layer}", 1_000_000))
        size = sizes[layer - 1] * MIB
        tasks.append(Collective(f"gradient {layer}", size, after=(f"backward {layer}",)))
    for layer in range(1, 7):
        tasks.append(Compute(f"forward {layer}", 500_000, after=(f"gradient {layer}",)))
    return Problem(tasks, {("dp", "allreduce"): AlphaBeta(alpha_us=20, bandwidth_gb_s=10)})


def test_priority_beats_ddp_where_the_next_forward_waits():
    """Layer 1's gradient is ready last and needed first: DDP sends it last, in a bucket."""
    problem = six_layers_and_the_next_forward()
    exposed = {
        name: evaluate(problem, plan).exposed_ns
        for name, plan in (
            ("ddp", ddp(problem)),
            ("byteps", byteps(problem)),
            ("byteps credit", byteps(problem, credit=4)),
            ("bytescheduler", bytescheduler(problem)),
            ("p3", p3(problem)),
            ("p3 of a million", p3(problem, 1_000_000)),
        )
    }
    assert exposed["ddp"] == 9_026_063
    assert exposed["bytescheduler"] == 7_226_071
    assert exposed["byteps credit"] == exposed["p3 of a million"] == 7_226_064
    # Without priority the pieces only pay start-ups, and 875 slices pay too many.
    assert exposed["byteps"] > exposed["ddp"]
    assert exposed["p3"] > 2 * exposed["ddp"]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_scheduler_and_the_clock_agree(name):
    """Evaluating the plan gives exactly the starts and ends that the scheduler saw."""
    waited = 0
    for seed in range(1000):
        rng = random.Random(seed)
        problem = all_reduces(rng)
        seen = run(problem, SCHEDULERS[name](problem))
        timeline = evaluate(problem, seen.plan)
        launches = [(launch.start_ns, launch.end_ns) for launch in timeline.launches]
        assert sorted(seen.launches, key=lambda launch: launch[0]) == launches
        for launch, at in zip(
            sorted(zip(seen.plan.buckets, seen.launches, strict=True), key=lambda x: x[1][0]),
            timeline.launches,
            strict=True,
        ):
            assert launch[0].names == at.names
        ends = {span.name: span.end_ns for span in timeline.tasks if span.name in problem.waiting}
        assert seen.end_ns == ends
        waited += len(ends)
    assert waited > 500


@pytest.mark.parametrize("name", RULES)
def test_every_byte_once_and_deterministic(name):
    """Each launch is one piece; together they are the step's bytes; twice the same plan."""
    for seed in range(300):
        problem = all_reduces(random.Random(seed))
        plan = RULES[name](problem)
        assert plan == RULES[name](problem)
        assert all(len(bucket.names) == 1 for bucket in plan.buckets)
        assert sum(launch.bytes for launch in play(problem, plan).launches) == sum(problem.bytes)


def reference(problem, scheduler):
    """Schedule a gradient problem by a clock that ticks each nanosecond."""
    parts, urgency, credit, fits = scheduler
    waiting = [(p, n) for p, row in enumerate(parts) for n in range(len(row))]
    queue, committed, order, busy, now = [], [], [], None, 0
    while waiting or queue or committed or busy:
        if busy and busy[0] == now:
            if credit is not None:
                credit += parts[busy[1]][busy[2]].load
            busy = None
        for piece in [piece for piece in waiting if problem.ready_ns[piece[0]] == now]:
            waiting.remove(piece)
            queue.append((urgency(now, *piece), *piece))
        for entry in sorted(queue):
            load = parts[entry[1]][entry[2]].load
            if credit is None or (load <= credit if fits else credit > 0):
                queue.remove(entry)
                committed.append(entry[1:])
                order.append(entry[1:])
                if credit is not None:
                    credit -= load
            elif not fits:
                break
        if committed and not busy:
            position, number = committed.pop(0)
            begin, end = parts[position][number].chunk
            busy = (now + problem.cost(problem.keys[position]).ns(end - begin), position, number)
            if busy[0] == now:
                continue
        now += 1
    return order


@pytest.mark.parametrize("name", SCHEDULERS)
def test_equals_a_scheduler_that_ticks(name):
    """The order of launches of gradient problems, against a second scheduler written plainly."""
    for seed in range(300):
        problem = random_gradient_problem(random.Random(seed), 6)
        scheduler = SCHEDULERS[name](problem)
        order = reference(problem, scheduler)
        expected = [
            (problem.names[position], *scheduler.parts[position][number].chunk)
            for position, number in order
        ]
        size = dict(zip(problem.names, problem.bytes, strict=True))
        found = [
            (name, *(ends or (0, size[name]))) for name, *ends in sent(run(problem, scheduler).plan)
        ]
        assert found == expected


def priced(rng):
    """Return a cost of at least a nanosecond, so that no launch ends when it starts."""
    return AlphaBeta(rng.choice((0.001, 0.004)), rng.choice((1, 2)))


def steps_that_take_time(seeds):
    """Yield steps without zero-byte collectives whose launches take time."""
    for seed in range(seeds):
        rng = random.Random(seed)
        problem = random_step(rng, 6, curve=priced, kinds=("allreduce",))
        if min(problem.bytes):
            yield problem


def pieces_as_run(problem, scheduler):
    """Return for each channel its launches as (ready, start, urgency)."""
    seen = run(problem, scheduler)
    channels = {}
    ready = {}
    for launch in play(problem, seen.plan).launches:
        ready[launch.names[0]] = launch.ready_ns
    for bucket, (start, _) in zip(seen.plan.buckets, seen.launches, strict=True):
        position = problem.index[bucket.names[0]]
        chunk = bucket.chunks[0] if bucket.chunks else Chunk(0, problem.bytes[position])
        number = [part.chunk for part in scheduler.parts[position]].index(chunk)
        at = ready[bucket.names[0]]
        entry = (at, start, scheduler.urgency(at, position, number))
        channels.setdefault(problem.channel(problem.keys[position]), []).append(entry)
    return channels


@pytest.mark.parametrize("name", ["bytescheduler 1", "p3"])
def test_the_smallest_window_sends_the_most_urgent_ready_piece(name):
    """Whatever had been ready before a launch started and goes later is less urgent."""
    for problem in steps_that_take_time(400):
        of = bytescheduler_of(problem, 1, 1) if name != "p3" else p3_of(problem, 1)
        for launches in pieces_as_run(problem, of).values():
            for (_, start, urgency), later in itertools.combinations(launches, 2):
                assert later[0] > start or later[2] > urgency


@pytest.mark.parametrize(
    "make",
    [lambda problem: bytescheduler_of(problem, 1, 10**9), lambda p: byteps_of(p, 4, 10**6)],
)
def test_with_credit_for_all_the_order_is_that_of_ready_times(make):
    """Nothing is held back, so each instant's pieces go before the next instant's."""
    for problem in steps_that_take_time(300):
        for launches in pieces_as_run(problem, make(problem)).values():
            keys = [(ready, urgency) for ready, _, urgency in launches]
            assert keys == sorted(keys)


def test_equal_pieces():
    """Few as can be, at most the partition, at most one element apart, on element boundaries."""
    rng = random.Random(5)
    for _ in range(500):
        dtype = rng.choice(("float32", "bfloat16", "int8"))
        item, total, most = ITEM_BYTES[dtype], rng.randint(0, 60), rng.randint(1, 20)
        problem = GradientProblem([Gradient("a", item * total, 0, dtype)], AlphaBeta(0, 1))
        loads = [part.load for part in bytescheduler_of(problem, most, 1).parts[0]]
        assert len(loads) == max(1, -(-total // most))
        assert sum(loads) == total
        assert max(loads) <= most
        assert max(loads) - min(loads) <= 1
        assert loads == sorted(loads)


def test_begun_elements_count():
    """A size that is no whole number of elements ends where it ends."""
    problem = GradientProblem([Gradient("a", 10, 0)], AlphaBeta(0, 1))
    assert sent(bytescheduler(problem, 2)) == [("a", 0, 4), ("a", 4, 10)]
    assert sent(p3(problem, 2)) == [("a", 0, 8), ("a", 8, 10)]


def test_a_knob_gives_the_same_plan_as_its_number():
    """ByteScheduler's partition may be a knob."""
    for seed in range(200):
        problem = all_reduces(random.Random(seed))
        for value in range(1, 6):
            assert bytescheduler(problem, Knob(value)) == bytescheduler(problem, value)


def test_all_partitions_equal_every_value():
    """Visiting the knob's ranges finds exactly the plans that trying every value finds."""
    for seed in range(100):
        rng = random.Random(seed)
        gradients = [
            Gradient(f"g{k}", 4 * rng.randint(0, 30), rng.randint(0, 40)) for k in range(4)
        ]
        problem = GradientProblem(gradients, random_curve(rng, "allreduce", 10**6))

        def make(partition, problem=problem):
            return bytescheduler(problem, partition, credit_elements=7)

        ranges = list(setting_ranges(make))
        assert ranges[0].low == 1
        assert ranges[-1].high is None
        for found, after in itertools.pairwise(ranges):
            assert found.high + 1 == after.low
            assert found.made != after.made
        for found in ranges:
            for value in range(found.low, (found.high or 33) + 1):
                assert make(value) == found.made


@pytest.mark.parametrize(("make", "what"), [(byteps, "partition_bytes"), (p3, "slice_elements")])
def test_pieces_of_a_fixed_size_take_no_knob(make, what):
    """Their boundaries move with every value, so that only a grid is possible; they say so."""
    with pytest.raises(NotApplicableError, match=f"{what}: .* move with every value"):
        make(two_tensors(), Knob(4))


@pytest.mark.parametrize("make", [bytescheduler, byteps, p3])
@pytest.mark.parametrize("bad", [0, -1, 0.5, True, "4", None, float("nan")])
def test_bad_sizes_are_refused(make, bad):
    """A size is a whole number of at least 1."""
    with pytest.raises(InputError, match=r"(partition|slice)_(elements|bytes)"):
        make(two_tensors(), bad)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (bytescheduler, {"credit_elements": 0}),
        (byteps, {"credit": -1}),
        (byteps, {"credit": 0.5}),
        (byteps, {"local_size": 0}),
        (byteps, {"page_bytes": 0}),
    ],
)
def test_bad_options_are_refused(make, options):
    """The message names the option."""
    with pytest.raises(InputError, match=next(iter(options))):
        make(two_tensors(), **options)


@pytest.mark.parametrize("make", [bytescheduler, byteps, p3])
def test_only_all_reduces(make):
    """A step with other collectives is not theirs."""
    problem = Problem([Collective("x", 1, "all_gather")], {("dp", "all_gather"): AlphaBeta(1, 1)})
    with pytest.raises(NotApplicableError, match="the step has all_gather"):
        make(problem)


@pytest.mark.parametrize("make", [bytescheduler, p3])
def test_a_type_of_unknown_size_cannot_be_counted_in_elements(make):
    """These rules count elements."""
    problem = GradientProblem([Gradient("a", 8, 0, "float7")], AlphaBeta(0, 1))
    with pytest.raises(NotApplicableError, match="float7"):
        make(problem)
    assert sent(byteps(problem)) == [("a",)]


@pytest.mark.parametrize(
    ("make", "size"),
    [(bytescheduler, 1), (p3, 1), (lambda p, n: byteps(p, n, page_bytes=1), 4)],
)
def test_too_many_pieces_are_refused(make, size, monkeypatch):
    """Before they are made."""
    large = GradientProblem([Gradient("a", 2**40, 0)], AlphaBeta(0, 1))
    with pytest.raises(NotApplicableError, match="too small"):
        make(large, size)
    small = GradientProblem([Gradient("a", 16, 0)], AlphaBeta(0, 1))
    make(small, size)
    monkeypatch.setattr(priority, "MAX_PIECES", 3)
    with pytest.raises(NotApplicableError, match="would be 4"):
        make(small, size)


@pytest.mark.parametrize("fits", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_what_waits_equals_a_list_that_is_searched(seed, fits):
    """Most urgent first; of those that must fit, the first in the list whose load does."""
    rng = random.Random(seed)
    for _ in range(100):
        pieces = [((rng.randint(0, 3), k), (k, 0), rng.randint(0, 4)) for k in range(12)]
        waiting = MostUrgentFitting(urgency for urgency, *_ in pieces) if fits else MostUrgent()
        listed = []
        while pieces or listed:
            if pieces and rng.random() < 0.5:
                listed.append(pieces.pop(rng.randrange(len(pieces))))
                waiting.put(*listed[-1])
                continue
            credit = rng.randint(0, 4)
            able = [p for p in sorted(listed) if (p[2] <= credit if fits else credit > 0)]
            if able:
                listed.remove(able[0])
            assert waiting.take(credit) == (able[0][1] if able else None)


def test_pieces_that_do_not_fit_are_not_looked_at_one_by_one(monkeypatch):
    """With thousands of pieces waiting and the credit used up, each launch looks at a few only."""
    looks = 0
    fits = MostUrgentFitting._fits

    def counted(self, node, credit):
        nonlocal looks
        looks += 1
        return fits(self, node, credit)

    monkeypatch.setattr(MostUrgentFitting, "_fits", counted)
    problem = GradientProblem([Gradient("a", 4096 * 5000, 0)], AlphaBeta(1, 1))
    assert byteps(problem, 4096, credit=4).launches == 5000
    assert looks < 5000 * 20


def test_a_step_and_the_same_gradients_give_the_same_plan():
    """Whether the problem is given as a graph or as gradients."""
    problem = two_tensors()
    step = Problem(problem.tasks, problem.costs, channels={"nic": ["dp"]})
    for make in RULES.values():
        assert make(step) == make(problem)
