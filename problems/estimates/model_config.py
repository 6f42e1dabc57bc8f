"""An estimate of a training step from a Hugging Face model's ``config.json``, with no trace at all.

Sizes are exact: they follow from the configuration, tensor by tensor. Times are *estimated* and every
output says so in the step's name: a matrix of n numbers takes 2 n operations a token in the forward
pass and 4 n in backward, over a stated throughput.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from commsched.models.dtypes import ITEM_BYTES
from commsched.models.errors import InputError
from commsched.models.units import MAX_BYTES, MAX_NS, exact, shown
from commsched.problems.estimates.architectures import spread_gradients
from commsched.problems.estimates.model_decoders import DECODERS
from commsched.problems.estimates.model_layers import (
    Body,
    Config,
    Parameter,
    bert_body,
    gpt2_body,
    gpt_neox_body,
    linear,
    listed,
    norm,
    with_head,
)
from commsched.problems.estimates.model_tensors import ModelTensors, read_model_tensors
from commsched.problems.profiler.trace_dtypes import dtype_name, is_floating
from commsched.problems.readers import Reader, ReadOptions
from commsched.problems.recorded import Check, ImportReport, RecordedStep
from commsched.problems.sources.single_file import only_file, read_object, start_object
from commsched.problems.sources.source import Source

_MARKS = (
    *("hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "text_config"),
    *("architectures", "transformers_version"),
)
_NOT_GRADIENTS = re.compile(
    r"\.(?:inv_freq|masked_bias|position_ids|e_score_correction_bias)$|attn\.bias$"
)
_MAX_TOKENS = 10**12
_TFLOP = 10**12


@dataclass(frozen=True, slots=True)
class _Family:
    body: Body
    prefix: str
    head: str
    width: str
    tied: bool


_FAMILIES: Mapping[str, _Family] = {
    **{
        name: _Family(family.body, "model.", "lm_head", "hidden_size", family.tied)
        for name, family in DECODERS.items()
    },
    "gpt2": _Family(gpt2_body, "transformer.", "lm_head", "n_embd", True),
    "gpt_neox": _Family(gpt_neox_body, "gpt_neox.", "embed_out", "hidden_size", False),
}


def recognises(start: bytes) -> bool:
    """Return whether a file is a model's configuration as a whole."""
    top = start_object(start, b'"model_type"')
    return isinstance(top.get("model_type"), str) and any(mark in top for mark in _MARKS)


def read(files: Sequence[Source], options: ReadOptions) -> RecordedStep:
    """Estimate a data-parallel step of a model.

    Parameters
    ----------
    files
        The ``config.json``.
    options
        ``tokens`` and ``tflops`` must be given. ``sizes`` names the model's
        ``model.safetensors.index.json`` or a ``.safetensors`` file, to check sizes against.

    Raises
    ------
    InputError
        If the model is of an unknown kind, its configuration lacks something, or tokens and
        throughput are not given.
    """
    source = only_file(files)
    top = read_object(source)
    parameters, notes = model_parameters(top, str(source))
    tokens, tflops = _speed(source, options)
    dtype, typed = _dtype(source, top)
    for parameter in parameters:
        if parameter.elements * ITEM_BYTES[dtype] > MAX_BYTES:
            raise InputError(
                f"{source}: {parameter.name} has {parameter.elements} numbers: too many"
            )
    work = sum(parameter.work for parameter in parameters)
    forward_ms = 2 * work * tokens / (tflops * _TFLOP) * 1000
    if 3 * forward_ms * 1_000_000 > MAX_NS:
        raise InputError(
            f"{source}: the step is estimated to take longer than 13 days; check tokens and tflops"
        )
    gradients = spread_gradients(parameters, 2 * forward_ms, forward_ms=forward_ms, dtype=dtype)
    total = sum(parameter.elements for parameter in parameters)
    notes = [
        f"estimated: {tokens} tokens a rank and step at {tflops:g} TFLOP/s; forward takes "
        f"{forward_ms:.3f} ms, then backward twice that, spread over the layers in reverse by work",
        "work is 2 operations for each number of a matrix and each token; attention scores, "
        "recomputation and the optimizer's step are left out",
        "backward comes to the tensors in the reverse of their registration: a layer's norms, "
        "registered last, are ready a little later in truth",
        f"the gradients are {dtype}, as the configuration says of the parameters"
        if typed
        else f"the gradients are {dtype}: the configuration names no type",
        *notes,
    ]
    tensors = None if options.sizes is None else read_model_tensors(Source(options.sizes))
    return RecordedStep(
        name=f"{_name(top)} (estimated: {tokens} tokens at {tflops:g} TFLOP/s)",
        gradients=tuple(gradients),
        launches=(),
        backward_end_ns=max(gradient.ready_ns for gradient in gradients),
        step_name="estimated",
        report=ImportReport(
            source=source.name,
            events_read=len(parameters),
            kept={"gradients": len(gradients), "parameters": total},
            dropped={},
            assumptions=tuple(notes),
            checks=() if tensors is None else tuple(_checks(parameters, tensors, dtype)),
        ),
    )


def model_parameters(config: Mapping[str, object], what: str) -> tuple[list[Parameter], list[str]]:
    """Return a model's parameters in registration order, and remarks on them.

    Parameters
    ----------
    config
        The content of a ``config.json``.
    what
        What it is, for messages.

    Raises
    ------
    InputError
        If the model is of an unknown kind or its configuration lacks something.

    Examples
    --------
    >>> config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "vocab_size": 50257}
    >>> parameters, _ = model_parameters(config, "gpt2")
    >>> len(parameters), sum(parameter.elements for parameter in parameters)
    (148, 124439808)
    """
    kind = config.get("model_type")
    known = (*_FAMILIES, "bert")
    if kind not in known:
        inner = config.get("text_config")
        more = (
            "; its text_config alone may be read as a file of its own"
            if isinstance(inner, dict) and inner.get("model_type") in known
            else ""
        )
        raise InputError(
            f"{what}: model_type {kind!r:.60} is not one of {', '.join(sorted(known))}{more}"
        )
    reader = Config(config, f"{what}: model_type {kind!r}")
    notes: list[str] = []
    architecture = _architecture(reader, notes)
    if kind == "bert":
        return listed(_bert(reader, architecture), reader.what), notes
    family = _FAMILIES[str(kind)]
    if architecture.endswith(("ForCausalLM", "LMHeadModel")):
        body = family.body(reader, family.prefix)
        tied = reader.flag("tie_word_embeddings", family.tied)
        if tied:
            notes.append("the head is tied to the embedding: one gradient, ready last")
        found = with_head(
            body, family.head, reader.number("vocab_size"), reader.number(family.width), tied=tied
        )
    elif architecture.endswith("Model"):
        found = family.body(reader, "")
    else:
        raise InputError(
            f"{reader.what}: architectures: the head of {architecture!r:.60} is not known "
            "(known: ...ForCausalLM, ...LMHeadModel, ...Model)"
        )
    parameters = listed(found, reader.what)
    if any(config.get(k) for k in ("num_local_experts", "num_experts", "n_routed_experts")):
        notes.append(
            "every rank holds and all-reduces the gradients of all experts, as plain data "
            "parallelism does (expert parallelism would not); a token's work is that of the "
            "experts that it is sent to, evenly"
        )
    if config.get("num_nextn_predict_layers"):
        notes.append("layers for predicting several tokens are left out, as transformers does")
    return parameters, notes


def _architecture(config: Config, notes: list[str]) -> str:
    names = config.values.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    bert = config.values.get("model_type") == "bert"
    notes.append(
        "the configuration names no architecture: taken for the "
        + ("bare model with its pooler" if bert else "language model with its head")
    )
    return "BertModel" if bert else "ForCausalLM"


def _bert(config: Config, architecture: str) -> Iterator[Parameter]:
    width, vocabulary = config.number("hidden_size"), config.number("vocab_size")
    if architecture == "BertModel":
        yield from bert_body(config)
        return
    if architecture not in ("BertForMaskedLM", "BertForPreTraining"):
        raise InputError(
            f"{config.what}: architectures: the head of {architecture!r:.60} is not known (known: "
            "BertModel, BertForMaskedLM, BertForPreTraining)"
        )
    pairs = architecture == "BertForPreTraining"
    tied = config.flag("tie_word_embeddings", True)
    yield from bert_body(config, "bert.", pooler=pairs)
    yield Parameter("cls.predictions.bias", vocabulary, 0)
    yield from linear("cls.predictions.transform.dense", width, width)
    yield from with_head(
        norm("cls.predictions.transform.LayerNorm", width),
        "cls.predictions.decoder",
        vocabulary,
        width,
        tied=tied,
    )
    if pairs:
        yield from linear("cls.seq_relationship", width, 2)


def _speed(source: Source, options: ReadOptions) -> tuple[int, float]:
    if options.tokens is None or options.tflops is None:
        raise InputError(
            f"{source}: a model's configuration has no times: say --tokens (that a rank processes "
            "in a step) and --tflops (1e12 operations a second that a rank reaches) for an estimate"
        )
    tokens = exact(options.tokens, "tokens")
    if tokens.denominator != 1 or not 1 <= tokens <= _MAX_TOKENS:
        raise InputError(
            f"tokens: {shown(options.tokens)} must be a whole number from 1 to {_MAX_TOKENS}"
        )
    tflops = exact(options.tflops, "tflops")
    if not 0 < tflops <= 10**9 or float(tflops) <= 0:
        raise InputError(f"tflops: {shown(options.tflops)} must be above 0 and at most 1e9")
    return int(tokens), float(tflops)


def _dtype(source: Source, config: Mapping[str, object]) -> tuple[str, bool]:
    text = config.get("torch_dtype") or config.get("dtype")
    if text is None or text == "auto":
        return "float32", False
    dtype = dtype_name(text)
    if dtype is None or not is_floating(dtype):
        raise InputError(f"{source}: torch_dtype: {text!r:.60} is no type that gradients have")
    return dtype, True


def _name(config: Mapping[str, object]) -> str:
    path = config.get("_name_or_path")
    if isinstance(path, str) and PurePosixPath(path).name:
        return PurePosixPath(path).name[:100]
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str) and names[0]:
        return names[0][:100]
    return str(config.get("model_type"))[:100]


def _checks(parameters: Sequence[Parameter], tensors: ModelTensors, dtype: str) -> Iterator[Check]:
    ours = {parameter.name: parameter.elements for parameter in parameters}
    theirs = {name for name in tensors.elements if not _NOT_GRADIENTS.search(name)}
    both = ours.keys() & theirs
    yield Check(
        f"tensors with a name in {tensors.source}: {len(both)} of {len(ours)}, "
        f"{len(theirs) - len(both)} more there",
        len(both) == len(ours) == len(theirs),
    )
    sized = [name for name in both if tensors.elements[name] is not None]
    if sized:
        same = sum(ours[name] == tensors.elements[name] for name in sized)
        yield Check(f"tensors of the same size there: {same} of {len(sized)}", same == len(sized))
    if tensors.total_bytes is not None:
        total = sum(ours.values()) * ITEM_BYTES[dtype]
        yield Check(
            f"bytes of all parameters: {total}, {tensors.total_bytes} there",
            total == tensors.total_bytes,
        )


READER = Reader(
    title="model configuration (config.json)",
    recognises=recognises,
    read=read,
    options=frozenset({"tokens", "tflops", "sizes"}),
)
