"""Decoders of the Llama kind, dense and with experts, and DeepSeek's, from their ``config.json``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from commsched.models.errors import InputError
from commsched.problems.estimates.model_layers import Config, Parameter, embedding, linear, norm


@dataclass(frozen=True, slots=True)
class Decoder:
    """What sets a family of decoders apart.

    Attributes
    ----------
    query_bias, out_bias
        Whether the attention's input and output matrices have a bias; None if the file says.
    head_norms
        Whether queries and keys are normed by head.
    head_width
        Width of a head where the file does not say; 0 for the model's width over its heads.
    all_heads
        Whether keys have as many heads as queries where the file does not say.
    tied
        Whether the head is tied to the embedding where the file does not say.
    norms
        The norms of a layer.
    attention
        Yields the parameters of a layer's attention.
    feed_forward
        Yields the parameters of a layer's feed-forward part.
    """

    query_bias: bool | None = False
    out_bias: bool | None = False
    head_norms: bool = False
    head_width: int = 0
    all_heads: bool = False
    tied: bool = False
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    attention: Callable[[Config, Decoder, str], Iterator[Parameter]] | None = None
    feed_forward: Callable[[Config, str, int], Iterator[Parameter]] | None = None

    def body(self, config: Config, prefix: str = "") -> Iterator[Parameter]:
        """Yield the parameters without the head."""
        width = config.number("hidden_size")
        attention = self.attention or _attention
        feed_forward = self.feed_forward or _gated
        yield embedding(f"{prefix}embed_tokens", config.number("vocab_size"), width)
        for layer in range(config.number("num_hidden_layers")):
            name = f"{prefix}layers.{layer}"
            yield from attention(config, self, f"{name}.self_attn")
            yield from feed_forward(config, name, layer)
            for part in self.norms:
                yield from norm(f"{name}.{part}", width, bias=False)
        yield from norm(f"{prefix}norm", width, bias=False)


def _heads(config: Config, family: Decoder) -> tuple[int, int]:
    """Return the widths of all queries and of all keys."""
    width, heads = config.number("hidden_size"), config.number("num_attention_heads")
    keys = config.number("num_key_value_heads", heads if family.all_heads else None)
    if family.head_width or config.values.get("head_dim") is not None:
        head = config.number("head_dim", family.head_width or None)
    elif width % heads:
        raise InputError(
            f"{config.what}: hidden_size {width} is no multiple of num_attention_heads {heads}"
        )
    else:
        head = width // heads
    return heads * head, keys * head


def _attention(config: Config, family: Decoder, name: str) -> Iterator[Parameter]:
    width = config.number("hidden_size")
    queries, keys = _heads(config, family)
    bias = config.flag("attention_bias", False)
    into = bias if family.query_bias is None else family.query_bias
    out = bias if family.out_bias is None else family.out_bias
    yield from linear(f"{name}.q_proj", width, queries, bias=into)
    yield from linear(f"{name}.k_proj", width, keys, bias=into)
    yield from linear(f"{name}.v_proj", width, keys, bias=into)
    yield from linear(f"{name}.o_proj", queries, width, bias=out)
    if family.head_norms:
        head = queries // config.number("num_attention_heads")
        yield from norm(f"{name}.q_norm", head, bias=False)
        yield from norm(f"{name}.k_norm", head, bias=False)


def _fused_attention(config: Config, family: Decoder, name: str) -> Iterator[Parameter]:
    width = config.number("hidden_size")
    queries, keys = _heads(config, family)
    yield from linear(f"{name}.o_proj", queries, width, bias=False)
    yield from linear(f"{name}.qkv_proj", width, queries + 2 * keys, bias=False)


def _latent_attention(config: Config, family: Decoder, name: str) -> Iterator[Parameter]:
    """Yield DeepSeek's multi-head latent attention."""
    width, heads = config.number("hidden_size"), config.number("num_attention_heads")
    plain, turned = config.number("qk_nope_head_dim"), config.number("qk_rope_head_dim")
    values, rank = config.number("v_head_dim"), config.number("kv_lora_rank")
    bias = config.flag("attention_bias", False)
    queries = heads * (plain + turned)
    if config.values.get("q_lora_rank") is None:
        yield from linear(f"{name}.q_proj", width, queries, bias=False)
    else:
        low = config.number("q_lora_rank")
        yield from linear(f"{name}.q_a_proj", width, low, bias=bias)
        yield from norm(f"{name}.q_a_layernorm", low, bias=False)
        yield from linear(f"{name}.q_b_proj", low, queries, bias=False)
    yield from linear(f"{name}.kv_a_proj_with_mqa", width, rank + turned, bias=bias)
    yield from norm(f"{name}.kv_a_layernorm", rank, bias=False)
    yield from linear(f"{name}.kv_b_proj", rank, heads * (plain + values), bias=False)
    yield from linear(f"{name}.o_proj", heads * values, width, bias=bias)


def _gated_of(config: Config, name: str, inner: int, share: tuple[int, int]) -> Iterator[Parameter]:
    """Yield a gated feed-forward part that a share of the tokens passes through."""
    width, (some, every) = config.number("hidden_size"), share
    bias = config.flag("mlp_bias", False)
    for part, rows, columns in (
        ("gate_proj", width, inner),
        ("up_proj", width, inner),
        ("down_proj", inner, width),
    ):
        size = rows * columns
        yield Parameter(f"{name}.{part}.weight", size, size * some // every)
        if bias:
            yield Parameter(f"{name}.{part}.bias", columns, 0)


def _gated(config: Config, name: str, layer: int) -> Iterator[Parameter]:
    yield from _gated_of(config, f"{name}.mlp", config.number("intermediate_size"), (1, 1))


def _fused_gated(config: Config, name: str, layer: int) -> Iterator[Parameter]:
    width, inner = config.number("hidden_size"), config.number("intermediate_size")
    yield from linear(f"{name}.mlp.gate_up_proj", width, 2 * inner, bias=False)
    yield from linear(f"{name}.mlp.down_proj", inner, width, bias=False)


def _share(config: Config, experts: int) -> tuple[int, int]:
    """Return how many of the experts a token passes through."""
    chosen = config.number("num_experts_per_tok")
    if chosen > experts:
        raise InputError(
            f"{config.what}: num_experts_per_tok {chosen} is more than the {experts} experts"
        )
    return chosen, experts


def _mixtral(config: Config, name: str, layer: int) -> Iterator[Parameter]:
    width, inner = config.number("hidden_size"), config.number("intermediate_size")
    experts = config.number("num_local_experts")
    chosen, _ = _share(config, experts)
    size = width * inner
    yield from linear(f"{name}.block_sparse_moe.gate", width, experts, bias=False)
    for expert in range(experts):
        for part in ("w1", "w2", "w3"):
            yield Parameter(
                f"{name}.block_sparse_moe.experts.{expert}.{part}.weight",
                size,
                size * chosen // experts,
            )


def _granite_experts(config: Config, name: str, layer: int) -> Iterator[Parameter]:
    width, inner = config.number("hidden_size"), config.number("intermediate_size")
    experts = config.number("num_local_experts")
    chosen, _ = _share(config, experts)
    size, name = width * inner, f"{name}.block_sparse_moe"
    yield Parameter(f"{name}.input_linear.weight", 2 * experts * size, 2 * chosen * size)
    yield Parameter(f"{name}.output_linear.weight", experts * size, chosen * size)
    yield from linear(f"{name}.router.layer", width, experts, bias=False)


def _qwen_experts(config: Config, name: str, layer: int) -> Iterator[Parameter]:
    width, experts = config.number("hidden_size"), config.number("num_experts")
    step = config.number("decoder_sparse_step", 1)
    if layer in config.layers("mlp_only_layers") or (layer + 1) % step:
        yield from _gated(config, name, layer)
        return
    yield from linear(f"{name}.mlp.gate", width, experts, bias=False)
    inner, share = config.number("moe_intermediate_size"), _share(config, experts)
    for expert in range(experts):
        yield from _gated_of(config, f"{name}.mlp.experts.{expert}", inner, share)
    if config.values.get("shared_expert_intermediate_size") is not None:
        shared = config.number("shared_expert_intermediate_size")
        yield from _gated_of(config, f"{name}.mlp.shared_expert", shared, (1, 1))
        yield from linear(f"{name}.mlp.shared_expert_gate", width, 1, bias=False)


def _deepseek_experts(config: Config, name: str, layer: int) -> Iterator[Parameter]:
    width = config.number("hidden_size")
    first, step = config.number("first_k_dense_replace", 0), config.number("moe_layer_freq", 1)
    if config.values.get("n_routed_experts") is None or layer < first or layer % step:
        yield from _gated(config, name, layer)
        return
    experts, inner = config.number("n_routed_experts"), config.number("moe_intermediate_size")
    share = _share(config, experts)
    for expert in range(experts):
        yield from _gated_of(config, f"{name}.mlp.experts.{expert}", inner, share)
    yield from linear(f"{name}.mlp.gate", width, experts, bias=False)
    shared = config.number("n_shared_experts", 0)
    if shared:
        yield from _gated_of(config, f"{name}.mlp.shared_experts", shared * inner, (1, 1))


_GEMMA2_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
_LATENT = Decoder(attention=_latent_attention, feed_forward=_deepseek_experts)

DECODERS: Mapping[str, Decoder] = {
    "llama": Decoder(query_bias=None, out_bias=None, all_heads=True),
    "mistral": Decoder(),
    "granite": Decoder(query_bias=None, out_bias=None, all_heads=True),
    "qwen2": Decoder(query_bias=True),
    "qwen3": Decoder(query_bias=None, out_bias=None, head_norms=True, head_width=128),
    "gemma": Decoder(query_bias=None, out_bias=None, head_width=256, tied=True),
    "gemma2": Decoder(
        query_bias=None, out_bias=None, head_width=256, tied=True, norms=_GEMMA2_NORMS
    ),
    "phi3": Decoder(all_heads=True, attention=_fused_attention, feed_forward=_fused_gated),
    "mixtral": Decoder(feed_forward=_mixtral),
    "granitemoe": Decoder(
        query_bias=None, out_bias=None, all_heads=True, feed_forward=_granite_experts
    ),
    "qwen2_moe": Decoder(query_bias=True, feed_forward=_qwen_experts),
    "qwen3_moe": Decoder(
        query_bias=None, out_bias=None, head_norms=True, feed_forward=_qwen_experts
    ),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
}
"""The families of decoders by ``model_type``."""
