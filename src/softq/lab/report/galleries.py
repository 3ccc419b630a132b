"""The case study of the captioning experiment, after the paper's Figure 3.

Images on which two systems differ most.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from softq.formats.file_checks import undamaged
from softq.lab.report.content import Column, Example, Gallery, Part, Table, Value
from softq.lab.report.pictures import scene_picture, thumbnail
from softq.lab.report.results import Results, System
from softq.lab.run import OUTPUTS, RunFolder

IN_STUDY, MOST_AHEAD, MOST_BEHIND = 4, 8, 4  # images of a page, which stays small
_SAME = 1e-9  # rewards that differ by less are the same


class _Caption(NamedTuple):
    """What a system wrote of an image, and its reward against each reference."""

    text: str
    rewards: Sequence[float]
    average: float
    maximum: float

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _Caption:
        """The caption in a row of ``outputs.jsonl``."""
        rewards = row["rewards"]
        return cls(row["text"] + "", rewards, statistics.fmean(rewards), max(rewards))


class _Image(NamedTuple):
    """A test image with the caption of each system by objective, the last two being compared."""

    name: str
    references: Sequence[str]
    captions: Mapping[str, _Caption]

    @property
    def lead(self) -> float:
        """By how much the average reward of the last system exceeds that of the one before it."""
        *_, other, ours = self.captions.values()
        return ours.average - other.average


def extras(results: Results) -> list[Part | None]:
    """The paper's Figure 3, and further images where the systems differ, in either direction."""
    systems = _compared(results)
    images = _read_images(systems)
    if not images:
        return []
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


def _read_images(systems: Sequence[System]) -> list[_Image]:
    """The test images as the runs have stored them; [] where an older version has."""
    best = [max(system.models, key=lambda model: model.scores["dev"]).run for system in systems]
    outputs = [RunFolder(run).outputs() for run in best]
    with undamaged(", ".join(str(run / OUTPUTS) for run in best)):
        if not all(rows and "references" in rows[0] for rows in outputs):
            return []
        names = [system.objective for system in systems]
        return [
            _Image(
                rows[0]["image"] + "",
                [reference + "" for reference in rows[0]["references"]],
                {name: _Caption.of(row) for name, row in zip(names, rows, strict=True)},
            )
            for rows in zip(*outputs, strict=True)
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
    name: str, title: str, caption: str, images: Sequence[_Image], results: Results
) -> Gallery | None:
    if not images:
        return None
    rows: list[Sequence[Value]] = [
        (
            image.name,
            objective,
            said.text,
            reference,
            *(100 * one for one in (reward, said.average, said.maximum)),
        )
        for image in images
        for objective, said in image.captions.items()
        for reference, reward in zip(image.references, said.rewards, strict=True)
    ]
    numbers = [Column(one, ".2f") for one in ("Reward", "Average reward", "Maximum reward")]
    columns = [*map(Column, ("Image", "Objective", "Caption", "Reference")), *numbers]
    folder = results.recipe.data.images if results.recipe.data.train else None
    examples = [_example(image, folder) for image in images]
    return Gallery(name, title, caption, examples, Table(name, title, columns, rows))


def _example(image: _Image, folder: str | None) -> Example:
    """An image; without a ``folder`` it is a scene of the built-in world."""
    written = image.captions.values()
    rows: list[Sequence[Value]] = [
        (reference, *(100 * said.rewards[number] for said in written))
        for number, reference in enumerate(image.references)
    ]
    rows.append(("Average reward", *(100 * said.average for said in written)))
    rows.append(("Maximum reward", *(100 * said.maximum for said in written)))
    caption = f"Sentence BLEU of each caption of {image.name} against each reference, in percent"
    columns = [Column("Reference"), *(Column(name, ".1f") for name in image.captions)]
    picture = scene_picture(image.name) if folder is None else thumbnail(folder, image.name)
    return Example(
        name=image.name,
        alt=f"The test image {image.name}, of which a reference says: {image.references[0]}",
        picture=picture,
        outputs={name: said.text or "(no words)" for name, said in image.captions.items()},
        scores=Table(image.name, caption, columns, rows),
    )
