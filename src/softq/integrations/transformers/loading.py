"""Models and tokenizers.

Read from a folder or made from scratch, with or without low-rank adapters, and saved.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import logging as transformers_logging

from softq.errors import DependencyError, ModelError
from softq.integrations.transformers.completion_rewards import RewardModel

_DROPOUTS = (
    "dropout_rate",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
)
_PAD, _END, _UNKNOWN = "<pad>", "</s>", "<unk>"  # their numbers are 0, 1 and 2, as in every T5


_KEYS = ("d_model", "d_ff", "d_kv", "num_heads", "num_layers")  # of a T5's configuration
SIZES = {
    "t5-tiny": (64, 256, 16, 4, 2),
    "t5-mini": (256, 1024, 64, 4, 4),
    "t5-small-nl2": (512, 2048, 64, 8, 2),  # two layers of T5-small, as T5-efficient calls them
    "t5-small": (512, 2048, 64, 8, 6),
    "t5-base": (768, 3072, 64, 12, 12),
}


class Loaded(NamedTuple):
    """A model and its tokenizer."""

    model: Any
    tokenizer: Any

    @property
    def causal(self) -> bool:
        """Whether the model continues its input, or reads it with an encoder."""
        return not self.model.config.is_encoder_decoder


def load_model(name: str, dtype: str = "float32", dropout: float | None = None) -> Loaded:
    """A model with its tokenizer, whatever its kind, from a folder of ``save_pretrained`` or by a name that Transformers know.

    ``dropout`` takes the place of the model's own.
    """
    with loading(name), quiet():
        config = AutoConfig.from_pretrained(name)
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        for share in _DROPOUTS if dropout is not None else ():
            if hasattr(config, share):
                setattr(config, share, dropout)
        return Loaded(
            kind.from_pretrained(name, config=config).to(getattr(torch, dtype)),
            AutoTokenizer.from_pretrained(name),
        )


def load_reward_model(name: str, device: torch.device, label: int | None = None) -> RewardModel:
    """A classifier of texts as a reward of prompts and completions, from a folder or by a name that Transformers know."""
    with loading(name), quiet():
        model = AutoModelForSequenceClassification.from_pretrained(name)
        tokenizer = AutoTokenizer.from_pretrained(name)
    return RewardModel(model.to(device), tokenizer, label=label)


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Errors of loading from a folder, or by a name that Transformers know, say what is wrong with it."""
    if (
        not Path(name).is_dir()
        and (name.count("/") != 1 or name.startswith((".", "/")))
        and "/" in name
    ):
        raise ModelError(
            f"there is no folder {name}: expected a run folder of softq train lm, or one that"
            " save_pretrained has written"
        )
    try:
        yield
    except DependencyError:  # it says what to install
        raise
    except Exception as error:  # tokenizers raises plain exceptions, safetensors kinds of its own
        reason = next(
            (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise ModelError(f"Transformers cannot load {name}: {reason}") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Without Transformers' own progress bars and remarks."""
    level, bars = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def make_t5(size: str, tokenizer: Any, dropout: float = 0.1) -> Any:
    """A T5 of random weights; its size is one of `SIZES`."""
    if size not in SIZES:
        raise ModelError(f"expected one of {', '.join(SIZES)}, got {size!r}")
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=len(tokenizer),
            **dict(zip(_KEYS, SIZES[size], strict=True)),
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.pad_token_id,
            dropout_rate=dropout,
        )
    )


def train_tokenizer(texts: Sequence[str], size: int) -> Any:
    """A tokenizer of at most ``size`` pieces of words (byte-pair encoding), with the special tokens of T5.

    The same texts make the same tokenizer, which is not so of 🤗 tokenizers' unigram models.

    >>> tokenizer = train_tokenizer(["a cat", "a dog", "the cat"], 30)
    >>> tokenizer.decode(tokenizer("the dog")["input_ids"], skip_special_tokens=True), tokenizer("a")["input_ids"][-1]
    ('the dog', 1)
    """
    tokenizers = import_module("tokenizers")  # comes with Transformers
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=_UNKNOWN))
    made.normalizer = tokenizers.normalizers.NFC()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[_PAD, _END, _UNKNOWN], show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"$A {_END}",
        pair=f"$A {_END} $B {_END}",
        special_tokens=[(_END, made.token_to_id(_END))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=_PAD, eos_token=_END, unk_token=_UNKNOWN
    )


def with_adapters(model: Any, rank: int) -> Any:
    """The model with low-rank adapters, which alone are trained, on all its linear layers."""
    try:
        peft = import_module("peft")
    except ImportError as error:
        raise DependencyError(
            "low-rank adapters are PEFT's, which is not installed: pip install peft"
        ) from error
    kind = None  # of an encoder
    if model.can_generate():
        kind = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"
    settings = peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type=kind
    )
    with warnings.catch_warnings():
        # GPT-2's layers are the other way round, and PEFT sees to it
        warnings.filterwarnings("ignore", message="fan_in_fan_out")
        return peft.get_peft_model(model, settings)


def refuse_full(folder: Path) -> None:
    """An error where there is something that a model would take the place of."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ModelError(f"{folder} is not empty: choose a folder that is new")


def save_model(model: Any, tokenizer: Any, folder: Path, *, replace: bool = False) -> None:
    """Model and tokenizer as Transformers read them, adapters merged.

    The folder takes its place when it is whole.

    A folder that is not empty is an error, unless ``replace`` says that it is an older model, which
    then stays until the new one is whole.
    """
    if not replace:
        refuse_full(folder)
    place = folder.resolve()
    part, old = (place.with_name(f".{place.name}.{kind}") for kind in ("part", "old"))
    for leftover in (part, old):  # of a training that was killed while it wrote
        shutil.rmtree(leftover, ignore_errors=True)
    whole = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
    with quiet():
        whole.save_pretrained(part)
        tokenizer.save_pretrained(part)
    if place.exists():
        os.replace(place, old)
    os.replace(part, place)
    shutil.rmtree(old, ignore_errors=True)
