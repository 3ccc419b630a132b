"""Neural taggers in `softq.lab.loop`: what `softq.neural.SequenceTagger` is trained toward, and how it is scored."""

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
from softq.lab.loop import Evaluation
from softq.lab.processes import Workers
from softq.lab.tasks.files import once
from softq.lab.tasks.linear_learner import ScoredSplit
from softq.lab.tasks.ner_data import gold, read_corpora
from softq.lab.tasks.ner_labels import label
from softq.lab.tasks.ner_recipe import NerData, NerNetwork, NerRecipe, scheme_of
from softq.lab.tasks.neural_learner import NeuralLearner, known_vectors
from softq.linear.tagger_training import CRFSettings
from softq.linear.tagging import CorpusTarget, entity_reward
from softq.metrics import Metric, span_statistics
from softq.metrics.counts import ExampleCounts
from softq.neural.tagger import SequenceTagger
from softq.neural.tagger_settings import TaggerSettings
from softq.neural.words import EncodedWords, WordBatch, WordVocabulary, like_lengths

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
) -> SequenceTagger:
    """A tagger as a recipe has it, before it is trained on sentences."""
    corpora, network = read_corpora(recipe.data), recipe.network
    vectors = read_known_vectors(_Sources(network, recipe.data))
    own = TaggerSettings.word_size if vectors is None else vectors.table.shape[1]
    sizes = {field.name: getattr(network, field.name) for field in fields(TaggerSettings)}
    tagger = SequenceTagger(
        WordVocabulary.of(sentences, vectors),
        labels,
        TaggerSettings(**sizes | {"word_size": network.word_size or own}),
        scheme=scheme_of(recipe.data.train_scheme) or corpora.scheme,
        constraints=recipe.model.constraints,
        seed=recipe.training.seed,
    )
    tagger.decoding, tagger.file_scheme = recipe.model.decoding, corpora.scheme
    if vectors is not None:
        tagger.take_vectors(vectors)
    return tagger


class TaggerLosses:
    """Cross-entropies of batches: log Z - < E_target[parts], scores >.

    Targets depend on the references alone, and are made once.
    """

    def __init__(
        self,
        tagger: SequenceTagger,
        encoded: EncodedWords,
        batches: Sequence[Array],
        targets: Sequence[CorpusTarget],
        device: torch.device,
    ) -> None:
        self.model = tagger
        self.sentences = [torch.from_numpy(batch) for batch in batches]
        self._batches = [encoded.batch(batch).to(device) for batch in batches]
        self._targets = [
            _on_labels(target, batch) for target, batch in zip(targets, self._batches, strict=True)
        ]

    def __call__(self, batch: int) -> Tensor:
        """The summed loss of the sentences of a batch."""
        words, (labels, pairs) = self._batches[batch], self._targets[batch]
        scores = self.model.scores(words)
        p = self.model.distribution(scores, words.packing.lengths)
        # what the model forbids is left out: the target gives it nothing
        expected = (labels * scores).sum()
        if self.model.transitions is not None:
            expected = expected + (pairs * self.model.transitions).sum()
        return p.log_partition.sum() - expected


def _on_labels(target: CorpusTarget, batch: WordBatch) -> tuple[Tensor, Tensor]:
    """Expected labels ``[B, n, K]`` and the sum of neighbours ``[K, K]`` on the batch's device."""
    packing = batch.packing
    expected = torch.from_numpy(target.labels)
    labels = expected.new_zeros(len(packing.lengths), packing.width, expected.shape[1])
    real = torch.arange(packing.width) < packing.lengths.cpu().unsqueeze(1)
    labels[real] = expected
    device = packing.lengths.device
    return labels.to(device), torch.from_numpy(target.pairs).float().to(device)


class NeuralTaggerLearner(NeuralLearner):
    """Training of one neural tagger on all data."""

    def __init__(self, recipe: NerRecipe, metric: Metric, workers: Workers) -> None:
        self._labelled, self._corpora = label(recipe), read_corpora(recipe.data)
        corpora = self._corpora
        names, references = self._labelled.names, self._labelled.references
        train = [sentence.tokens for sentence in corpora.train]
        self.tagger = make_tagger(recipe, train, names)
        weight, credit = recipe.annotations.entity_weight, recipe.annotations.type_credit
        settings = CRFSettings(
            names,
            recipe.objective.name,
            recipe.objective.tau,
            entity_reward(names, weight, credit),
            self.tagger.scheme,
            recipe.model.constraints,
        )
        self._encoded = {
            split: self.tagger.vocabulary.encode([one.tokens for one in sentences])
            for split in ("train", "dev", "test")
            if (sentences := getattr(corpora, split)) is not None
        }
        random = np.random.default_rng(recipe.training.seed % 2**64)
        batches = like_lengths(self._encoded["train"].lengths, recipe.training.batch_size, random)
        targets = [settings.target(references.take(batch)) for batch in batches]
        super().__init__(
            TaggerLosses(self.tagger, self._encoded["train"], batches, targets, workers.device),
            recipe.training,
            optimizer=torch.optim.Adam(
                self.tagger.parameters(), lr=recipe.optimizer.learning_rate, fused=True
            ),
            graphs=recipe.network.graphs and len(names) <= MOST_LABELS_ON_GPU,
            entropy=sum(target.entropy for target in targets),
            notes=lambda: {"about": self.tagger.notes()},
            evaluate=lambda: float(metric(self._evaluate_split("dev").counts.sum(0))),
            evaluate_best=self._scores,
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

    def _scores(self) -> Evaluation:
        splits = {"dev": self._evaluate_split("dev")}
        if "test" in self._encoded:
            splits["test"] = self._evaluate_split("test")
        counts = {name: ExampleCounts.of(one.counts[None]) for name, one in splits.items()}
        parameters = sum(parameter.numel() for parameter in self.tagger.parameters())
        outputs = splits.get("test", splits["dev"]).outputs
        return Evaluation(counts, [{"parameters": float(parameters)}], outputs)
