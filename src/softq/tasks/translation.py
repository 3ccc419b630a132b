"""Translation (paper §4.2, Tables 4-6, 8 and 9, Appendix D.2.4): an encoder-decoder trained by ML, RAML and SQDML with BLEU as reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from softq.errors import DependencyError
from softq.evaluate import sacre_bleu, sentence_bleu
from softq.generation.candidates import target_signature
from softq.generation.learner import SequenceLearner
from softq.generation.saved import load_parameters
from softq.generation.steps import matrix_precision
from softq.generation.translator import Translator
from softq.rewards import MultiReferenceBLEU
from softq.tasks.translation_data import number_test
from softq.tasks.translation_judge import TranslationJudge, statistics
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
        """The sentence BLEU that translations are scored by; how sacreBLEU counts, where it is installed; what training aimed at."""
        scoring = MultiReferenceBLEU().signature
        try:
            _, _, counted = sacre_bleu(["a"], [["a"]]).signature.partition("|")  # the number of references comes first, and is the data's
            scoring += f" sacrebleu:{counted}"
        except DependencyError:
            pass
        return f"{scoring}; target {target_signature(recipe.objective, recipe.candidates)}"

    def test_statistics(self, cells: Sequence[TranslationRecipe], best: Mapping[str, Tensor], chosen: Sequence[int]) -> Tensor:
        """Statistics of each test sentence's translation; the words are the best model's own, wherever its training started."""
        training = cells[0].training
        translator = Translator.from_tensors(best).to(find_device(training.device))
        found = []
        with matrix_precision(training.precision):
            for number in chosen:
                part = number_test(cells[number].data, translator.source, translator.target)
                found.append(statistics(part, translator.translate_numbers(part.sources)))
        return torch.stack(found)

    def metric_of(self, sums: Tensor) -> Tensor:
        """Mean sentence BLEU."""
        return sentence_bleu(sums)
