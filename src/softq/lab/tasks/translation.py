"""Translation (paper §4.2, Tables 4-6, 8 and 9, Appendix D.2.4): an encoder-decoder trained by ML, RAML and SQDML with BLEU as reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from softq.errors import DependencyError
from softq.lab.loop import Learner
from softq.lab.processes import Workers
from softq.lab.tasks.base import Task
from softq.lab.tasks.facts import translation_facts
from softq.lab.tasks.translation_judge import TranslationJudge
from softq.lab.tasks.translation_recipe import TranslationRecipe
from softq.metrics import TRANSLATION_METRICS, Metric, sacre_bleu
from softq.neural.candidates import target_signature
from softq.neural.learner import SequenceLearner
from softq.neural.saved_model import load_parameters
from softq.rewards import MultiReferenceBLEU


class Translation(Task):
    """The task."""

    name: ClassVar[str] = "translation"
    recipe_type: ClassVar[type[TranslationRecipe]] = TranslationRecipe
    metrics: ClassVar[Mapping[str, Metric]] = TRANSLATION_METRICS
    titles: ClassVar[Mapping[str, str]] = {
        "sentence_bleu": "sentence BLEU",
        "corpus_bleu": "corpus BLEU",
        "average_reward": "average reward",
        "exact_match": "exact match",
    }

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

    def facts(self, recipe: TranslationRecipe, outputs: Sequence[Any]) -> dict[str, Any]:
        """What a report says of the data."""
        return translation_facts(recipe, outputs)

    def signature(self, recipe: TranslationRecipe) -> str:
        """The sentence BLEU that translations are scored by; how sacreBLEU counts, where it is installed; what training aimed at."""
        scoring = MultiReferenceBLEU().signature
        try:
            _, _, counted = sacre_bleu(["a"], [["a"]]).signature.partition(
                "|"
            )  # the number of references comes first, and is the data's
            scoring += f" sacrebleu:{counted}"
        except DependencyError:
            pass
        return f"{scoring}; target {target_signature(recipe.objective, recipe.candidates)}"
