"""Steps for the small GPU of :mod:`graph_maker`: sharded training, experts, and anything at all."""

from __future__ import annotations

import random
from collections.abc import Callable

from graph_maker import ALL, COMM, MAIN, Gpu, Mark, Shown

Program = Callable[[Gpu], None]


def fsdp2(
    layers=4, *, size=400_000, late=0.0, prefetch=True, scatter=(COMM, "default_pg")
) -> Program:
    """FSDP2: gathers ahead of forward and backward on streams of their own, scatters in backward."""

    def gather(gpu, layer):
        with gpu.note(f"FSDP::all_gather ({layer})"):
            gpu.kernel(4, stream=21, name="copy_in")
            gpu.wait_stream(22, 21)
            return gpu.collective("all_gather", size, current=22)

    def take(gpu, layer, end):
        with gpu.note(f"FSDP::all_gather_copy_out ({layer})"):
            gpu.wait(MAIN, end)
            gpu.kernel(5, name="split")

    def program(gpu):
        names = [f"blocks.{k}" for k in range(layers)]
        with gpu.step():
            gpu.kernel(10)
            ready = gather(gpu, names[0])
            for k, name in enumerate(names):
                with gpu.note(f"FSDP::pre_forward ({name})"):
                    take(gpu, name, ready)
                    if prefetch and k + 1 < layers:
                        ready = gather(gpu, names[k + 1])
                gpu.host(late)
                gpu.kernel(150)
                gpu.kernel(150)
                with gpu.note(f"FSDP::post_forward ({name})"):
                    if not prefetch and k + 1 < layers:
                        ready = gather(gpu, names[k + 1])
            scattered = None
            with gpu.backward():
                ready = gather(gpu, names[-1])
                for k in reversed(range(layers)):
                    name = names[k]
                    with gpu.op("autograd::engine::evaluate_function: SplitBackward0"):
                        with gpu.note(f"FSDP::pre_backward ({name})"):
                            take(gpu, name, ready)
                            if k:
                                with gpu.note(f"FSDP::backward_prefetch for {names[k - 1]}"):
                                    ready = gather(gpu, names[k - 1])
                        gpu.kernel(250)
                        gpu.kernel(200)
                        if scattered is not None:
                            with gpu.note(f"FSDP::post_backward_rs_wait ({name})"):
                                gpu.wait(MAIN, scattered)
                        with gpu.note(f"FSDP::post_backward_reduce ({name})"):
                            gpu.kernel(6, name="chunk_cat")
                            gpu.wait_stream(23, MAIN)
                            scattered = gpu.collective(
                                "reduce_scatter",
                                size,
                                stream=scatter[0],
                                current=23,
                                group=scatter[1],
                            )
                            gpu.wait(23, scattered)
                            gpu.kernel(3, stream=23, name="div")
                            scattered = gpu.record(23)
            gpu.wait(MAIN, scattered)
            with gpu.note("Optimizer.step#AdamW.step"):
                gpu.kernel(120)

    return program


def moe(layers=3, *, size=300_000) -> Program:
    """Experts: a synchronous all-to-all before and after each, a gradient all-reduce at the end."""

    def program(gpu):
        with gpu.step():
            for _ in range(layers):
                gpu.kernel(100)
                gpu.collective("all_to_all", size, group="ep", sync=True)
                gpu.kernel(80)
                gpu.collective("all_to_all", size, group="ep", sync=True)
            ends = []
            with gpu.backward():
                for _ in range(layers):
                    with gpu.op("autograd::engine::evaluate_function: MmBackward0"):
                        gpu.kernel(200)
                        gpu.collective("all_to_all", size, group="ep", sync=True)
                        gpu.kernel(100)
                        ends.append(gpu.collective("allreduce", 2 * size, stream=28, group="dp"))
            for end in ends:
                gpu.wait_work(end, group="dp")
            with gpu.note("Optimizer.step#SGD.step"):
                gpu.kernel(60)

    return program


def overlapped(*, size=500_000) -> Program:
    """An all-to-all in flight beside work that does not need it; its result is taken later."""

    def program(gpu):
        with gpu.step():
            gpu.kernel(50)
            end = gpu.collective("all_to_all", size)
            for _ in range(4):
                gpu.kernel(60)
            gpu.wait_work(end)
            gpu.kernel(90)
            gpu.kernel(30)

    return program


def blocked(*, size=500_000) -> Program:
    """The processor reads what an all-to-all brought before it launches more."""

    def program(gpu):
        with gpu.step():
            gpu.kernel(50)
            gpu.wait_stream(25, MAIN)
            gpu.collective("all_to_all", size, current=25, sync=True)
            gpu.kernel(2, stream=25, name="Memcpy DtoH")
            gpu.synchronize(25)
            gpu.kernel(300)
            gpu.kernel(100)

    return program


def anything(seed: int) -> Program:
    """Work, waits and collectives of two groups on two compute streams, in any order."""

    def program(gpu):
        rnd = random.Random(seed)
        open_: list[tuple[Mark, str]] = []
        with gpu.step():
            gpu.kernel(20)
            for _ in range(rnd.randint(3, 25)):
                action, stream = rnd.random(), rnd.choice([MAIN, MAIN, MAIN, 21])
                if action < 0.4:
                    gpu.kernel(rnd.choice([5, 60, 200]), stream=stream)
                elif action < 0.6:
                    comm, group = rnd.choice([(COMM, "a"), (24, "b")])
                    kind, size = (
                        rnd.choice(["allreduce", "all_to_all"]),
                        rnd.choice([20_000, 300_000]),
                    )
                    end = gpu.collective(kind, size, stream=comm, group=group, current=stream,
                                         sync=rnd.random() < 0.3)  # fmt: skip
                    open_.append((end, group))
                elif action < 0.75 and open_:
                    end, group = open_.pop(rnd.randrange(len(open_)))
                    gpu.wait_work(end, stream, group)
                elif action < 0.85:
                    gpu.wait_stream(rnd.choice([MAIN, 21]), rnd.choice([MAIN, 21]))
                elif action < 0.93:
                    gpu.host(rnd.choice([10, 150]))
                else:
                    gpu.synchronize(rnd.choice([MAIN, 21]))
            for end, group in open_:
                gpu.wait_work(end, MAIN, group)
            gpu.kernel(10)
            gpu.collective("allreduce", 1000, group="a", sync=True)
            gpu.kernel(30)

    return program


def made(program: Program, shown: Shown = ALL, bandwidth: float = 1.0) -> Gpu:
    gpu = Gpu(bandwidth, shown)
    program(gpu)
    return gpu
