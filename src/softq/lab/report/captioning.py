"""The captioning experiment (§4.1.2 of the paper, Table 1 and Figure 3), of files or of the built-in world, as a section of a report."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from softq.lab.report import captioning_figures as figures
from softq.lab.report import captioning_galleries as galleries
from softq.lab.report import captioning_tables as tables
from softq.lab.report import paper
from softq.lab.report.captioning_results import (
    SAMPLERS,
    CaptioningResults,
    CaptioningSystem,
    CaptioningVariant,
    best_of_each,
    comparisons,
    papers_best,
    share_of_ceiling,
)
from softq.lab.report.page import Part, Section, show
from softq.lab.report.sentence_tables import difference
from softq.lab.report.sweep_words import counted, file_words, judging_words, section_of
from softq.lab.report.systems import bare_settings, percent

__all__ = ["CaptioningResults", "section"]

_OBJECTIVES = {
    "ML": "by maximum likelihood (ML)",
    "RAML": "by RAML at several temperatures τ, which learns candidates besides the references, weighed by their reward against one "
    "reference at a time",
    "SQDML": "by SQDML, which takes the mean of what all references of an image reward before it exponentiates (eq. 15)",
}


def section(results: CaptioningResults) -> Section:
    """Everything the report says of a sweep of the experiment."""
    parts: list[Part | None] = []
    for variant in results.variants():
        parts += [
            tables.temperatures(results, variant),
            figures.temperatures(results, variant),
            figures.expected(variant),
        ]
        parts += [tables.scores(results, variant), tables.gains(results, variant)]
    parts += [
        tables.papers_table(),
        tables.candidate_sets(results),
        galleries.case_study(results),
        galleries.disagreements(results),
    ]
    parts += [*map(tables.training, results.variants()), figures.learning(results)]
    title = (
        "Captioning where all that may be said is known"
        if results.of_world
        else "Captioning with several references"
    )
    return section_of(
        results,
        title,
        [*_problem(results), *_findings(results), *_no_study(results)],
        parts,
        _differences(results),
    )


# --- what was done --------------------------------------------------------------------------------------


def _problem(results: CaptioningResults) -> list[str]:
    data, model = results.recipe.data, results.recipe.model
    there = {system.objective for system, _ in results.pairs()}
    how = "; ".join(words for objective, words in _OBJECTIVES.items() if objective in there)
    further = f"{data.dev_scenes:,} further scenes", f"{data.dev_scenes:,} others"
    return [
        f"An LSTM ({model.hidden} units) whose memory begins with the features of an image was trained to write captions on "
        f"{_training_part(results)}: {how} (§4.1.2 of the paper).",
        judging_words(
            results,
            "average reward",
            world=further if results.of_world else None,
            without_dev="the training images themselves",
        ),
    ]


def _training_part(results: CaptioningResults) -> str:
    data = results.recipe.data
    if not results.of_world:
        return file_words(results, "train")
    return f"{counted(data.scenes, 'scene')} of the built-in world, each with {counted(data.captions, 'caption')}"


# --- what was found -------------------------------------------------------------------------------------


def _findings(results: CaptioningResults) -> list[str]:
    """The headline of each variant."""
    said = []
    for number, variant in enumerate(results.variants()):
        if variant.systems:
            which = f"With {bare_settings(variant.settings)}: " if variant.settings else ""
            parts = (
                _rewards(results, variant),
                _gains(results, variant),
                "" if number else _papers_gains(variant),
                _by_ceiling(variant),
            )
            said.append(which + " ".join(filter(None, parts)))
    return said


def _rewards(results: CaptioningResults, variant: CaptioningVariant) -> str:
    best = list(reversed(best_of_each(variant).values()))  # SQDML first
    several = Counter(system.objective for system in variant.tuned)
    told = [
        f"{_with_tau(system, several[system.objective] > 1)} has {_score(results, system)}"
        for system in best
    ]
    seeds = {len(system.seeds) for system in best}
    mean = (
        f"means over {min(seeds)} seeds"
        if len(seeds) == 1 and max(seeds) > 1
        else "means over seeds"
        if max(seeds) > 1
        else ""
    )
    sure = (
        "95 % intervals over test images"
        if any(system.name in results.judged for system in best)
        else ""
    )
    notes = " with ".join(filter(None, (mean, sure)))
    return f"In average reward on the test part, {', '.join(told)}{f' ({notes})' if notes else ''}."


def _with_tau(system: CaptioningSystem, best_of_several: bool) -> str:
    return (
        system.objective
        if system.tau is None
        else f"{system.objective} at {'its best ' if best_of_several else ''}τ = {system.tau:g}"
    )


def _score(results: CaptioningResults, system: CaptioningSystem) -> str:
    score = results.score(system, "average_reward") or system.scores["test"]
    value, low, high = percent(score)
    ends = "" if low != low else f" ({show(low, '.2f')} to {show(high, '.2f')})"
    return f"{show(value, '.2f')} %{ends}"


def _gains(results: CaptioningResults, variant: CaptioningVariant) -> str:
    told = []
    for system, other in comparisons(variant):
        test = results.gain_over(system, other, "average_reward")
        plain = difference(system, other, "average_reward")
        if test is not None:
            value, low, high = (show(end, "+.2f") for end in percent(test.gain))
            told.append(
                f"{system.objective} over {other.objective} {value} points ({low} to {high}, p = {test.p_value:.3f})"
            )
        elif plain is not None:
            told.append(f"{system.objective} over {other.objective} {show(plain, '+.2f')} points")
    return f"Gains: {'; '.join(told)}." if told else ""


def _papers_gains(variant: CaptioningVariant) -> str:
    told = [
        f"{ours.objective} over {other.objective} {show(_papers_gain(ours, other), '+.2f')}"
        for ours, other in comparisons(variant)
    ]
    return f"In the paper, on MSCOCO: {', '.join(told)}." if told else ""


def _papers_gain(system: CaptioningSystem, other: CaptioningSystem) -> float:
    return (
        papers_best(system.objective).average_reward - papers_best(other.objective).average_reward
    )


def _by_ceiling(variant: CaptioningVariant) -> str:
    """The share of what can be reached, of the built-in world alone."""
    best = list(reversed(best_of_each(variant).values()))
    told = [
        f"{one.objective} {show(100 * share.value, '.1f')} %"
        for one in best
        if (share := share_of_ceiling(one)) is not None
    ]
    if not told:
        return ""
    ceiling = next(value for one in best if (value := one.value("test_ceiling")) is not None)
    return (
        f"Over all that may be said of a scene, the consensus captions have an expected reward of {show(100 * ceiling, '.2f')} %, which is "
        f"the ceiling; of it, captions reach: {', '.join(told)}."
    )


def _no_study(results: CaptioningResults) -> list[str]:
    return [f"There is no case study: {results.no_study}."] if results.no_study else []


# --- what differs ---------------------------------------------------------------------------------------


def _differences(results: CaptioningResults) -> list[str]:
    data, told = results.recipe.data, []
    if results.of_world:
        told.append(
            "The images are rendered scenes of coloured shapes, where the paper has photographs of MSCOCO."
        )
    elif not results.is_papers_corpus:
        told.append(f"The images are those of {Path(data.train).name}, where the paper has MSCOCO.")
    for part, count in results.sentences.items():
        if count != paper.CAPTIONING_IMAGES[part]:
            told.append(
                f"Images of the {part} part: {count:,} here, {paper.CAPTIONING_IMAGES[part]:,} in the paper."
            )
    setup = paper.CAPTIONING_SETUP
    if not results.of_world and data.encoder != setup.encoder:
        told.append(
            f"Features are by {data.encoder or 'an encoder that nobody named'}, in the paper {setup.encoder}."
        )
    return [
        *told,
        *_other_model(results),
        *_other_temperatures(results),
        *_other_candidates(results),
    ]


def _other_model(results: CaptioningResults) -> list[str]:
    recipe, setup, told = results.recipe, paper.CAPTIONING_SETUP, []
    model = recipe.model
    if (model.embedding, model.hidden) != (setup.embedding, setup.hidden):
        told.append(
            f"Word vectors and states have {model.embedding} and {model.hidden} numbers, in the paper {setup.embedding} and {setup.hidden}."
        )
    if (least := recipe.vocabulary.min_freq) != setup.min_freq:
        told.append(
            f"Words are known that occur {counted(least, 'time')} or more, in the paper {counted(setup.min_freq, 'time')}."
        )
    if recipe.decoding.beam != setup.beam:
        told.append(f"The beam holds {recipe.decoding.beam} captions, in the paper {setup.beam}.")
    batches = {
        system.objective: system.recipe.training.batch_size for system, _ in results.chosen()
    }
    if any(
        size != (setup.batch_ml if objective == "ML" else setup.batch)
        for objective, size in batches.items()
    ):
        ours = ", ".join(f"{size} by {objective}" for objective, size in batches.items())
        told.append(
            f"Steps take so many examples: {ours}; in the paper {setup.batch_ml} by ML, and {setup.batch} by RAML and SQDML."
        )
    if model.dropout:
        told.append(
            f"In training, {100 * model.dropout:g} % are dropped out; the paper does not say how it regularised."
        )
    if recipe.training.start:
        told.append("Training goes on from another model; the paper’s begins anew.")
    return told


def _other_temperatures(results: CaptioningResults) -> list[str]:
    theirs = paper.CAPTIONING_BEST_TAU.value
    return [
        f"Best τ of {objective}{variant.which}: {system.tau:g} here, {theirs:g} in the paper."
        for variant in results.variants()
        for objective, system in best_of_each(variant).items()
        if system.tau is not None and system.tau != theirs
    ]


def _other_candidates(results: CaptioningResults) -> list[str]:
    """Once for each objective and way to draw them."""
    setup, told = paper.CAPTIONING_SETUP, dict[str, None]()
    for system, _ in results.chosen():
        size, used = setup.candidates.get(system.objective), setup.used.get(system.objective)
        chosen = system.recipe.candidates
        printed = ("ngram", size, used, setup.max_n, "paper")
        if (
            size is None
            or (chosen.sampler, chosen.size, chosen.k, chosen.max_n, chosen.estimator) == printed
        ):
            continue
        ours = f"{chosen.k} of {chosen.size}" if chosen.k else f"{chosen.size}"
        ways = " and ".join(SAMPLERS[name] for name in chosen.samplers)
        told[
            f"A step of {system.objective} takes {ours} candidates by {ways}, drawn anew (estimator {chosen.estimator}); in the paper "
            f"{used} of a set of {size} by n-gram replacement."
        ] = None
    return list(told)
