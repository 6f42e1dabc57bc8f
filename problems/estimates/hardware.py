"""Accelerators and networks of the bundled library: every figure with where it comes from.

A node has eight accelerators. Nothing here is a measurement of a whole training step, so whatever is
built on it is *estimated*; how well the network's formula meets measured all-reduces is in
``tests/test_library.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commsched.models import BusBandwidth, Kind
from commsched.models.errors import InputError

NODE = 8
"""Accelerators in a node, in all four systems (DGX A100, DGX H100, DGX B200, MI300X platform)."""
MAX_RANKS = 65_536
BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its unit and where it comes from.

    Attributes
    ----------
    what
        What it is.
    value, unit
        The number and its unit.
    known
        How it is known: ``"data sheet"``, ``"published"``, ``"measured"`` or ``"assumed"``.
    source
        The document that has it, or why it is assumed.
    """

    what: str
    value: float
    unit: str
    known: str
    source: str


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator.

    Attributes
    ----------
    name, title
        Its name in the library and its full name.
    peak
        Dense bfloat16 operations in TFLOP/s.
    memory
        In GB = 1e9 bytes.
    link
        What connects the accelerators of a node: GB/s in both directions together, as the data
        sheets count it.
    link_name
        The network name that stands for that link.
    """

    name: str
    title: str
    peak: Figure
    memory: Figure
    link: Figure
    link_name: str = "nvlink"

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All its figures."""
        return self.peak, self.memory, self.link


@dataclass(frozen=True, slots=True)
class Fabric:
    """A network between nodes.

    Attributes
    ----------
    name, title
        Its name in the library and what it is.
    rate
        What one network card carries in one direction, in Gb/s.
    cards
        Network cards in a node.
    step
        What one step of a tree across nodes takes, in microseconds.
    """

    name: str
    title: str
    rate: Figure
    cards: Figure
    step: Figure

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All its figures."""
        return self.rate, self.cards, self.step


def _accelerator(
    name: str, title: str, peak: float, memory: float, link: float, sources: tuple[str, str, str]
) -> Accelerator:
    link_name = "infinity-fabric" if name == "mi300x" else "nvlink"
    return Accelerator(
        name,
        title,
        Figure("peak, dense bfloat16", peak, "TFLOP/s", "data sheet", sources[0]),
        Figure("memory", memory, "GB", "data sheet", sources[1]),
        Figure(f"{link_name}, both directions", link, "GB/s", "data sheet", sources[2]),
        link_name,
    )


_A100 = "NVIDIA A100 80GB Tensor Core GPU data sheet (SXM)"
_H100 = "NVIDIA H100 Tensor Core GPU architecture white paper (H100 SXM5)"
_B200 = "NVIDIA DGX B200 data sheet, an eighth of the system"
_MI300X = "AMD Instinct MI300X accelerator data sheet"

ACCELERATORS: Mapping[str, Accelerator] = {
    one.name: one
    for one in (
        _accelerator("a100", "NVIDIA A100 SXM 80 GB", 312, 80, 600, (_A100,) * 3),
        _accelerator("h100", "NVIDIA H100 SXM5 80 GB", 989.4, 80, 900, (_H100,) * 3),
        _accelerator(
            "mi300x",
            "AMD Instinct MI300X",
            1307.4,
            192,
            896,
            (_MI300X, _MI300X, f"{_MI300X}: seven links of 128 GB/s to the others of a node"),
        ),
        _accelerator(
            "b200",
            "NVIDIA B200 SXM 180 GB",
            2250,
            180,
            1800,
            (f"{_B200}; half of the figure with sparsity", _B200, _B200),
        ),
    )
}
"""The accelerators, by name."""

_TUNING = "NCCL 2.28.7, src/graph/tuning.cc: tree, Simple protocol"
LAUNCH = Figure("launch of a collective", 8.4, "us", "published", f"{_TUNING}, base latency")
LINK_STEP = Figure("step of a tree inside a node", 4.0, "us", "published", f"{_TUNING}, NVLink")
RING_STEP = Figure(
    "step of a ring inside a node", 3.4, "us", "published", _TUNING.replace("tree", "ring")
)
LINK_SHARE = Figure(
    "share of the link that a ring reaches",
    0.75,
    "",
    "measured",
    "nccl-tests of NetX-lab/Echo, 8 x A100: 128 GB/s is a bus bandwidth of 224 of 300 GB/s",
)
FABRIC_SHARE = Figure(
    "share of the cards' rate that a ring reaches",
    0.87,
    "",
    "measured",
    "nccl-tests of xxrjun/nccl-tests-cluster, 10 nodes of 8 x H100 with 400 Gb/s each: 177 GB/s "
    "is a bus bandwidth of 350 of 400 GB/s",
)
_NET_STEP = Figure("step of a tree across nodes", 14.0, "us", "published", f"{_TUNING}, network")
_TCP_STEP = Figure(
    "step of a tree across nodes",
    30.0,
    "us",
    "published",
    "HKBU-HPML/MG-WFBP, constants for 10GbE: 908 us on 16 GPUs, over the 30 steps of a ring",
)


def _fabric(rate: int, cards: int, step: Figure, title: str, source: str) -> Fabric:
    known = "assumed" if cards == 1 else "data sheet"
    return Fabric(
        f"{rate}g",
        title,
        Figure("rate of a network card", rate, "Gb/s", "data sheet", source),
        Figure(
            "network cards in a node",
            cards,
            "",
            known,
            "one for each accelerator" if cards == NODE else "as rented machines often have it",
        ),
        step,
    )


_DGX_A100 = "NVIDIA DGX A100 data sheet: eight ConnectX-6 of 200 Gb/s"
_DGX_H100 = "NVIDIA DGX H100 data sheet: eight ConnectX-7 of 400 Gb/s"
FABRICS: Mapping[str, Fabric] = {
    one.name: one
    for one in (
        _fabric(10, 1, _TCP_STEP, "10 Gb/s Ethernet, TCP, one card a node", "IEEE 802.3ae"),
        _fabric(25, 1, _TCP_STEP, "25 Gb/s Ethernet, TCP, one card a node", "IEEE 802.3by"),
        _fabric(100, 1, _NET_STEP, "100 Gb/s with RDMA, one card a node", "IEEE 802.3bj"),
        _fabric(200, NODE, _NET_STEP, "200 Gb/s with RDMA for each accelerator", _DGX_A100),
        _fabric(400, NODE, _NET_STEP, "400 Gb/s with RDMA for each accelerator", _DGX_H100),
    )
}
"""The networks between nodes, by name."""


def network_names(accelerator: Accelerator) -> tuple[str, ...]:
    """Return the names of the networks that an accelerator can have: its link and the fabrics.

    Examples
    --------
    >>> network_names(ACCELERATORS["mi300x"])
    ('infinity-fabric', '10g', '25g', '100g', '200g', '400g')
    """
    return (accelerator.link_name, *FABRICS)


def network_figures(accelerator: Accelerator, network: str, kind: Kind) -> tuple[Figure, ...]:
    """Return the figures that :func:`network_cost` rests on, apart from the accelerator's own."""
    inside = RING_STEP if kind != "allreduce" else LINK_STEP
    if network == accelerator.link_name:
        return LAUNCH, inside, LINK_SHARE
    return (*FABRICS[network].figures, LAUNCH, inside, LINK_SHARE, FABRIC_SHARE)


def network_cost(accelerator: Accelerator, network: str, kind: Kind, ranks: int) -> BusBandwidth:
    """Return what a collective costs on a network: NCCL's latency over a share of the line rate.

    Latency: the launch, and the steps that NCCL's own model counts. An all-reduce goes up and down
    a tree: twice (ranks of a node - 1) steps inside and log2(nodes) across. A ring of all-gathers
    or reduce-scatters takes ranks - 1 steps, of which nodes - 1 go across. All pairs of an
    all-to-all start at once: one step. Bandwidth: a ring passes through all network cards of a
    node, and through every accelerator's link; the slower one counts. An all-to-all sends what
    leaves a node through the cards of its eight ranks.

    Parameters
    ----------
    accelerator
        The accelerator, for its link.
    network
        One of :func:`network_names`.
    kind
        ``allreduce``, ``all_gather``, ``reduce_scatter`` or ``all_to_all``.
    ranks
        Ranks of the group: at most eight on a link, else whole nodes.

    Raises
    ------
    InputError
        If the accelerator has no such network or the ranks do not fit it.

    Examples
    --------
    >>> network_cost(ACCELERATORS["a100"], "200g", "allreduce", 64)
    BusBandwidth(alpha_us=148.4, bus_bandwidth_gb_s=174.0, ranks=64, kind='allreduce', algorithm='ring')
    """
    check_network(accelerator, network, ranks)
    link = accelerator.link.value / 2 * LINK_SHARE.value
    if network == accelerator.link_name:
        nodes, local, bandwidth, step_us = 1, ranks, link, 0.0
    else:
        fabric = FABRICS[network]
        nodes, local, step_us = ranks // NODE, NODE, fabric.step.value
        cards = fabric.rate.value * fabric.cards.value / BITS_PER_BYTE * FABRIC_SHARE.value
        bandwidth = min(link, cards)
        if kind == "all_to_all":
            # Of what a rank sends, ranks - 8 of ranks - 1 parts leave the node.
            bandwidth = min(link, cards / NODE * (ranks - 1) / (ranks - NODE))
    if kind == "allreduce":
        depth = nodes.bit_length() - 1
        alpha_us = LAUNCH.value + 2 * ((local - 1) * LINK_STEP.value + depth * step_us)
    elif kind == "all_to_all":
        alpha_us = LAUNCH.value + (step_us or RING_STEP.value)
    else:
        inside = ranks - nodes
        alpha_us = LAUNCH.value + inside * RING_STEP.value + (nodes - 1) * step_us
    return BusBandwidth(round(alpha_us, 3), round(bandwidth, 3), ranks, kind)


def check_network(accelerator: Accelerator, network: str, ranks: int) -> None:
    """Check that an accelerator has a network, and that so many ranks fit on it.

    Raises
    ------
    InputError
        As :func:`network_cost`.
    """
    names = network_names(accelerator)
    if network not in names:
        raise InputError(
            f"network: {network!r:.60} is not one of {', '.join(names)} of {accelerator.name}"
        )
    if network == accelerator.link_name:
        if not 2 <= ranks <= NODE:
            raise InputError(
                f"ranks: {ranks} must be from 2 to {NODE} on {network}, which ends at the node"
            )
    elif ranks % NODE or not NODE < ranks <= MAX_RANKS:
        raise InputError(
            f"ranks: {ranks} on {network} must be two or more whole nodes of {NODE}, "
            f"at most {MAX_RANKS}; inside one node the network is {accelerator.link_name}"
        )
