"""An encoder with biaffine scores of arcs and relations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig
from transformers.utils import ModelOutput

from softq.checks import as_scores
from softq.errors import DataError
from softq.integrations.transformers.dependency_parsing.rows import DependencyCollator
from softq.integrations.transformers.tokens import IGNORED
from softq.integrations.transformers.words.encoder import WordConfig, WordModel
from softq.neural.modules.biaffine import Biaffine, Views
from softq.numerics import length_mask
from softq.options import TreeDecoding
from softq.spaces import ProjectiveTree, SpanningTree


class DependencyConfig(WordConfig):
    """What a `DependencyModel` is made of.

    Args:
        encoder: configuration of the encoder.
        relations: names of the K relations; none: arcs alone are scored.
        spanning: arcs may cross.
        arc_size: of the views of a word that arcs are scored by.
        relation_size: of those that relations are scored by.
        dropout: of the vectors of words and of their views, the same coordinates for all words of a
            sentence.
        more: ``pooling`` and ``adapter`` of `WordConfig`, and what
            `transformers.PretrainedConfig` takes.

    """

    model_type = "softq-dependency-parsing"

    def __init__(
        self,
        encoder: Any = None,
        relations: Sequence[str] = (),
        spanning: bool = False,
        arc_size: int = 500,
        relation_size: int = 100,
        dropout: float = 0.33,
        **more: Any,
    ) -> None:
        self.relations, self.spanning = tuple(relations), spanning
        self.arc_size, self.relation_size = arc_size, relation_size
        super().__init__(encoder, dropout=dropout, **more)


AutoConfig.register(DependencyConfig.model_type, DependencyConfig, exist_ok=True)


class TreeScores(NamedTuple):
    """Of arcs ``[B, head, dependent]``, and the views that relations are scored by."""

    arcs: Tensor
    views: Views


@dataclass
class DependencyOutput(ModelOutput):  # type: ignore[misc]  # of no type that mypy knows
    """What a `DependencyModel` returns.

    Attributes:
        loss: what the criterion returned, one number for each of B sentences.
        arcs: scores of arcs, ``[B, n+1, n+1]``, head and dependent, 0 the root.
        views: each position as head and as dependent of a relation.
        lengths: words of each sentence, ``[B]``.
        predictions: heads and relations of the most probable trees, ``[B, n]`` both, -100 on
            padding.

    """

    loss: Tensor | None = None
    arcs: Tensor | None = None
    views: Views | None = None
    lengths: Tensor | None = None
    predictions: tuple[Tensor, Tensor] | None = None

    @property
    def scores(self) -> TreeScores:
        """As the methods of a `DependencyModel` take them."""
        return TreeScores(self.arcs, self.views)  # type: ignore[arg-type]  # of a model


class DependencyModel(WordModel):
    """A parser: an encoder of Transformers, and a distribution over the trees of sentences.

    Biaffine forms score arcs and relations (Dozat and Manning 2017), the root by a vector of its
    own. `from_encoder` makes one; `save_pretrained` and `from_pretrained` work as for any other
    model.

    >>> import torch, transformers
    >>> encoder = transformers.BertModel(transformers.BertConfig(
    ...     vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))
    >>> model = DependencyModel.from_encoder(encoder, ["root", "nsubj"], arc_size=8, relation_size=4)
    >>> words = torch.tensor([[[0, 1, 2], [0, 2, 4]]])  # window, first subword, one after the last
    >>> output = model(torch.tensor([[2, 7, 8, 9, 3]]), words=words, lengths=torch.tensor([2]))
    >>> output.arcs.shape, model.distribution(output.scores, output.lengths)
    (torch.Size([1, 3, 3]), ProjectiveTree(batch_shape=(1,), event_shape=(2,)))

    """

    config_class = DependencyConfig
    base_model_prefix = "parser"

    def __init__(self, config: DependencyConfig, encoder: Any = None) -> None:
        """Without an encoder, one of random weights is made by the configuration."""
        super().__init__(config, encoder)
        size = config.encoder.hidden_size
        self.tree: type[ProjectiveTree] | type[SpanningTree]
        self.tree = SpanningTree if config.spanning else ProjectiveTree
        self.root = nn.Embedding(1, size)
        self.biaffine = Biaffine(size, len(config.relations), config.arc_size, config.relation_size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Of the head; encoders have rules of their own."""
        if module is self.root:
            nn.init.zeros_(module.weight)
        elif isinstance(module, Biaffine):
            nn.init.xavier_uniform_(module.views.weight)
            module.begin()

    @classmethod
    def from_encoder(cls, encoder: Any, relations: Sequence[str], **settings: Any) -> Self:
        """A parser with an encoder that was trained already, and a new head.

        Args:
            encoder: a model of Transformers, with PEFT adapters or without; a folder of
                ``save_pretrained``; or a name that Transformers know. The latter two are loaded in
                float32.
            relations: their names, in the order of their ids; none for a parser of bare trees.
            settings: ``spanning``, ``pooling``, ``arc_size``, ``relation_size`` and ``dropout`` of
                `DependencyConfig`.

        """
        names = [str(relation) for relation in relations]
        if len(set(names)) < len(names):
            raise DataError(f"expected the names of relations, all different, got {relations}")
        return cls.around(encoder, relations=names, **settings)

    def collator(
        self, tokenizer: Any, *, max_length: int | None = None, stride: int | None = None
    ) -> DependencyCollator:
        """What makes batches of rows for this model."""
        return DependencyCollator(
            tokenizer,
            self.config.relations,
            spanning=self.config.spanning,
            max_length=self.window(max_length),
            stride=stride,
        )

    def scores(self, vectors: Tensor, lengths: Tensor) -> TreeScores:
        """Scores of arcs, and what relations are scored by."""
        root = self.root.weight.to(vectors).expand(len(vectors), 1, -1)
        seen = self.biaffine(self._drop(torch.cat([root, vectors], 1)))
        arcs, (head, dependent) = self.biaffine.arcs(self._drop(seen))
        own = self.biaffine.arc.weight.dtype  # relations are scored outside of autocast
        return TreeScores(as_scores("arcs", arcs), (head.to(own), dependent.to(own)))

    def _drop(self, x: Tensor) -> Tensor:
        """Dropout of the same coordinates at all positions of a sentence (variational dropout)."""
        dropped = functional.dropout1d(x.transpose(1, 2), self.config.dropout, self.training)
        return dropped.transpose(1, 2)

    def distribution(
        self, scores: TreeScores, lengths: Tensor, *, validate: bool = True
    ) -> ProjectiveTree | SpanningTree:
        """The distribution over trees; without ``validate`` a GPU need not be waited for."""
        return self.tree(scores.arcs, lengths, validate=validate)

    def relation_scores(self, scores: TreeScores, heads: Tensor) -> Tensor:
        """Scores of every relation between each word and its head ``[B, n]``, ``[B, n, K]``."""
        return self.biaffine.relation_scores(scores.views, heads)

    def decode(
        self, scores: TreeScores, lengths: Tensor, decoding: TreeDecoding = "mode"
    ) -> tuple[Tensor, Tensor]:
        """Heads and relations ``[B, n]``, -100 on padding and where there are no relations.

        By default the most probable trees (``"mode"``); ``"mbr"``, those of the most right heads to
        be expected.
        """
        tree = self.distribution(scores, lengths)
        heads = tree.mode() if decoding == "mode" else tree.mbr()
        padding = ~length_mask(lengths, heads.shape[1])
        relations = torch.full_like(heads, IGNORED)
        if self.config.relations:
            relations = self.relation_scores(scores, heads).argmax(-1)
        return heads.masked_fill(padding, IGNORED), relations.masked_fill(padding, IGNORED)

    def output(
        self, scores: TreeScores, lengths: Tensor, loss: Tensor | None, best: Any
    ) -> DependencyOutput:
        """What `forward` returns."""
        return DependencyOutput(
            loss=loss, arcs=scores.arcs, views=scores.views, lengths=lengths, predictions=best
        )
