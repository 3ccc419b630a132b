"""Translation (paper §4.2, Tables 4-6, 8 and 9, Appendix D.2.4): an encoder-decoder trained by ML, RAML and SQDML with BLEU as reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from softq.errors import DependencyError
from softq.evaluate import sacre_bleu, sentence_bleu
from softq.generation.learner import SequenceLearner
from softq.generation.translator import Translator, load_parameters
from softq.rewards import MultiReferenceBLEU
from softq.tasks.translation_judge import TranslationJudge
from softq.tasks.translation_recipe import TranslationRecipe
from softq.train import Learner, Workers, find_device


class Translation:
    """The task."""

    name: ClassVar[str] = "translation"
    recipe_type: ClassVar[type[TranslationRecipe]] = TranslationRecipe
    metric: ClassVar[str] = "sentence BLEU"
    together: ClassVar[bool] = False

    def learner(self, cells: Sequence[TranslationRecipe], workers: Workers) -> Learner:
        """One translator."""
        recipe = cells[0]
        judge = TranslationJudge.of(recipe)
        prepared = judge.prepared
        model = recipe.model.build(len(prepared.source), len(prepared.target), recipe.training.seed)
        if prepared.start is not None:
            load_parameters(model, dict(prepared.start.model.named_parameters()))
        return SequenceLearner(
            model,
            prepared.train,
            prepared.dev.examples,
            judge,
            objective=recipe.objective,
            candidates=recipe.candidates,
            optimizer=recipe.optimizer,
            training=recipe.training,
            frequencies=prepared.target.frequencies,
            workers=workers,
        )

    def signature(self, recipe: TranslationRecipe) -> str:
        """The sentence BLEU that translations are scored by; and how sacreBLEU counts, where it is installed."""
        by_words = MultiReferenceBLEU().signature
        try:
            _, _, counted = sacre_bleu(["a"], [["a"]]).signature.partition("|")  # the number of references comes first, and is the data's
        except DependencyError:
            return by_words
        return f"{by_words} sacrebleu:{counted}"

    def test_statistics(self, cells: Sequence[TranslationRecipe], best: Mapping[str, Tensor], chosen: Sequence[int]) -> Tensor:
        """Statistics of each test sentence's translation."""
        model = Translator.from_tensors(best).to(find_device(cells[0].training.device)).model
        return torch.stack([TranslationJudge.of(cells[number]).test(model) for number in chosen])

    def metric_of(self, sums: Tensor) -> Tensor:
        """Mean sentence BLEU."""
        return sentence_bleu(sums)
