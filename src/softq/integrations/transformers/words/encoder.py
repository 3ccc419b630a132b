"""Models of words: an encoder of Transformers, with low-rank adapters or without, under a head."""

from __future__ import annotations

import copy
import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Self, get_args

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from softq.errors import DependencyError, ModelError
from softq.integrations.transformers.loading import loading, quiet
from softq.options import Pooling, check_choice

_SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


class WordConfig(PretrainedConfig):  # type: ignore[misc]  # of no type that mypy knows
    """What any model of words is made of.

    Args:
        encoder: configuration of the encoder.
        pooling: which subword stands for a word: ``"first"``, ``"last"``, or their ``"mean"``.
        dropout: of the vectors of words.
        adapter: configuration of low-rank adapters inside the encoder, where there are any.
        more: as `transformers.PretrainedConfig` takes it.

    """

    sub_configs = {"encoder": AutoConfig}  # noqa: RUF012  # as all of Transformers' classes have it

    def __init__(
        self,
        encoder: Any = None,
        pooling: Pooling = "first",
        dropout: float = 0.1,
        adapter: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        if isinstance(encoder, dict):
            given = dict(encoder)
            encoder = AutoConfig.for_model(given.pop("model_type"), **given)
        self.encoder, self.pooling = encoder, pooling
        self.dropout, self.adapter = dropout, adapter
        super().__init__(**more)
        check_choice("pooling", pooling, get_args(Pooling), ModelError)


Criterion = Callable[[Any, Any, Tensor], Tensor]
"""Of a model, its scores and lengths: a loss for each sentence."""


class WordModel(PreTrainedModel):  # type: ignore[misc]  # of no type that mypy knows
    """An encoder of Transformers under a head that scores the words of sentences.

    A subclass adds the head: `scores`, the most probable output (`decode`), and what `forward`
    returns (`output`).
    """

    config_class: type[Any] = WordConfig
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True  # Trainer counts labels where a model says so
    _supports_sdpa = _supports_flash_attn = True

    def __init__(self, config: WordConfig, encoder: Any = None) -> None:
        """Without an encoder, one of random weights is made by the configuration."""
        super().__init__(config)
        if encoder is None:
            encoder = AutoModel.from_config(config.encoder)
            if config.adapter is not None:
                peft = _peft()
                settings = peft.PeftConfig.from_peft_type(**config.adapter)
                encoder = peft.get_peft_model(encoder, settings)
        core = _without_adapter(encoder)
        if "add_pooling_layer" in inspect.signature(type(core).__init__).parameters:
            core.pooler = None  # it is for whole texts, and no loss of words would train it
        config.encoder = core.config
        self.encoder = encoder

    @classmethod
    def around(cls, encoder: Any, **settings: Any) -> Self:
        """A model with an encoder that was trained already, and a new head; see `from_encoder`."""
        if isinstance(encoder, (str, Path)):
            with loading(str(encoder)), quiet():
                encoder = AutoModel.from_pretrained(str(encoder)).float()
        if not isinstance(encoder, nn.Module) or not hasattr(encoder, "config"):
            raise ModelError(
                "expected an encoder of Transformers, a folder or a name, got"
                f" {type(encoder).__name__}"
            )
        core = _without_adapter(encoder)
        if core.config.is_encoder_decoder:
            raise ModelError(
                f"expected an encoder, such as BERT, got {type(core).__name__}, which has a decoder"
            )
        more: dict[str, Any] = {name: getattr(core.config, name, None) for name in _SPECIAL_TOKENS}
        config = cls.config_class(
            # a copy: a configuration resets, in those inside it, how attention is computed
            encoder=copy.deepcopy(core.config),
            adapter=_adapter_of(encoder),
            **more | settings,
        )
        model = cls(config, encoder=encoder)
        for weight in model.head_parameters():
            weight.data = weight.data.to(core.dtype)
        return model

    @property
    def max_subwords(self) -> int | None:
        """How many subwords the encoder reads at once, special tokens included; None: any number."""
        found = getattr(self.config.encoder, "max_position_embeddings", None)
        if not found or found < 0:
            return None
        for name, module in self.encoder.named_modules():
            # RoBERTa counts positions from the one after its padding's
            if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
                return int(found) - (0 if module.padding_idx is None else module.padding_idx + 1)
        return int(found)

    @abstractmethod
    def collator(
        self, tokenizer: Any, *, max_length: int | None = None, stride: int | None = None
    ) -> Any:
        """What makes batches of rows for this model."""

    def window(self, max_length: int | None) -> int | None:
        """Most subwords of a window: as many as are wished, and as the encoder reads."""
        limits = [limit for limit in (max_length, self.max_subwords) if limit is not None]
        return min(limits, default=None)

    def head_parameters(self) -> Iterable[nn.Parameter]:
        """Of what was not part of the encoder."""
        for name, weight in self.named_parameters():
            if not name.startswith("encoder."):
                yield weight

    def get_input_embeddings(self) -> nn.Module:
        """Of the encoder."""
        return self.encoder.get_input_embeddings()  # type: ignore[no-any-return]

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Of the encoder."""
        self.encoder.set_input_embeddings(value)

    def gradient_checkpointing_enable(self, *settings: Any, **more: Any) -> None:
        """Of the encoder."""
        self.encoder.gradient_checkpointing_enable(*settings, **more)

    def gradient_checkpointing_disable(self) -> None:
        """Of the encoder."""
        self.encoder.gradient_checkpointing_disable()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        words: Tensor,
        lengths: Tensor,
        criterion: Criterion | None = None,
        decode: bool = False,
        **more: Any,
    ) -> Any:
        """Scores of sentences, their losses and most probable outputs.

        Args:
            input_ids: subwords of W windows, ``[W, S]``.
            attention_mask: which of them are there, ``[W, S]``.
            words: window, first subword, and one after the last, of each word of B sentences,
                ``[B, n, 3]``; -1: a word without subwords, whose vector is 0.
            lengths: words of each sentence, ``[B]``.
            criterion: a loss of each sentence. It is called in here so that what wraps the model
                (DDP) sees every weight at work.
            decode: whether to find the most probable outputs.
            more: as the encoder takes it.

        """
        hidden = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, **more
        ).last_hidden_state
        scores = self.scores(pool(hidden, words, self.config.pooling), lengths)
        loss = best = None
        with torch.autocast(hidden.device.type, enabled=False):  # sums of many scores want float32
            if criterion is not None:
                loss = criterion(self, scores, lengths)
            if decode:
                with torch.no_grad():
                    best = self.decode(scores, lengths)
        return self.output(scores, lengths, loss, best)

    @abstractmethod
    def scores(self, vectors: Tensor, lengths: Tensor) -> Any:
        """Scores by the vectors of words ``[B, n, H]``."""

    @abstractmethod
    def decode(self, scores: Any, lengths: Tensor) -> Any:
        """The most probable outputs."""

    @abstractmethod
    def output(self, scores: Any, lengths: Tensor, loss: Tensor | None, best: Any) -> Any:
        """What `forward` returns."""


def pool(hidden: Tensor, words: Tensor, how: Pooling) -> Tensor:
    """A vector for each word, ``[B, n, H]``, from those of subwords ``[W, S, H]``; 0 if it has none.

    >>> hidden = torch.arange(4.0).view(1, 4, 1)
    >>> words = torch.tensor([[[0, 1, 4], [-1, -1, -1]]])
    >>> [pool(hidden, words, how).flatten().tolist() for how in ("first", "mean", "last")]
    [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]
    """
    flat = hidden.flatten(0, 1)
    window, first, end = words.unbind(-1)
    missing = window < 0
    start = (window * hidden.shape[1] + first).masked_fill(missing, 0).flatten()
    count = (end - first).flatten()  # 0 where there is none
    if how == "first":
        found = flat[start]
    elif how == "last":
        found = flat[start + (count - 1).clamp(min=0)]
    else:
        owners = torch.arange(len(count), device=count.device).repeat_interleave(count)
        within = torch.arange(len(owners), device=count.device)
        within = within - (count.cumsum(0) - count)[owners]
        sums = flat.new_zeros(len(count), flat.shape[1])
        sums = sums.index_add(0, owners, flat[start[owners] + within])
        found = sums / count.clamp(min=1).unsqueeze(1)
    return found.view(*missing.shape, flat.shape[1]).masked_fill(missing.unsqueeze(-1), 0.0)


def core_of(model: Any, kind: type[WordModel]) -> Any:
    """The model inside an adapter."""
    core = model.get_base_model() if hasattr(model, "peft_config") else model
    if not isinstance(core, kind):
        raise ModelError(
            f"expected a {kind.__name__}, got {type(core).__name__}: make one with"
            f" {kind.__name__}.from_encoder"
        )
    return core


def _without_adapter(encoder: Any) -> Any:
    return encoder.get_base_model() if hasattr(encoder, "peft_config") else encoder


def _adapter_of(encoder: Any) -> dict[str, Any] | None:
    """The configuration of an encoder's PEFT adapter, as JSON can hold it."""
    if not hasattr(encoder, "peft_config"):
        return None
    if len(encoder.peft_config) != 1:
        raise ModelError(
            f"expected an encoder with one adapter, got {len(encoder.peft_config)}:"
            f" {', '.join(encoder.peft_config)}"
        )
    (settings,) = encoder.peft_config.values()
    text = json.dumps(settings.to_dict(), default=sorted)  # sets
    return json.loads(text)  # type: ignore[no-any-return]


def _peft() -> Any:
    try:
        return import_module("peft")
    except ImportError as error:
        raise DependencyError(
            "the encoder of this model has low-rank adapters, which are PEFT's, which is not"
            " installed: pip install peft"
        ) from error
