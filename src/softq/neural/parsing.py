"""What neural parsers have in common, whatever reads the words: distributions, predictions, files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from torch import Tensor

from softq.formats.conllu import TreeSentence
from softq.formats.file_checks import one_of
from softq.linear.features.matrix import batches_of_like_lengths
from softq.linear.parsing import Parse
from softq.neural.generation import evaluating
from softq.neural.modules.biaffine import Biaffine, Views
from softq.neural.saved_module import SavedModule
from softq.neural.tagging import EncodedSentences, SentenceBatch, as_batch
from softq.neural.words import Array
from softq.options import TreeDecoding
from softq.rewards import PartReward
from softq.spaces import ProjectiveTree, SpanningTree

_AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 21}  # arcs of a batch to predict for, padding too


class NeuralParser(SavedModule):
    """Sentences to a distribution over trees.

    A subclass encodes sentences, and scores arcs and relations by biaffine forms.

    Attributes:
        relations: K names.
        spanning: arcs may cross.
        biaffine: what scores arcs and relations.
        decoding: how `parse` chooses a tree unless it is told.

    """

    relations: tuple[str, ...]
    spanning: bool
    biaffine: Biaffine

    def __init__(self) -> None:
        super().__init__()
        self.decoding: TreeDecoding = "mode"

    def encode(self, sentences: Sequence[TreeSentence]) -> EncodedSentences:
        """Sentences as the model reads them."""
        raise NotImplementedError

    def scores(self, batch: Any) -> tuple[Tensor, Views]:
        """Scores of arcs ``[B, head, dependent]`` of a batch of encoded sentences; the views of relations."""
        raise NotImplementedError

    def lacks_tags(self, sentences: Sequence[TreeSentence]) -> bool:
        """Whether no word of sentences has a part of speech, where those to train on had some."""
        return False

    def forward(
        self, sentences: SentenceBatch | Sequence[TreeSentence]
    ) -> tuple[ProjectiveTree | SpanningTree, Views]:
        """The distribution over trees of sentences, and the views that `relation_scores` takes."""
        batch = as_batch(self.encode, sentences).to(self.device)
        arcs, views = self.scores(batch)
        tree = SpanningTree if self.spanning else ProjectiveTree
        # in training a loss that is not finite is noticed, and to look at scores waits for a GPU
        return tree(arcs, batch.lengths, validate=not self.training), views

    def relation_scores(self, views: Views, heads: Tensor) -> Tensor:
        """Scores of every relation between each word and its head ``[B, n]``, ``[B, n, K]``."""
        return self.biaffine.relation_scores(views, heads)

    # --- predictions ------------------------------------------------------------------------------

    def parse(
        self,
        sentences: Sequence[TreeSentence],
        decoding: TreeDecoding | None = None,
        *,
        confidences: bool = False,
        reward: PartReward | None = None,
    ) -> list[Parse]:
        """Trees of sentences, with the marginal probability of each head if ``confidences``.

        By default the most probable tree (``"mode"``); ``"mbr"``, the one of the most right heads
        to be expected. With a reward over arcs, the tree that is expected to earn most of it.
        """
        return self.parse_encoded(
            self.encode(sentences),
            decoding or self.decoding,
            confidences=confidences,
            reward=reward,
        )

    def parse_encoded(
        self,
        encoded: EncodedSentences,
        decoding: TreeDecoding,
        *,
        confidences: bool = False,
        reward: PartReward | None = None,
    ) -> list[Parse]:
        """The same of sentences of `encode`."""
        names, lengths = self.relations, encoded.lengths
        found = [Parse((), (), ()) for _ in lengths]
        for batch, tree, views in self.distributions(encoded):
            searched = decoding == "mode" and reward is None
            heads = tree.mode() if searched else tree.mbr(reward)
            best = self.relation_scores(views, heads).argmax(-1).tolist() if names else None
            sure: list[list[float]] = []
            if confidences:
                own = tree.marginals[..., 1:].gather(1, heads.unsqueeze(1))
                sure = own.squeeze(1).tolist()
            for row, (sentence, tops) in enumerate(
                zip(batch.tolist(), heads.tolist(), strict=True)
            ):
                size = lengths[sentence]
                found[sentence] = Parse(
                    tuple(tops[:size]),
                    tuple(names[k] for k in best[row][:size]) if best else (),
                    tuple(sure[row][:size]) if confidences else (),
                )
        return found

    def distributions(self, encoded: EncodedSentences) -> Iterator[tuple[Array, Any, Views]]:
        """Sentences in batches of like length, their distributions and views."""
        lengths, most = encoded.lengths, _AT_ONCE.get(self.device.type, _AT_ONCE["cpu"])
        with evaluating(self):
            for batch in batches_of_like_lengths(lengths, (lengths + 1) ** 2, most):
                yield batch, *self(encoded.batch(batch))

    # --- on the disk ------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """How trees are predicted."""
        return {"decoding": self.decoding}

    def take_about(self, about: Mapping[str, Any]) -> None:
        """What `about` of this class says."""
        self.decoding = one_of("decoding", about["decoding"], get_args(TreeDecoding))
