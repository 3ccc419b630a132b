"""Neural parsers in `softq.lab.loop`: what `softq.neural.BiaffineParser` is trained toward, and how it is scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from softq.formats.conllu import TreeSentence
from softq.kernels.spanning import MOST_NODES_ON_GPU
from softq.lab.loop import Evaluation
from softq.lab.processes import Workers
from softq.lab.tasks.linear_learner import ScoredSplit
from softq.lab.tasks.neural_learner import NeuralLearner, known_vectors
from softq.lab.tasks.parsing import (
    Learnable,
    check_columns,
    learnable,
    parse_statistics,
    read_corpora,
)
from softq.lab.tasks.parsing_recipe import ParsingRecipe
from softq.linear.parsing import TreeTargets
from softq.metrics import Metric
from softq.metrics.counts import ExampleCounts
from softq.neural.parser import BiaffineParser, EncodedTrees, TreeBatch, TreeVocabulary
from softq.neural.parser_settings import ParserSettings
from softq.neural.words import like_lengths

Array = np.ndarray[Any, Any]

_NO_RELATION = -1  # of a word that was lifted, and of padding
_WARMUP = 0.05


class ParserLosses:
    """Cross-entropies of batches, of trees and of relations.

    Of trees log Z - < E_target[arcs], scores >, whose targets are made once; of relations that of
    each word to its head in each reference, by the reference's weight.
    """

    def __init__(
        self,
        parser: BiaffineParser,
        encoded: EncodedTrees,
        known: Learnable,
        batches: Sequence[Array],
        targets: TreeTargets,
        device: torch.device,
    ) -> None:
        self.model = parser
        self.sentences = [torch.from_numpy(batch) for batch in batches]
        self._batches: list[tuple[TreeBatch, Tensor, list[tuple[Tensor, Tensor, Tensor]]]] = []
        numbers = {name: k for k, name in enumerate(parser.vocabulary.relations)}
        for sentences in batches:
            batch = encoded.batch(sentences)
            size = batch.words.packing.width - 1
            arcs = targets.expected(sentences, size).to(device)
            references = _references(known, sentences, size, numbers)
            moved = [tuple(tensor.to(device) for tensor in one) for one in references]
            self._batches.append((batch.to(device), arcs, moved))  # type: ignore[arg-type]
        # thousands of small kernels on a GPU, not worth recording
        self.without_kernel = {
            number
            for number, (batch, *_) in enumerate(self._batches)
            if parser.spanning and batch.words.packing.width > MOST_NODES_ON_GPU
        }

    def __call__(self, batch: int) -> Tensor:
        """The summed loss of the sentences of a batch."""
        words, arcs, references = self._batches[batch]
        tree, views = self.model(words)
        loss: Tensor = tree.log_partition.sum() - (arcs * tree.scores).sum()
        for heads, relations, weights in references:
            scores = self.model.relation_scores(views, heads)
            losses = functional.cross_entropy(
                scores.transpose(1, 2), relations, ignore_index=_NO_RELATION, reduction="none"
            )
            loss = loss + (losses.sum(1) * weights).sum()
        return loss


def _references(
    known: Learnable, sentences: Array, size: int, numbers: dict[str, int]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Heads and relations ``[B, n]`` of each reference, and its weight ``[B]``, 0 where it is missing."""
    most = max(len(known.possible.heads[i]) for i in sentences) if numbers else 0
    found = []
    for r in range(most):
        heads = np.zeros((len(sentences), size), np.int64)
        relations = np.full_like(heads, _NO_RELATION)
        weights = np.zeros(len(sentences), np.float32)
        for row, i in enumerate(sentences):
            if r >= len(known.possible.heads[i]):
                continue
            mine = known.possible.heads[i][r]
            heads[row, : len(mine)] = mine
            named = [numbers[name] for name in known.trees.relations[i][r]]
            # a lifted word's relation is to the head that it has lost
            kept = np.where(mine == known.trees.heads[i][r], named or _NO_RELATION, _NO_RELATION)
            relations[row, : len(mine)] = kept
            weights[row] = known.trees.weights[i][r] / known.trees.weights[i].sum()
        found.append(tuple(map(torch.from_numpy, (heads, relations, weights))))
    return found  # type: ignore[return-value]


class NeuralParserLearner(NeuralLearner):
    """Training of one neural parser."""

    def __init__(self, recipe: ParsingRecipe, metric: Metric, workers: Workers) -> None:
        _, _, dev, test = read_corpora(recipe.data)
        self._known = known = learnable(recipe.data, recipe.model.spanning)
        self._splits: dict[str, Sequence[TreeSentence]] = {
            "dev": known.sentences if dev is None else dev,
            **({} if test is None else {"test": test}),
        }
        self.parser = _make_parser(recipe, known, [*self._splits.values()])
        vocabulary, training = self.parser.vocabulary, recipe.training
        check_columns(vocabulary.lacks_tags, recipe.data, dev or (), test or ())
        self._encoded = {name: vocabulary.encode(some) for name, some in self._splits.items()}
        encoded = vocabulary.encode(known.sentences)
        random = np.random.default_rng(training.seed % 2**64)
        batches = like_lengths(
            encoded.lengths, training.batch_size, random, words=training.batch_words
        )
        targets = TreeTargets(
            known.possible,
            recipe.objective.name,
            recipe.objective.tau,
            spanning=recipe.model.spanning,
        )
        losses = ParserLosses(self.parser, encoded, known, batches, targets, workers.device)
        super().__init__(
            losses,
            training,
            # a short memory, as Dozat and Manning have it
            optimizer=torch.optim.AdamW(
                self.parser.parameters(),
                lr=recipe.optimizer.learning_rate,
                betas=(0.9, 0.9),
                weight_decay=1e-3,
                fused=True,
            ),
            warmup=_WARMUP,
            counts=[int(encoded.lengths[batch].sum()) for batch in batches],
            graphs=recipe.network.graphs,
            eager=losses.without_kernel,
            entropy=sum(targets.entropy(batch) for batch in batches),
            notes=lambda: {"about": self.parser.notes()},
            evaluate=lambda: float(metric(self._evaluate_split("dev").counts.sum(0))),
            evaluate_best=self._scores,
            workers=workers,
        )

    def _evaluate_split(self, split: str) -> ScoredSplit:
        trees = self.parser.parse_encoded(self._encoded[split], self.parser.decoding)
        outputs = [{"heads": list(tree.heads), "relations": list(tree.relations)} for tree in trees]
        return ScoredSplit(parse_statistics(self._splits[split], trees), outputs)

    def _scores(self) -> Evaluation:
        splits = {name: self._evaluate_split(name) for name in self._splits}
        counts = {name: ExampleCounts.of(one.counts[None]) for name, one in splits.items()}
        measures = {
            "sentences": float(len(self._known.sentences)),
            "lifted": float(self._known.lifted),
            "skipped": float(self._known.skipped),
            "parameters": float(sum(p.numel() for p in self.parser.parameters())),
        }
        return Evaluation(counts, [measures], splits.get("test", splits["dev"]).outputs)


def _make_parser(
    recipe: ParsingRecipe, known: Learnable, others: Sequence[Sequence[TreeSentence]]
) -> BiaffineParser:
    """A parser as a recipe has it, before it is trained."""
    network = recipe.network
    forms = [[sentence.forms for sentence in split] for split in (known.sentences, *others)]
    vectors = known_vectors(network.vectors, forms)
    own = ParserSettings.word_size if vectors is None else vectors.table.shape[1]
    sizes = {field.name: getattr(network, field.name) for field in fields(ParserSettings)}
    relations = {name for one in known.trees.relations for tree in one for name in tree}
    parser = BiaffineParser(
        TreeVocabulary.of(known.sentences, sorted(relations), vectors),
        ParserSettings(**sizes | {"word_size": network.word_size or own}),
        spanning=recipe.model.spanning,
        seed=recipe.training.seed,
    )
    parser.decoding = recipe.decoding
    if vectors is not None:
        parser.take_vectors(vectors)
    return parser
