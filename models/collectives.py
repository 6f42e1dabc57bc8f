"""Kinds of collectives, what each rank sends for them, and the all-to-all ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from commsched.models.errors import InputError
from commsched.models.units import check_bytes, exact, exact_at_least_zero, shown

Kind = Literal["allreduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv"]
"""The kind of a collective."""
KINDS: tuple[Kind, ...] = get_args(Kind)


MAX_RANKS = 2**24


def check_kind(value: object, what: str) -> Kind:
    """Return ``value`` if it is a kind of collective.

    Raises
    ------
    InputError
        If it is not; the message lists the kinds.
    """
    if value not in KINDS:
        raise InputError(f"{what}: {value!r} is not one of {', '.join(KINDS)}")
    return value


def check_ranks(value: object) -> int:
    """Return a number of ranks that is a whole number from 2 to ``MAX_RANKS``.

    Raises
    ------
    InputError
        If it is not.
    """
    number = exact(value, "ranks")
    if number.denominator != 1 or not 2 <= number <= MAX_RANKS:
        raise InputError(f"ranks: {shown(value)} must be a whole number from 2 to {MAX_RANKS}")
    return int(number)


def bus_factor(kind: Kind, ranks: int) -> Fraction:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests defines them.

    Source: nccl-tests, doc/PERFORMANCE.md. It is also the part of ``bytes`` (the whole
    operation's size) that a rank of a ring sends.

    Raises
    ------
    InputError
        If the kind is unknown or there are fewer than 2 ranks.

    Examples
    --------
    >>> bus_factor("allreduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (Fraction(3, 2), Fraction(3, 4), Fraction(1, 1))
    """
    check_kind(kind, "kind")
    check_ranks(ranks)
    if kind == "allreduce":
        return Fraction(2 * (ranks - 1), ranks)
    if kind in ("reduce_scatter", "all_gather", "all_to_all"):
        return Fraction(ranks - 1, ranks)
    return Fraction(1)


def sent_bytes(kind: Kind, size: int, ranks: int) -> Fraction:
    """Return the bytes that the busiest rank sends for a ring collective of ``size`` bytes.

    Parameters
    ----------
    kind
        The collective's kind.
    size
        The whole operation's bytes: the tensor of an all-reduce, the total over the ranks of an
        all-gather, a reduce-scatter or a (balanced) all-to-all.
    ranks
        Ranks in the group, at least 2.

    Raises
    ------
    InputError
        If ``size`` is negative or ``ranks`` is below 2.

    Examples
    --------
    >>> int(sent_bytes("allreduce", 1024, 4)), int(sent_bytes("all_to_all", 1024, 4))
    (1536, 768)
    """
    return exact_at_least_zero(size, "size") * bus_factor(kind, ranks)


@dataclass(frozen=True, slots=True)
class AllToAllLedger:
    """Who receives what in an all-to-all.

    Attributes
    ----------
    received_tokens
        Tokens that each rank receives, its own included.
    received_bytes
        Bytes that each rank receives from *other* ranks.
    remote_bytes
        Bytes that cross ranks, all together.
    busiest_rank
        The rank that receives the most bytes from others (the first of several): an all-to-all
        ends when its busiest rank is served.
    max_to_mean
        Largest over mean number of received tokens; 1 when no token is sent at all, for then
        nobody receives more than the mean.
    """

    received_tokens: tuple[int, ...]
    received_bytes: tuple[int, ...]
    remote_bytes: int
    busiest_rank: int
    max_to_mean: Fraction


def all_to_all_ledger(tokens: Sequence[Sequence[int]], bytes_per_token: int) -> AllToAllLedger:
    """Return what each rank receives when rank ``i`` sends ``tokens[i][j]`` tokens to rank ``j``.

    Parameters
    ----------
    tokens
        A square matrix, at least 2 x 2, of whole numbers of at least 0.
    bytes_per_token
        Bytes of one token, above 0.

    Raises
    ------
    InputError
        If the matrix is not square, smaller than 2 x 2 or holds an invalid number, or if
        ``bytes_per_token`` is not above 0.

    Examples
    --------
    >>> ledger = all_to_all_ledger([[0, 5], [2, 9]], 4)
    >>> ledger.received_tokens, ledger.received_bytes, ledger.busiest_rank
    ((2, 14), (8, 20), 1)
    """
    ranks = len(tokens)
    if ranks < 2:
        raise InputError(f"tokens: {ranks} rank(s) given, at least 2 needed")
    counts = []
    for source, row in enumerate(tokens):
        if len(row) != ranks:
            raise InputError(f"tokens: row {source} has {len(row)} columns, {ranks} needed")
        counts.append(
            [
                check_bytes(count, f"tokens: row {source}, column {target}")
                for target, count in enumerate(row)
            ]
        )
    each = exact(bytes_per_token, "bytes_per_token")
    if each <= 0 or each.denominator != 1:
        raise InputError(
            f"bytes_per_token: {shown(bytes_per_token)} must be a whole number above 0"
        )
    received = tuple(sum(row[rank] for row in counts) for rank in range(ranks))
    remote = tuple((received[rank] - counts[rank][rank]) * int(each) for rank in range(ranks))
    total = sum(received)
    return AllToAllLedger(
        received_tokens=received,
        received_bytes=remote,
        remote_bytes=sum(remote),
        busiest_rank=max(range(ranks), key=lambda rank: remote[rank]),
        max_to_mean=Fraction(max(received) * ranks, total) if total else Fraction(1),
    )
