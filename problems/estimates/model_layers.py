"""The parameters of a Hugging Face model, tensor by tensor, from its ``config.json``.

Names, shapes and order are those that ``transformers`` registers. Ready times follow the reverse of
this order, so a tensor's work counts where backward comes to it: a tied head's with the final norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from commsched.models.errors import InputError

MAX_PARAMETERS = 300_000
"""More tensors than any model has."""
_MAX_NUMBER = 1 << 40


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a model.

    Attributes
    ----------
    name
        As the reference code names it.
    elements
        How many numbers it has.
    work
        Multiply-adds that the forward pass does with it for one sample (image or token).
    """

    name: str
    elements: int
    work: int


@dataclass(frozen=True, slots=True)
class Config:
    """A model's configuration; every number that is read from it is checked.

    Attributes
    ----------
    values
        What the file holds.
    what
        What it is, for messages.
    """

    values: Mapping[str, object]
    what: str
    _layers: dict[str, frozenset[int]] = field(default_factory=dict, compare=False, repr=False)

    def number(self, key: str, default: int | None = None) -> int:
        """Return a whole number above 0; the default where there is none or it is null.

        Raises
        ------
        InputError
            If it is neither there nor has a default, or is out of range.
        """
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise InputError(f"{self.what}: {key} is missing")
            return default
        if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
            raise InputError(
                f"{self.what}: {key}: {value!r:.60} must be a whole number from 0 to {_MAX_NUMBER}"
            )
        if value == 0 and default != 0:
            raise InputError(f"{self.what}: {key} must be above 0")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false; the default where there is neither.

        Raises
        ------
        InputError
            If it is something else.
        """
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{self.what}: {key}: {value!r:.60} must be true or false")
        return value

    def layers(self, key: str) -> frozenset[int]:
        """Return the numbers of layers in a list; empty where there is none.

        Raises
        ------
        InputError
            If it is something else.
        """
        if key not in self._layers:
            self._layers[key] = self._checked_layers(key)
        return self._layers[key]

    def _checked_layers(self, key: str) -> frozenset[int]:
        value = self.values.get(key)
        if value is None:
            return frozenset()
        if not isinstance(value, list) or not all(type(layer) is int for layer in value):
            raise InputError(f"{self.what}: {key}: {value!r:.60} must be a list of layer numbers")
        return frozenset(value)


def linear(
    name: str, fan_in: int, fan_out: int, *, bias: bool = True, more_work: int = 0
) -> Iterator[Parameter]:
    """Yield a matrix, and its bias if it has one."""
    size = fan_in * fan_out
    yield Parameter(f"{name}.weight", size, size + more_work)
    if bias:
        yield Parameter(f"{name}.bias", fan_out, 0)


def norm(name: str, width: int, *, bias: bool = True) -> Iterator[Parameter]:
    """Yield a norm's weight, and its bias if it has one."""
    yield Parameter(f"{name}.weight", width, width)
    if bias:
        yield Parameter(f"{name}.bias", width, 0)


def embedding(name: str, rows: int, width: int) -> Parameter:
    """Return a table of which each token reads one row."""
    return Parameter(f"{name}.weight", rows * width, width)


def with_head(
    body: Iterator[Parameter], name: str, vocabulary: int, width: int, *, tied: bool
) -> Iterator[Parameter]:
    """Yield a model's parameters and its head's.

    A tied head has none of its own, and backward does its work first of all: it is counted with the
    last of the others.
    """
    last: Parameter | None = None
    for parameter in body:
        if last is not None:
            yield last
        last = parameter
    if last is not None:
        yield replace(last, work=last.work + vocabulary * width) if tied else last
    if not tied:
        yield from linear(name, width, vocabulary, bias=False)


def gpt2_body(config: Config, prefix: str = "") -> Iterator[Parameter]:
    """Yield GPT-2's parameters without its head (Radford et al. 2019)."""
    width = config.number("n_embd")
    inner = config.number("n_inner", 4 * width)
    yield embedding(f"{prefix}wte", config.number("vocab_size"), width)
    yield embedding(f"{prefix}wpe", config.number("n_positions", 1024), width)
    for layer in range(config.number("n_layer")):
        name = f"{prefix}h.{layer}"
        yield from norm(f"{name}.ln_1", width)
        yield from linear(f"{name}.attn.c_attn", width, 3 * width)
        yield from linear(f"{name}.attn.c_proj", width, width)
        yield from norm(f"{name}.ln_2", width)
        yield from linear(f"{name}.mlp.c_fc", width, inner)
        yield from linear(f"{name}.mlp.c_proj", inner, width)
    yield from norm(f"{prefix}ln_f", width)


def gpt_neox_body(config: Config, prefix: str = "") -> Iterator[Parameter]:
    """Yield GPT-NeoX's parameters without its head (Black et al. 2022)."""
    width, inner = config.number("hidden_size"), config.number("intermediate_size")
    bias = config.flag("attention_bias", True)
    yield embedding(f"{prefix}embed_in", config.number("vocab_size"), width)
    for layer in range(config.number("num_hidden_layers")):
        name = f"{prefix}layers.{layer}"
        yield from norm(f"{name}.input_layernorm", width)
        yield from norm(f"{name}.post_attention_layernorm", width)
        yield from linear(f"{name}.attention.query_key_value", width, 3 * width, bias=bias)
        yield from linear(f"{name}.attention.dense", width, width, bias=bias)
        yield from linear(f"{name}.mlp.dense_h_to_4h", width, inner)
        yield from linear(f"{name}.mlp.dense_4h_to_h", inner, width)
    yield from norm(f"{prefix}final_layer_norm", width)


def bert_body(config: Config, prefix: str = "", *, pooler: bool = True) -> Iterator[Parameter]:
    """Yield BERT's parameters (Devlin et al. 2018)."""
    width, inner = config.number("hidden_size"), config.number("intermediate_size")
    for name, rows in (
        ("word", config.number("vocab_size")),
        ("position", config.number("max_position_embeddings")),
        ("token_type", config.number("type_vocab_size", 2)),
    ):
        yield embedding(f"{prefix}embeddings.{name}_embeddings", rows, width)
    yield from norm(f"{prefix}embeddings.LayerNorm", width)
    for layer in range(config.number("num_hidden_layers")):
        name = f"{prefix}encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            yield from linear(f"{name}.attention.self.{part}", width, width)
        yield from linear(f"{name}.attention.output.dense", width, width)
        yield from norm(f"{name}.attention.output.LayerNorm", width)
        yield from linear(f"{name}.intermediate.dense", width, inner)
        yield from linear(f"{name}.output.dense", inner, width)
        yield from norm(f"{name}.output.LayerNorm", width)
    if pooler:
        yield from linear(f"{prefix}pooler.dense", width, width)


def listed(found: Iterator[Parameter], what: str) -> list[Parameter]:
    """Return parameters as a list of bounded length.

    Raises
    ------
    InputError
        If there are more than ``MAX_PARAMETERS``.
    """
    parameters = list(islice(found, MAX_PARAMETERS + 1))
    if len(parameters) > MAX_PARAMETERS:
        raise InputError(f"{what}: the model has more than {MAX_PARAMETERS} tensors")
    return parameters


Body = Callable[[Config, str], Iterator[Parameter]]
"""Yields the parameters of a model without its head, with a prefix before each name."""
