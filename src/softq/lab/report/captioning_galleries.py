"""The case study of the captioning experiment as parts of a page; None where there are no examples."""

from __future__ import annotations

from collections.abc import Sequence

from softq.lab.report.captioning_results import CaptioningResults, Shown
from softq.lab.report.page import Column, Example, Gallery, Table, Value

IN_STUDY = 4
"""Images of the case study; those that follow them are shown with the other disagreements."""


def case_study(results: CaptioningResults) -> Gallery | None:
    """The paper's Figure 3: images where SQDML's average reward exceeds RAML's most."""
    study = results.study
    if study is None or not study.ahead:
        return None
    caption = (
        f"The test images where the average reward of {study.ours} exceeds that of {study.other} most, as the paper chooses its examples: "
        "captions, and in the table the sentence BLEU of each against each reference, in percent. The models, each at its best on the "
        f"development part: {'; '.join(study.models)}."
    )
    return _gallery(
        "case-study", "Case study, the paper’s Figure 3", caption, study.ahead[:IN_STUDY]
    )


def disagreements(results: CaptioningResults) -> Gallery | None:
    """Further images where two systems differ, in either direction, the largest differences first."""
    study = results.study
    if study is None or not (study.ahead[IN_STUDY:] or study.behind):
        return None
    lead, same, behind = study.counts
    caption = (
        f"Examples chosen in favour of one say nothing of all: on {lead:,} of {lead + same + behind:,} test images the caption by "
        f"{study.ours} has the higher average reward, on {behind:,} the caption by {study.other}, and on {same:,} both earn the same. Here "
        "are further images with large differences, in either direction."
    )
    shown = sorted([*study.ahead[IN_STUDY:], *study.behind], key=lambda one: -abs(_difference(one)))
    return _gallery(
        "disagreements", f"Where {study.ours} and {study.other} disagree most", caption, shown
    )


def _difference(shown: Shown) -> float:
    """Of average rewards: the last system is compared with the one before it."""
    return shown.captions[-1].mean - shown.captions[-2].mean


def _gallery(name: str, title: str, caption: str, shown: Sequence[Shown]) -> Gallery:
    rows: list[Sequence[Value]] = [
        (
            one.image,
            said.objective,
            said.text,
            reference,
            100 * reward,
            100 * said.mean,
            100 * said.most,
        )
        for one in shown
        for said in one.captions
        for reference, reward in zip(one.references, said.rewards, strict=True)
    ]
    numbers = [Column(title, ".2f") for title in ("Reward", "Average reward", "Maximum reward")]
    return Gallery(
        name=name,
        title=title,
        caption=caption,
        examples=[_example(one) for one in shown],
        numbers=Table(
            name=name,
            caption=title,
            columns=[*map(Column, ("Image", "Objective", "Caption", "Reference")), *numbers],
            rows=rows,
        ),
    )


def _example(shown: Shown) -> Example:
    rows: list[Sequence[Value]] = [
        (reference, *(100 * said.rewards[number] for said in shown.captions))
        for number, reference in enumerate(shown.references)
    ]
    rows.append(("Average reward", *(100 * said.mean for said in shown.captions)))
    rows.append(("Maximum reward", *(100 * said.most for said in shown.captions)))
    return Example(
        name=shown.image,
        alt=f"The test image {shown.image}, of which a reference says: {shown.references[0]}",
        picture=shown.picture,
        outputs={said.objective: said.text or "(no words)" for said in shown.captions},
        scores=Table(
            name=shown.image,
            caption=f"Sentence BLEU of each caption of {shown.image} against each reference, in percent",
            columns=[
                Column("Reference"),
                *(Column(said.objective, ".1f") for said in shown.captions),
            ],
            rows=rows,
        ),
    )
