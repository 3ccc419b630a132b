"""Examples for the case study of the captioning experiment, after the paper's Figure 3: images on which two systems differ most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.lab.report.captioning_results import (
    CaptioningResults,
    CaptioningSystem,
    CaseStudy,
    Shown,
    Written,
    best_of_each,
)
from softq.lab.report.figures import Picture
from softq.lab.report.pictures import scene_picture, small_copy
from softq.lab.report.systems_load import Members
from softq.lab.run import RunFolder
from softq.lab.tasks.captioning import CaptionData, read_captioned
from softq.lab.worlds import Scene
from softq.metrics import TRANSLATION_STATISTICS

MOST_AHEAD, MOST_BEHIND = 8, 4  # images of a page, which stays small
_REWARD = TRANSLATION_STATISTICS.index("reward")
_SAME = 1e-9  # rewards that differ by less are the same


def systems_of_study(results: CaptioningResults) -> list[CaptioningSystem]:
    """ML, RAML and SQDML at their best, of the variant that has most of them, and the best SQDML, or RAML, on the development part.

    The last two are what is compared; [] where there is nothing to compare.
    """
    for objective in ("SQDML", "RAML"):
        found = [
            best
            for variant in results.variants()
            if objective in (best := best_of_each(variant)) and len(best) > 1
        ]
        if found:
            return list(max(found, key=lambda best: (len(best), best[objective].dev)).values())
    return []


def study_of(
    results: CaptioningResults, members: Members, rows: Mapping[str, Tensor]
) -> CaseStudy | None:
    """The case study, of each system's model with the seed that is best on the development part; None with nothing to compare.

    Args:
        results: of the sweep.
        members: the models of its systems.
        rows: statistics ``[seeds, images, 17]`` of the test captions of all chosen systems, by name.

    """
    systems = systems_of_study(results)
    if not systems:
        return None
    best = {
        system.name: int(np.argmax([member.cell.dev for member in members[system.name]]))
        for system in systems
    }
    other, ours = (rows[system.name][best[system.name], :, _REWARD] for system in systems[-2:])
    ahead, behind = most_apart(ours - other)
    captions = {
        system.objective: RunFolder(members[system.name][best[system.name]].run).outputs()
        for system in systems
    }
    data = systems[-1].recipe.data
    shown = show_images(data, captions, [*ahead, *behind], results.recipe.data.images)
    difference = ours - other
    counts = [
        int(found.sum())
        for found in (difference > _SAME, difference.abs() <= _SAME, difference < -_SAME)
    ]
    names = [results.name_of(system) for system in systems]
    return CaseStudy(
        systems[-1].objective,
        systems[-2].objective,
        names,
        shown[: len(ahead)],
        shown[len(ahead) :],
        (counts[0], counts[1], counts[2]),
    )


def most_apart(differences: Tensor) -> tuple[list[int], list[int]]:
    """Numbers of the images with the highest and the lowest differences, those furthest from 0 first; none that is about 0.

    >>> most_apart(torch.tensor([0.25, 0.0, -0.5, 0.75]))
    ([3, 0], [2])
    """

    def furthest(values: Tensor, most: int) -> list[int]:
        order: list[int] = torch.argsort(values, descending=True, stable=True)[:most].tolist()
        return [number for number in order if values[number] > _SAME]

    return furthest(differences, MOST_AHEAD), furthest(-differences, MOST_BEHIND)


def show_images(
    data: CaptionData, outputs: Mapping[str, Sequence[Any]], numbers: Sequence[int], folder: str
) -> list[Shown]:
    """Test images by their numbers: pictures, references, and the captions of each objective's run with their rewards."""
    named = read_captioned(data).held_out
    return [
        Shown(
            named.inputs[number],
            _picture(data, named.inputs[number], folder),
            named.references[number],
            [
                Written(objective, said[number]["text"], said[number]["rewards"])
                for objective, said in outputs.items()
            ],
        )
        for number in numbers
    ]


def _picture(data: CaptionData, image: str, folder: str) -> Picture | None:
    if not data.train:
        return scene_picture(Scene.from_name(image))
    return small_copy(Path(folder), image) if folder else None
