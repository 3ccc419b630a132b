"""An encoder with a chain, or independent labels, over words."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from softq.checks import as_scores
from softq.errors import DataError, DependencyError, ModelError
from softq.formats.tags import OUTSIDE, Scheme, spans
from softq.integrations.transformers.loading import loading, quiet
from softq.integrations.transformers.tokens import IGNORED
from softq.linear.tagging import Forbidden
from softq.nn import CRF
from softq.numerics import length_mask
from softq.options import Constraints
from softq.spaces import Chain, Distribution, Independent

Head = Literal["chain", "independent"]
Pooling = Literal["first", "mean", "last"]
SchemeChoice = Literal["auto", "bio", "iob1", "bioes"]

_CHOICES: dict[str, Any] = {
    "head": Head,
    "pooling": Pooling,
    "constraints": Constraints,
}

_SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


class TokenClassificationConfig(PretrainedConfig):  # type: ignore[misc]  # of no type that mypy knows
    """What a `TokenClassificationModel` is made of.

    Args:
        encoder: configuration of the encoder.
        head: ``"chain"``, a conditional random field over the words; ``"independent"``, a softmax
            for each.
        pooling: which subword stands for a word: ``"first"``, ``"last"``, or their ``"mean"``.
        scheme: tag scheme of the labels; None where they are no tags of entities.
        constraints: where label sequences that break it are forbidden: ``"none"``; ``"decode"``, in
            predictions; ``"target"``, there and in what is trained toward; ``"model"``, there and
            in the model as well.
        dropout: of the vectors of words.
        adapter: configuration of low-rank adapters inside the encoder, where there are any.
        more: as `transformers.PretrainedConfig` takes it; ``id2label`` names the labels.

    """

    model_type = "softq-token-classification"
    sub_configs = {"encoder": AutoConfig}  # noqa: RUF012  # as all of Transformers' classes have it

    def __init__(
        self,
        encoder: Any = None,
        head: Head = "chain",
        pooling: Pooling = "first",
        scheme: Scheme | None = None,
        constraints: Constraints = "none",
        dropout: float = 0.1,
        adapter: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        if isinstance(encoder, dict):
            given = dict(encoder)
            encoder = AutoConfig.for_model(given.pop("model_type"), **given)
        self.encoder, self.head, self.pooling = encoder, head, pooling
        self.scheme, self.constraints = scheme, constraints
        self.dropout, self.adapter = dropout, adapter
        super().__init__(**more)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                raise ModelError(
                    f"{name} must be one of {', '.join(get_args(choices))}, got"
                    f" {getattr(self, name)!r}"
                )
        if constraints != "none" and scheme is None:
            raise ModelError(
                f"constraints={constraints!r} need a tag scheme: give scheme='bio', 'iob1' or"
                " 'bioes', or leave constraints at 'none' where labels are no tags of entities"
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, by their ids."""
        return tuple(self.id2label[number] for number in range(len(self.id2label)))


AutoConfig.register(TokenClassificationConfig.model_type, TokenClassificationConfig, exist_ok=True)


@dataclass
class TokenClassificationOutput(ModelOutput):  # type: ignore[misc]  # of no type that mypy knows
    """What a `TokenClassificationModel` returns.

    Attributes:
        loss: what the criterion returned, one number for each of B sentences.
        logits: scores of labels, ``[B, n, K]``, 0 on padding.
        lengths: words of each sentence, ``[B]``.
        predictions: most probable labels, ``[B, n]``, -100 on padding.

    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    lengths: Tensor | None = None
    predictions: Tensor | None = None


Criterion = Callable[["TokenClassificationModel", Tensor, Tensor], Tensor]
"""Of a model, logits and lengths: a loss for each sentence."""


class TokenClassificationModel(PreTrainedModel):  # type: ignore[misc]  # of no type that mypy knows
    """A tagger: an encoder of Transformers, and a distribution over the labels of words.

    `from_encoder` makes one; `save_pretrained` and `from_pretrained` work as for any other model.

    >>> import transformers
    >>> encoder = transformers.BertModel(transformers.BertConfig(
    ...     vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))
    >>> model = TokenClassificationModel.from_encoder(encoder, ["O", "B-PER", "I-PER"], constraints="decode")
    >>> words = torch.tensor([[[0, 1, 2], [0, 2, 4]]])  # window, first subword, one after the last
    >>> output = model(torch.tensor([[2, 7, 8, 9, 3]]), words=words, lengths=torch.tensor([2]))
    >>> output.logits.shape, model.distribution(output.logits, output.lengths)
    (torch.Size([1, 2, 3]), Chain(batch_shape=(1,), event_shape=(2,)))

    """

    config_class = TokenClassificationConfig
    base_model_prefix = "tagger"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True  # Trainer counts labels where a model says so
    _supports_sdpa = _supports_flash_attn = True

    def __init__(self, config: TokenClassificationConfig, encoder: Any = None) -> None:
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
        size, labels = config.encoder.hidden_size, len(config.labels)
        self.encoder = encoder
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(size, labels)
        self.crf = CRF(labels, batch_first=True) if config.head == "chain" else None
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Of the head; encoders have rules of their own."""
        if module is self.classifier:
            nn.init.normal_(self.classifier.weight, std=0.02)
            nn.init.zeros_(self.classifier.bias)
        elif isinstance(module, CRF):
            module.reset_parameters()

    @classmethod
    def from_encoder(
        cls,
        encoder: Any,
        labels: Sequence[str],
        *,
        scheme: SchemeChoice | None = "auto",
        **settings: Any,
    ) -> Self:
        """A tagger with an encoder that was trained already, and a new head.

        Args:
            encoder: a model of Transformers, with PEFT adapters or without; a folder of
                ``save_pretrained``; or a name that Transformers know. The latter two are loaded in
                float32.
            labels: their names, in the order of their ids.
            scheme: tag scheme of the labels; ``"auto"``: ``"bioes"`` or ``"bio"`` by their
                prefixes, None where they are no tags of entities.
            settings: ``head``, ``pooling``, ``constraints`` and ``dropout`` of
                `TokenClassificationConfig`.

        """
        names = [str(label) for label in labels]
        if not names or len(set(names)) < len(names):
            raise DataError(f"expected the names of one label or more, all different, got {labels}")
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
            scheme=_scheme_of(names) if scheme == "auto" else scheme,
            adapter=_adapter_of(encoder),
            id2label=dict(enumerate(names)),
            label2id={name: number for number, name in enumerate(names)},
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

    def head_parameters(self) -> Iterable[nn.Parameter]:
        """Of what was not part of the encoder."""
        yield from self.classifier.parameters()
        if self.crf is not None:
            yield from self.crf.parameters()

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
    ) -> TokenClassificationOutput:
        """Scores of the labels of words.

        Args:
            input_ids: subwords of W windows, ``[W, S]``.
            attention_mask: which of them are there, ``[W, S]``.
            words: window, first subword, and one after the last, of each word of B sentences,
                ``[B, n, 3]``; -1: a word without subwords, whose vector is 0.
            lengths: words of each sentence, ``[B]``.
            criterion: a loss of each sentence. It is called in here so that what wraps the model
                (DDP) sees every weight at work.
            decode: whether to find the most probable labels.
            more: as the encoder takes it.

        """
        hidden = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, **more
        ).last_hidden_state
        vectors = pool(hidden, words, self.config.pooling)
        logits = as_scores("logits", self.classifier(self.dropout(vectors)))
        real = length_mask(lengths, logits.shape[1])
        logits = logits.masked_fill(~real.unsqueeze(-1), 0.0)
        loss = predictions = None
        with torch.autocast(logits.device.type, enabled=False):  # sums of many scores want float32
            if criterion is not None:
                loss = criterion(self, logits, lengths)
            if decode:
                with torch.no_grad():
                    predictions = self.decode(logits, lengths)
        return TokenClassificationOutput(
            loss=loss, logits=logits, lengths=lengths, predictions=predictions
        )

    def distribution(
        self, logits: Tensor, lengths: Tensor, *, constrained: bool = False
    ) -> Distribution:
        """The distribution over label sequences: a `softq.Chain`, or `softq.Independent` labels.

        Independent labels that are ``constrained`` are a chain as well, in which what the tag
        scheme forbids has no other score.
        """
        logits = as_scores("logits", logits)
        if not constrained and self.crf is None:
            return Independent(logits, lengths)
        scheme = self.config.scheme if constrained else None
        between, first, last = (part.to(logits) for part in _forbidden(scheme, self.config.labels))
        if self.crf is not None:
            between = between + self.crf.transitions.to(logits)
            first = first + self.crf.start_transitions.to(logits)
            last = last + self.crf.end_transitions.to(logits)
        return Chain(logits, between, lengths, start=first, end=last)

    def predicted(self, logits: Tensor, lengths: Tensor) -> Distribution:
        """The distribution that predictions are made by."""
        constrained = self.config.constraints != "none"
        return self.distribution(logits, lengths, constrained=constrained)

    def decode(self, logits: Tensor, lengths: Tensor) -> Tensor:
        """Most probable labels, ``[B, n]``, -100 on padding."""
        best = self.predicted(logits, lengths).mode()
        return best.masked_fill(~length_mask(lengths, best.shape[1]), IGNORED)


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


_forbidden = lru_cache(maxsize=16)(Forbidden.by)  # asked for in every step


def _scheme_of(labels: Sequence[str]) -> Scheme | None:
    """The tag scheme by prefixes; BIO rather than IOB1, which has the same."""
    scheme: Scheme = "bioes" if any(label[:2] in ("S-", "E-") for label in labels) else "bio"
    try:
        spans(labels, scheme)
    except ValueError:
        return None
    return scheme if set(labels) - {OUTSIDE} else None


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
