"""MLCommons Chakra execution traces: protocol buffers, and the JSON of Chakra's feeder."""

from __future__ import annotations

from collections.abc import Sequence

from commsched.models.errors import InputError
from commsched.problems.chakra.chakra_collectives import with_sizes
from commsched.problems.chakra.chakra_graph import recorded_graph
from commsched.problems.chakra.chakra_json import MAX_JSON_BYTES, nodes_from_json, recognises_json
from commsched.problems.chakra.chakra_nodes import (
    MAX_CHAKRA_BYTES,
    ChakraNode,
    nodes_from_bytes,
    recognises_chakra,
)
from commsched.problems.readers import Reader, ReadOptions
from commsched.problems.recorded import RecordedGraph
from commsched.problems.sources.source import Source


def recognises(start: bytes) -> bool:
    """Return whether a file is a Chakra trace of either form."""
    return recognises_json(start) or recognises_chakra(start)


def read_nodes(source: Source) -> list[ChakraNode]:
    """Return a trace's nodes in the order of the file.

    Raises
    ------
    InputError
        If it is no Chakra trace or cannot be read.
    """
    start = source.start()
    if recognises_json(start):
        return nodes_from_json(source.read(max_text_bytes=MAX_JSON_BYTES), str(source))
    if recognises_chakra(start):
        return nodes_from_bytes(source.read(max_text_bytes=MAX_CHAKRA_BYTES), str(source))
    raise InputError(f"{source}: this is no Chakra execution trace")


def read(files: Sequence[Source], options: ReadOptions) -> RecordedGraph:
    """Read the trace of one rank.

    Sizes that it does not have may come from another Chakra trace of the same run (``sizes``).

    Raises
    ------
    InputError
        If it cannot be read, its nodes wait in a circle, or its collectives have no sizes.
    """
    if len(files) != 1:
        raise InputError(f"{files[0]}: name the Chakra trace of one rank, not {len(files)} files")
    nodes = read_nodes(files[0])
    if options.sizes is not None:
        with_sizes(nodes, read_nodes(Source(options.sizes)), str(files[0]), str(options.sizes))
    return recorded_graph(files[0], nodes, options)


READER = Reader(
    title="Chakra execution trace",
    recognises=recognises,
    read=read,
    options=frozenset({"sizes"}),
)
