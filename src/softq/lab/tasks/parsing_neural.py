"""Neural parsers in `softq.lab.loop`: what they are trained toward, and how they are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.formats.conllu import TreeSentence
from softq.kernels.spanning import MOST_NODES_ON_GPU
from softq.lab.processes import Workers
from softq.lab.run import Curves
from softq.lab.tasks.curves import Believed, uncertainty
from softq.lab.tasks.linear_learner import ScoredSplit
from softq.lab.tasks.neural_learner import NeuralLearner, known_vectors
from softq.lab.tasks.parsing import (
    Learnable,
    check_columns,
    learnable,
    parse_statistics,
    read_corpora,
)
from softq.lab.tasks.parsing_recipe import OF_EVERY_PARSER, ParsingRecipe
from softq.lab.tasks.pretrained import finetuner, model_options
from softq.linear.parsing import TreeTargets
from softq.metrics import Metric
from softq.neural.parser import BiaffineParser, TreeVocabulary
from softq.neural.parser_settings import ParserSettings
from softq.neural.parsing import NeuralParser
from softq.neural.tagging import EncodedSentences
from softq.neural.words import like_lengths

Array = np.ndarray[Any, Any]

_NO_RELATION = -100  # of a word that was lifted, and of padding
_WARMUP = 0.05


class ParserLosses:
    """Cross-entropies of batches, of trees and of relations.

    Of trees log Z - < E_target[arcs], scores >, whose targets are made once; of relations that of
    each word to its head in each reference, by the reference's weight.
    """

    def __init__(
        self,
        parser: NeuralParser,
        encoded: EncodedSentences,
        known: Learnable,
        batches: Sequence[Array],
        targets: TreeTargets,
        device: torch.device,
    ) -> None:
        self.model = parser
        self.sentences = [torch.from_numpy(batch) for batch in batches]
        self._batches: list[tuple[Any, Tensor, list[tuple[Tensor, Tensor, Tensor]]]] = []
        numbers = {name: k for k, name in enumerate(parser.relations)}
        for sentences in batches:
            batch = encoded.batch(sentences)
            arcs = targets.expected(sentences, batch.width).to(device)
            references = _references(known, sentences, batch.width, numbers)
            moved = [tuple(tensor.to(device) for tensor in one) for one in references]
            self._batches.append((batch.to(device), arcs, moved))  # type: ignore[arg-type]
        # thousands of small kernels on a GPU, not worth recording
        self.without_kernel = {
            number
            for number, (_, arcs, _) in enumerate(self._batches)
            if parser.spanning and arcs.shape[1] > MOST_NODES_ON_GPU
        }

    def __call__(self, batch: int) -> Tensor:
        """The summed loss of the sentences of a batch."""
        words, arcs, references = self._batches[batch]
        tree, views = self.model(words)
        loss: Tensor = tree.log_partition.sum() - (arcs * tree.scores).sum()
        for heads, relations, weights in references:
            losses = self.model.biaffine.relation_losses(views, heads, relations)
            loss = loss + (losses * weights).sum()
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
        self._trees: dict[str, Sequence[TreeSentence]] = {
            "dev": known.sentences if dev is None else dev,
            **({} if test is None else {"test": test}),
        }
        self.splits, training = [*self._trees], recipe.training
        self.parser = _make_parser(recipe, known, [*self._trees.values()])
        check_columns(self.parser.lacks_tags, recipe.data, dev or (), test or ())
        self._encoded = {name: self.parser.encode(some) for name, some in self._trees.items()}
        encoded = self.parser.encode(known.sentences)
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
        rate, parameters = recipe.optimizer.learning_rate, self.parser.parameters()
        if recipe.model.pretrained:
            optimizer = finetuner(self.parser, recipe.encoder, rate, workers.device)
        else:  # a short memory, as Dozat and Manning have it
            optimizer = torch.optim.AdamW(
                parameters, lr=rate, betas=(0.9, 0.9), weight_decay=1e-3, fused=True
            )
        losses = ParserLosses(self.parser, encoded, known, batches, targets, workers.device)
        words = [int(encoded.lengths[batch].sum()) for batch in batches]
        super().__init__(
            losses,
            training,
            optimizer=optimizer,
            warmup=recipe.encoder.warmup if recipe.model.pretrained else _WARMUP,
            counts=None if recipe.model.pretrained else words,
            graphs=recipe.network.graphs and not recipe.model.pretrained,
            eager=losses.without_kernel,
            entropy=sum(targets.entropy(batch) for batch in batches),
            metric=metric,
            workers=workers,
        )

    def _evaluate_split(self, split: str) -> ScoredSplit:
        trees = self.parser.parse_encoded(self._encoded[split], self.parser.decoding)
        outputs = [{"heads": list(tree.heads), "relations": list(tree.relations)} for tree in trees]
        return ScoredSplit(parse_statistics(self._trees[split], trees), outputs)

    def _measures(self) -> dict[str, float]:
        known = self._known
        return super()._measures() | {
            "sentences": float(len(known.sentences)),
            "lifted": float(known.lifted),
            "skipped": float(known.skipped),
        }

    def _curves(self) -> Curves | None:
        believed = {
            name: Believed(
                [(numbers, tree) for numbers, tree, _ in self.parser.distributions(encoded)],
                [np.array(one.heads) for one in self._trees[name]],
            )
            for name, encoded in self._encoded.items()
        }
        if self._trees["dev"] is self._known.sentences:  # which it was trained on
            return None
        return uncertainty("heads", believed["dev"], believed.get("test"))


def _make_parser(
    recipe: ParsingRecipe, known: Learnable, others: Sequence[Sequence[TreeSentence]]
) -> NeuralParser:
    """A parser as a recipe has it, before it is trained."""
    network, pretrained = recipe.network, recipe.model.pretrained
    relations = sorted({name for one in known.trees.relations for tree in one for name in tree})
    common: dict[str, Any] = {"spanning": recipe.model.spanning, "seed": recipe.training.seed}
    parser: NeuralParser
    if pretrained:
        from softq.integrations.transformers.saved import TransformersParser

        sizes = {name: getattr(network, name) for name in OF_EVERY_PARSER}
        options = model_options(recipe.encoder) | sizes | common
        parser = TransformersParser.from_encoder(pretrained, relations, **options)
    else:
        forms = [[sentence.forms for sentence in split] for split in (known.sentences, *others)]
        vectors = known_vectors(network.vectors, forms)
        own = ParserSettings.word_size if vectors is None else vectors.table.shape[1]
        sizes = {field.name: getattr(network, field.name) for field in fields(ParserSettings)}
        settings = ParserSettings(**sizes | {"word_size": network.word_size or own})
        vocabulary = TreeVocabulary.of(known.sentences, relations, vectors)
        parser = bilstm = BiaffineParser(vocabulary, settings, **common)
        if vectors is not None:
            bilstm.take_vectors(vectors)
    parser.decoding = recipe.decoding
    return parser
