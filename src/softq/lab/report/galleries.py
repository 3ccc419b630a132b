"""The case study of the captioning experiment, after the paper's Figure 3.

Images on which two systems differ most.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from softq.lab.report.content import Column, Example, Gallery, Part, Table, Value
from softq.lab.report.pictures import Picture, scene_picture, thumbnail
from softq.lab.report.results import Results, System
from softq.lab.run import RunFolder

IN_STUDY, MOST_AHEAD, MOST_BEHIND = 4, 8, 4  # images of a page, which stays small
_SAME = 1e-9  # rewards that differ by less are the same


class Image(NamedTuple):
    """A test image with what each system wrote of it.

    Rows of ``outputs.jsonl`` by objective, the last two being compared.
    """

    name: str
    references: Sequence[str]
    captions: dict[str, dict[str, Any]]

    @property
    def lead(self) -> float:
        """By how much the average reward of the last system exceeds that of the one before it."""
        *_, other, ours = self.captions.values()
        return statistics.fmean(ours["rewards"]) - statistics.fmean(other["rewards"])


def extras(results: Results) -> list[Part | None]:
    """The paper's Figure 3, and further images where the systems differ, in either direction."""
    systems = _compared(results)
    if not systems:
        return []
    outputs = {}
    for system in systems:
        best = max(system.models, key=lambda model: model.scores["dev"])
        outputs[system.objective] = RunFolder(best.run).outputs()
    if not all(rows and "references" in rows[0] for rows in outputs.values()):
        return []  # of an older version
    images = [
        Image(rows[0]["image"], rows[0]["references"], dict(zip(outputs, rows, strict=True)))
        for rows in zip(*outputs.values(), strict=True)
    ]
    leads = np.array([image.lead for image in images])
    highest, lowest = (np.argsort(sign * leads, kind="stable") for sign in (-1, 1))
    ahead = [images[i] for i in highest[:MOST_AHEAD] if leads[i] > _SAME]
    behind = [images[i] for i in lowest[:MOST_BEHIND] if leads[i] < -_SAME]
    others = sorted([*ahead[IN_STUDY:], *behind], key=lambda image: -abs(image.lead))
    ours, other = systems[-1].objective, systems[-2].objective
    names = "; ".join(results.name_of(system) for system in systems)
    lead, trail = int((leads > _SAME).sum()), int((leads < -_SAME).sum())
    study = (
        f"The test images where the average reward of {ours} exceeds that of {other} most, as the"
        " paper chooses its examples: captions, and in the table the sentence BLEU of each against"
        " each reference, in percent. The models, each at its best on the development set:"
        f" {names}."
    )
    rest = (
        f"Examples chosen in favour of one say nothing of all: on {lead:,} of {len(images):,} test"
        f" images the caption by {ours} has the higher average reward, on {trail:,} the caption by"
        f" {other}, and on {len(images) - lead - trail:,} both earn the same. Here are further"
        " images with large differences, in either direction."
    )
    return [
        _gallery(
            "case-study", "Case study, the paper’s Figure 3", study, ahead[:IN_STUDY], results
        ),
        _gallery("disagreements", f"Where {ours} and {other} disagree most", rest, others, results),
    ]


def _compared(results: Results) -> list[System]:
    """ML, RAML and SQDML at their best, of the variant that has most of them.

    [] where there is nothing to compare.
    """
    for objective in ("SQDML", "RAML"):
        found = [
            one.best for one in results.variants if objective in one.best and len(one.best) > 1
        ]
        if found:
            best = max(found, key=lambda one: (len(one), one[objective].dev))
            return [best[name] for name in ("ML", "RAML", "SQDML") if name in best]
    return []


def _gallery(
    name: str, title: str, caption: str, images: Sequence[Image], results: Results
) -> Gallery | None:
    if not images:
        return None
    rows: list[Sequence[Value]] = [
        (
            image.name,
            objective,
            said["text"],
            reference,
            *(
                100 * one
                for one in (reward, statistics.fmean(said["rewards"]), max(said["rewards"]))
            ),
        )
        for image in images
        for objective, said in image.captions.items()
        for reference, reward in zip(image.references, said["rewards"], strict=True)
    ]
    numbers = [Column(one, ".2f") for one in ("Reward", "Average reward", "Maximum reward")]
    columns = [*map(Column, ("Image", "Objective", "Caption", "Reference")), *numbers]
    folder = results.recipe.data.images if results.recipe.data.train else None
    examples = [_example(image, folder) for image in images]
    return Gallery(name, title, caption, examples, Table(name, title, columns, rows))


def _example(image: Image, folder: str | None) -> Example:
    written = image.captions.values()
    rows: list[Sequence[Value]] = [
        (reference, *(100 * said["rewards"][number] for said in written))
        for number, reference in enumerate(image.references)
    ]
    rows.append(("Average reward", *(100 * statistics.fmean(said["rewards"]) for said in written)))
    rows.append(("Maximum reward", *(100 * max(said["rewards"]) for said in written)))
    caption = f"Sentence BLEU of each caption of {image.name} against each reference, in percent"
    columns = [Column("Reference"), *(Column(name, ".1f") for name in image.captions)]
    return Example(
        name=image.name,
        alt=f"The test image {image.name}, of which a reference says: {image.references[0]}",
        picture=_picture(image.name, folder),
        outputs={name: said["text"] or "(no words)" for name, said in image.captions.items()},
        scores=Table(image.name, caption, columns, rows),
    )


def _picture(name: str, folder: str | None) -> Picture | None:
    """A scene of the built-in world, or an image of the folder that the recipe names."""
    if folder is None:
        return scene_picture(name)
    return thumbnail(Path(folder), name) if folder else None
