"""An encoder with a chain, or independent labels, over words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self, get_args

from torch import Tensor, nn
from transformers import AutoConfig
from transformers.utils import ModelOutput

from softq.checks import as_scores
from softq.errors import DataError, ModelError
from softq.formats.tags import OUTSIDE, Scheme, spans
from softq.integrations.transformers.token_classification.rows import TokenClassificationCollator
from softq.integrations.transformers.tokens import IGNORED
from softq.integrations.transformers.words.encoder import WordConfig, WordModel
from softq.linear.tagging import Forbidden
from softq.nn import CRF
from softq.numerics import length_mask
from softq.options import Constraints, LabelHead, check_choice
from softq.spaces import Chain, Distribution, Independent

SchemeChoice = Literal["auto", "bio", "iob1", "bioes"]


class TokenClassificationConfig(WordConfig):
    """What a `TokenClassificationModel` is made of.

    Args:
        encoder: configuration of the encoder.
        head: ``"chain"``, a conditional random field over the words; ``"independent"``, a softmax
            for each.
        scheme: tag scheme of the labels; None where they are no tags of entities.
        constraints: where label sequences that break it are forbidden: ``"none"``; ``"decode"``, in
            predictions; ``"target"``, there and in what is trained toward; ``"model"``, there and
            in the model as well.
        more: ``pooling``, ``dropout`` and ``adapter`` of `WordConfig`, and what
            `transformers.PretrainedConfig` takes; ``id2label`` names the labels.

    """

    model_type = "softq-token-classification"

    def __init__(
        self,
        encoder: Any = None,
        head: LabelHead = "chain",
        scheme: Scheme | None = None,
        constraints: Constraints = "none",
        **more: Any,
    ) -> None:
        self.head, self.scheme, self.constraints = head, scheme, constraints
        super().__init__(encoder, **more)
        check_choice("head", head, get_args(LabelHead), ModelError)
        check_choice("constraints", constraints, get_args(Constraints), ModelError)
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


class TokenClassificationModel(WordModel):
    """A tagger: an encoder of Transformers, and a distribution over the labels of words.

    `from_encoder` makes one; `save_pretrained` and `from_pretrained` work as for any other model.

    >>> import torch, transformers
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

    def __init__(self, config: TokenClassificationConfig, encoder: Any = None) -> None:
        """Without an encoder, one of random weights is made by the configuration."""
        super().__init__(config, encoder)
        labels = len(config.labels)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.encoder.hidden_size, labels)
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
        return cls.around(
            encoder,
            scheme=_scheme_of(names) if scheme == "auto" else scheme,
            id2label=dict(enumerate(names)),
            label2id={name: number for number, name in enumerate(names)},
            **settings,
        )

    def collator(
        self, tokenizer: Any, *, max_length: int | None = None, stride: int | None = None
    ) -> TokenClassificationCollator:
        """What makes batches of rows for this model."""
        return TokenClassificationCollator(
            tokenizer,
            self.config.labels,
            pooling=self.config.pooling,
            max_length=self.window(max_length),
            stride=stride,
        )

    def scores(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Scores of labels ``[B, n, K]``, 0 on padding."""
        logits = as_scores("logits", self.classifier(self.dropout(vectors)))
        return logits.masked_fill(~length_mask(lengths, logits.shape[1]).unsqueeze(-1), 0.0)

    def output(
        self, scores: Tensor, lengths: Tensor, loss: Tensor | None, best: Tensor | None
    ) -> TokenClassificationOutput:
        """What `forward` returns."""
        return TokenClassificationOutput(
            loss=loss, logits=scores, lengths=lengths, predictions=best
        )

    def distribution(
        self,
        logits: Tensor,
        lengths: Tensor,
        *,
        constrained: bool = False,
        validate: bool = True,
    ) -> Distribution:
        """The distribution over label sequences: a `softq.Chain`, or `softq.Independent` labels.

        Independent labels that are ``constrained`` are a chain as well, in which what the tag
        scheme forbids has no other score. Without ``validate`` a GPU need not be waited for.
        """
        logits = as_scores("logits", logits)
        if not constrained and self.crf is None:
            return Independent(logits, lengths, validate=validate)
        scheme = self.config.scheme if constrained else None
        between, first, last = (part.to(logits) for part in _forbidden(scheme, self.config.labels))
        if self.crf is not None:
            between = between + self.crf.transitions.to(logits)
            first = first + self.crf.start_transitions.to(logits)
            last = last + self.crf.end_transitions.to(logits)
        return Chain(logits, between, lengths, start=first, end=last, validate=validate)

    def predicted(self, logits: Tensor, lengths: Tensor) -> Distribution:
        """The distribution that predictions are made by."""
        constrained = self.config.constraints != "none"
        return self.distribution(logits, lengths, constrained=constrained)

    def decode(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Most probable labels, ``[B, n]``, -100 on padding."""
        best = self.predicted(scores, lengths).mode()
        return best.masked_fill(~length_mask(lengths, best.shape[1]), IGNORED)


_forbidden = lru_cache(maxsize=16)(Forbidden.by)  # asked for in every step


def _scheme_of(labels: Sequence[str]) -> Scheme | None:
    """The tag scheme by prefixes; BIO rather than IOB1, which has the same."""
    scheme: Scheme = "bioes" if any(label[:2] in ("S-", "E-") for label in labels) else "bio"
    try:
        spans(labels, scheme)
    except ValueError:
        return None
    return scheme if set(labels) - {OUTSIDE} else None
