"""What a step of the library works on: samples of a rank, and how well it uses an accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commsched.problems.estimates.hardware import Figure


@dataclass(frozen=True, slots=True)
class Setting:
    """What a rank works on, and how well: what a model's steps assume.

    Attributes
    ----------
    samples
        Images or tokens that a rank processes in a step.
    share
        Which share of the accelerator's peak compute reaches.
    dtype
        The gradients' type.
    """

    samples: Figure
    share: Figure
    dtype: str


_WORD_SHARE = Figure(
    "share of the peak that training reaches",
    0.4,
    "",
    "published",
    "The Llama 3 Herd of Models (Meta 2024): 38 to 43% of the peak on 8,192 and more H100; "
    "taken for all accelerators and models of text",
)
_IMAGE_SHARE = Figure(
    "share of the peak that training reaches",
    0.2,
    "",
    "published",
    "2,600 images a second of ResNet-50 on an A100 (huggingface/pytorch-image-models #1491), "
    "three forward passes of 4.09 G multiply-adds each; taken for all accelerators and VGG-16",
)


def _words(samples: int, dtype: str, what: str) -> Setting:
    figure = Figure("tokens of a rank in a step", samples, "", "assumed", what)
    return Setting(figure, _WORD_SHARE, dtype)


def _images(samples: int) -> Setting:
    figure = Figure("images of a rank in a step", samples, "", "assumed", "a usual batch")
    return Setting(figure, _IMAGE_SHARE, "float32")


SETTINGS: Mapping[str, Setting] = {
    "resnet50": _images(256),
    "vgg16": _images(128),
    "bert-large": _words(16_384, "float32", "32 sequences of 512"),
    "gpt2-xl": _words(8_192, "float32", "8 sequences of 1,024"),
    "llama3-8b": _words(8_192, "bfloat16", "one sequence of 8,192"),
    "llama3-70b": _words(8_192, "bfloat16", "one sequence of 8,192"),
    "mixtral-8x7b": _words(8_192, "bfloat16", "two sequences of 4,096"),
}
"""The models of the library, by name."""
