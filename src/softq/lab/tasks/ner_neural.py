"""Neural taggers in `softq.lab.loop`: what they are trained toward, and how they are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.formats.tags import Scheme, convert
from softq.formats.word_vectors import WordVectors
from softq.kernels.chain import MOST_LABELS_ON_GPU
from softq.lab.processes import Workers
from softq.lab.run import Curves
from softq.lab.tasks.curves import Tagged, tagger_curves
from softq.lab.tasks.files import SPLITS, once
from softq.lab.tasks.linear_learner import ScoredSplit
from softq.lab.tasks.ner_data import gold, read_corpora
from softq.lab.tasks.ner_labels import label
from softq.lab.tasks.ner_recipe import NerData, NerNetwork, NerRecipe, trained_scheme
from softq.lab.tasks.neural_learner import NeuralLearner, known_vectors
from softq.lab.tasks.pretrained import finetuner, model_options
from softq.linear.tagger_training import CRFSettings
from softq.linear.tagging import CorpusTarget, entity_reward
from softq.metrics import Metric, span_statistics
from softq.neural.tagger import SequenceTagger
from softq.neural.tagger_settings import TaggerSettings
from softq.neural.tagging import EncodedSentences, NeuralTagger
from softq.neural.words import WordVocabulary, like_lengths

Array = np.ndarray[Any, Any]


class _Sources(NamedTuple):
    """What word vectors are read from, and for."""

    network: NerNetwork
    data: NerData

    @property
    def files(self) -> tuple[str, ...]:
        """All of them."""
        return self.network.vectors, *self.data.files


@once(1)
def read_known_vectors(sources: _Sources) -> WordVectors | None:
    """The vectors of words of the training, development and test sentences; None where there are none."""
    corpora = read_corpora(sources.data)
    splits = corpora.train, corpora.dev or (), corpora.test or ()
    tokens = [[sentence.tokens for sentence in split] for split in splits]
    return known_vectors(sources.network.vectors, tokens)


def make_tagger(
    recipe: NerRecipe, sentences: Sequence[Sequence[str]], labels: Sequence[str]
) -> NeuralTagger:
    """A tagger as a recipe has it, before it is trained on sentences."""
    corpora, pretrained = read_corpora(recipe.data), recipe.model.pretrained
    longest = recipe.max_segment
    common: dict[str, Any] = {
        "scheme": trained_scheme(recipe.data, corpora.scheme, spelled=longest is not None),
        "constraints": recipe.model.constraints,
        "seed": recipe.training.seed,
    }
    tagger: NeuralTagger
    if pretrained:
        from softq.integrations.transformers.saved import TransformersTagger

        options = model_options(recipe.encoder) | {"head": recipe.encoder.head}
        tagger = TransformersTagger.from_encoder(pretrained, labels, **options, **common)
    else:
        network, vectors = recipe.network, read_known_vectors(_Sources(recipe.network, recipe.data))
        own = TaggerSettings.word_size if vectors is None else vectors.table.shape[1]
        sizes = {field.name: getattr(network, field.name) for field in fields(TaggerSettings)}
        settings = TaggerSettings(**sizes | {"word_size": network.word_size or own})
        vocabulary = WordVocabulary.of(sentences, vectors)
        tagger = bilstm = SequenceTagger(
            vocabulary, labels, settings, max_segment=longest, **common
        )
        if vectors is not None:
            bilstm.take_vectors(vectors)
    tagger.decoding, tagger.file_scheme = recipe.model.decoding, corpora.scheme
    return tagger


class _ExpectedParts(NamedTuple):
    """What the targets of a batch expect: labels ``[B, n, K]``; neighbours, first and last labels in sum."""

    labels: Tensor
    pairs: Tensor
    first: Tensor
    last: Tensor

    @classmethod
    def of(cls, target: CorpusTarget, lengths: Tensor, device: torch.device) -> _ExpectedParts:
        """Of a target of sentences of these lengths."""
        expected, ends = torch.from_numpy(target.labels), lengths.cumsum(0)  # [T, K], [B]
        rows = torch.split(expected, lengths.tolist())
        parts = (
            torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True),
            torch.from_numpy(target.pairs).float(),
            expected[ends - lengths].sum(0),
            expected[ends - 1].sum(0),
        )
        return cls(*(part.to(device) for part in parts))


class TaggerLosses:
    """Cross-entropies of batches: log Z - < E_target[parts], scores >.

    Targets depend on the references alone, and are made once.
    """

    def __init__(
        self,
        tagger: NeuralTagger,
        encoded: EncodedSentences,
        batches: Sequence[Array],
        targets: Sequence[CorpusTarget],
        device: torch.device,
    ) -> None:
        self.model = tagger
        self.sentences = [torch.from_numpy(batch) for batch in batches]
        made = [encoded.batch(batch) for batch in batches]
        self._expected = [
            _ExpectedParts.of(target, batch.lengths, device)
            for target, batch in zip(targets, made, strict=True)
        ]
        self._batches = [batch.to(device) for batch in made]

    def __call__(self, batch: int) -> Tensor:
        """The summed loss of the sentences of a batch."""
        words, expected = self._batches[batch], self._expected[batch]
        scores = self.model.scores(words)
        loss = self.model.distribution(scores, words.lengths).log_partition.sum()
        # what the model forbids is left out: the target gives it nothing
        for part, learnt in zip(expected, (scores, *self.model.neighbour_scores()), strict=True):
            if learnt is not None:
                loss = loss - (part * learnt).sum()
        return loss


class NeuralTaggerLearner(NeuralLearner):
    """Training of one neural tagger on all data."""

    def __init__(self, recipe: NerRecipe, metric: Metric, workers: Workers) -> None:
        self._labelled, self._corpora = label(recipe), read_corpora(recipe.data)
        names, references = self._labelled.names, self._labelled.references
        splits = {
            split: [one.tokens for one in sentences]
            for split in SPLITS
            if (sentences := getattr(self._corpora, split)) is not None
        }
        self.splits = [split for split in SPLITS[1:] if split in {"dev", *splits}]
        self.tagger = make_tagger(recipe, splits["train"], names)
        self._encoded = {split: self.tagger.encode(words) for split, words in splits.items()}
        weight, credit = recipe.annotations.entity_weight, recipe.annotations.type_credit
        segments = self.tagger.segments
        settings = CRFSettings(
            names,
            recipe.objective.name,
            recipe.objective.tau,
            segments.reward(weight) if segments else entity_reward(names, weight, credit),
            self.tagger.scheme,
            recipe.model.constraints,
            max_segment=recipe.max_segment,
        )
        train, training = self._encoded["train"], recipe.training
        random = np.random.default_rng(training.seed % 2**64)
        batches = like_lengths(train.lengths, training.batch_size, random)
        targets = [settings.target(references.take(batch)) for batch in batches]
        rate, parameters = recipe.optimizer.learning_rate, self.tagger.parameters()
        optimizer: torch.optim.Optimizer
        if recipe.model.pretrained:
            optimizer = finetuner(self.tagger, recipe.encoder, rate, workers.device)
        else:
            optimizer = torch.optim.Adam(parameters, lr=rate, fused=True)
        super().__init__(
            TaggerLosses(self.tagger, train, batches, targets, workers.device),
            training,
            optimizer=optimizer,
            warmup=recipe.encoder.warmup if recipe.model.pretrained else 0.0,
            graphs=recipe.network.graphs
            and not (recipe.model.pretrained or segments)
            and len(names) <= MOST_LABELS_ON_GPU,
            entropy=sum(target.entropy for target in targets),
            metric=metric,
            workers=workers,
        )

    def _evaluate_split(self, split: str) -> ScoredSplit:
        """The tagger on a split; without a development set, on the training sentences."""
        sentences = getattr(self._corpora, split)
        if sentences is None:
            true = [self._labelled.best(i) for i in range(len(self._corpora.train))]
            return self._score("train", true, self.tagger.scheme)
        return self._score(split, gold(sentences), self._corpora.scheme)

    def _score(
        self, split: str, true: Sequence[Sequence[str]], scheme: Scheme | None
    ) -> ScoredSplit:
        """Scores by labels that follow this scheme."""
        predicted = self.tagger.decode(self._encoded[split], self.tagger.decoding)
        own = self.tagger.scheme
        if own is not None and scheme is not None and own != scheme:
            predicted = [convert(labels, own, scheme) for labels in predicted]
        return ScoredSplit(span_statistics(true, predicted, scheme).rows, predicted)

    def _curves(self) -> Curves | None:
        tagged = {
            split: Tagged(list(self.tagger.distributions(self._encoded[split])), gold(sentences))
            for split in ("dev", "test")
            if (sentences := getattr(self._corpora, split))
        }
        if "dev" not in tagged:
            return None
        return tagger_curves(
            self.tagger.labels,
            self.tagger.scheme,
            self._corpora.scheme,
            tagged["dev"],
            tagged.get("test"),
            self.tagger.segments,
        )
