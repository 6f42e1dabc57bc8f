"""Experts of a layer: what they compute and how much their all-to-alls move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commsched.models import all_to_all_ledger
from commsched.models.dtypes import ITEM_BYTES
from commsched.models.errors import InputError
from commsched.models.units import check_bytes, check_ns
from commsched.problems.steps.layer_models import MIXTRAL, PROFILED, By, layers_of
from commsched.problems.steps.layers import LayerProfile, check_text

EXPERTS: dict[str, tuple[int, int]] = {
    "mixtral-8x7b": (MIXTRAL["hidden_size"], MIXTRAL["num_experts_per_tok"]),
}
"""Models with experts: a token's width and to how many experts it goes."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of one layer, as one rank runs them.

    Attributes
    ----------
    forward_ns, backward_ns
        How long the rank's own experts take for all tokens that it receives.
    dispatch_bytes
        The size of the all-to-all that takes tokens to their experts, as nccl-tests counts it
        (see :func:`all_to_all_bytes`). Backward's all-to-alls move the same bytes back.
    combine_bytes
        The size of the one that takes results back; None: as many as ``dispatch_bytes``.
    shared_forward_ns, shared_backward_ns
        How long an expert takes that every rank has and all tokens pass through; 0: there is none.
    weight_gradient_ns
        How much of ``backward_ns`` computes gradients of parameters, which nothing waits for.
    dtype
        The tokens' type.

    Raises
    ------
    InputError
        If a number is out of range, or the gradients take longer than all of backward.

    Examples
    --------
    >>> Experts(1000, 2000, dispatch_bytes=8192).combined_bytes
    8192
    """

    forward_ns: int
    backward_ns: int
    dispatch_bytes: int
    combine_bytes: int | None = None
    shared_forward_ns: int = 0
    shared_backward_ns: int = 0
    weight_gradient_ns: int = 0
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for name in (
            "forward_ns",
            "backward_ns",
            "shared_forward_ns",
            "shared_backward_ns",
            "weight_gradient_ns",
        ):
            object.__setattr__(self, name, check_ns(getattr(self, name), f"experts: {name}"))
        for name in ("dispatch_bytes", "combine_bytes"):
            if getattr(self, name) is not None:
                size = check_bytes(getattr(self, name), f"experts: {name}")
                object.__setattr__(self, name, size)
        check_text(self.dtype, "experts: dtype")
        if self.weight_gradient_ns > self.backward_ns:
            raise InputError(
                f"experts: weight_gradient_ns {self.weight_gradient_ns} is longer than "
                f"backward_ns {self.backward_ns}, of which it is a part"
            )

    @property
    def combined_bytes(self) -> int:
        """The size of the combining all-to-all."""
        return self.dispatch_bytes if self.combine_bytes is None else self.combine_bytes


def all_to_all_bytes(tokens: Sequence[Sequence[int]], bytes_per_token: int) -> int:
    """Return the size of the balanced all-to-all that takes as long as an unbalanced one.

    An all-to-all ends when its busiest rank is served. nccl-tests' size S is the buffer of one
    rank of n, of which ``S (n-1) / n`` comes from others; so if the busiest rank moves R bytes
    from or to others, a balanced all-to-all of ``R n / (n-1)`` bytes keeps every link as busy as
    that. Busiest is who receives most or who sends most, whichever is more: the way back swaps
    the two, so dispatch and combine have one size.

    Parameters
    ----------
    tokens
        Row i: how many tokens rank i sends to each rank, itself included.
    bytes_per_token
        Bytes of one token.

    Raises
    ------
    InputError
        As for :func:`~commsched.models.all_to_all_ledger`.

    Examples
    --------
    >>> all_to_all_bytes([[5, 5], [5, 5]], 4)  # balanced: a rank's 10 tokens
    40
    >>> all_to_all_bytes([[5, 5], [9, 1]], 4)  # rank 0 receives 9 tokens
    72
    """
    received = all_to_all_ledger(tokens, bytes_per_token).received_bytes
    sent = all_to_all_ledger([*zip(*tokens, strict=True)], bytes_per_token).received_bytes
    ranks = len(received)
    return -(-max(*received, *sent) * ranks // (ranks - 1))


def estimated_experts(
    model: str,
    *,
    samples: int,
    tflops: float,
    dtype: str = "bfloat16",
    shared: bool = False,
) -> tuple[LayerProfile, dict[str, Experts]]:
    """Return a model's layers without their experts, and each layer's experts; times estimated.

    Tokens are spread evenly over experts and ranks, so that a rank computes as many as it sends.

    Parameters
    ----------
    model
        One of :data:`EXPERTS`.
    samples, tflops, dtype
        As for :func:`~commsched.problems.steps.layer_models.estimated_profile`.
    shared
        Add a shared expert, as large as one of the others (a variant that Mixtral is not).

    Raises
    ------
    InputError
        If the model is unknown or has no experts, or a number is out of range.

    Examples
    --------
    >>> profile, experts = estimated_experts("mixtral-8x7b", samples=4096, tflops=300)
    >>> len(profile.layers), len(experts), experts["layers.0"].dispatch_bytes == 4096 * 2 * 4096 * 2
    (35, 32, True)
    """
    if model not in EXPERTS:
        raise InputError(f"model: {model!r:.60} is not one of {', '.join(EXPERTS)}")
    width, chosen = EXPERTS[model]
    found = list(PROFILED[model]())
    by: By = "block"
    dense = layers_of(
        [p for p in found if ".experts." not in p.name],
        samples=samples,
        tflops=tflops,
        dtype=dtype,
        by=by,
    )
    computed = layers_of(
        [p for p in found if ".experts." in p.name],
        samples=samples,
        tflops=tflops,
        dtype=dtype,
        by=by,
    )
    size = check_bytes(samples * chosen * width * ITEM_BYTES[dtype], "samples: dispatch_bytes")
    experts = {}
    for layer in computed:
        # Each of the chosen experts does an equal part of a token's work.
        part = -(-layer.forward_ns // chosen) if shared else 0
        experts[layer.name] = Experts(
            layer.forward_ns,
            layer.backward_ns,
            size,
            shared_forward_ns=part,
            shared_backward_ns=2 * part,
            weight_gradient_ns=layer.forward_ns,
            dtype=dtype,
        )
    name = f"{model} (estimated: {samples} tokens at {float(tflops):g} TFLOP/s)"
    return LayerProfile(tuple(dense), name), experts
