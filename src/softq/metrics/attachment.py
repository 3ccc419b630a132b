"""Scores of dependency trees, as the shared task of CoNLL 2018 defines them.

UAS is the share of words with the right head, LAS of those with the right relation as well, up to
its first ``:``. CLAS is the F1 of LAS on content words: a word is one if its relation is in
`CONTENT_RELATIONS`, gold words by the gold and predicted ones by the predicted relation. Every word
counts, punctuation too. Each is a ratio of sums over sentences, so one row of counts per sentence
is all that is kept, and `softq.metrics.paired_bootstrap` takes the rows with any of the metrics
here. A ratio of nothing to nothing is 0, but CLAS is NaN where there is no content word, true or
predicted, as in treebanks whose relations are not those of Universal Dependencies.

Where predicted words are not the gold ones, because the text was split by another program,
`align_score` finds which belong together.
"""

from __future__ import annotations

import math
import operator
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from softq.errors import DataError, ShapeError
from softq.formats.conllu import TreeSentence
from softq.metrics.counts import Metric, Ratio, check_pairs

CONTENT_RELATIONS = frozenset({
    "acl", "advcl", "advmod", "amod", "appos", "ccomp", "compound", "conj",
    "csubj", "dep", "discourse", "dislocated", "expl", "fixed", "flat", "goeswith",
    "iobj", "list", "nmod", "nsubj", "nummod", "obj", "obl", "orphan",
    "parataxis", "reparandum", "root", "vocative", "xcomp",
})  # fmt: skip
"""Relations of Universal Dependencies but those of function words (aux, case, cc, clf, cop, det, mark) and of punctuation."""

ATTACHMENT_STATISTICS = (
    "words",
    "right_heads",
    "right_relations",
    "right_subtypes",
    "right_content",
    "predicted_content",
    "gold_content",
    "exact",
    "labelled_exact",
    "sentences",
)


def attachment_statistics(
    gold: Sequence[TreeSentence],
    heads: Sequence[Sequence[int]],
    relations: Sequence[Sequence[str]] | None,
) -> Tensor:
    """Counts for each of N sentences, ``[N, 10]``, float64, columns as in `ATTACHMENT_STATISTICS`.

    They are: words; words with the right head; of these, those with the right relation up to its
    first ``:``, and those with the whole relation right; those among the first that are content
    words, predicted content words, gold ones; 1 if every head is right; 1 if every relation is as
    well, up to its first ``:``; 1. Without ``relations``, what is counted from them is NaN, and so
    is every score of it.

    Args:
        gold: Sentences with their trees.
        heads: Predicted heads of the same words.
        relations: Predicted relations, or None.

    >>> sentence = TreeSentence(("It", "works"), *[("_", "_")] * 4, heads=(2, 0), relations=("nsubj", "root"))
    >>> attachment_statistics([sentence], [(2, 0)], [("nsubj:pass", "root")]).tolist()
    [[2.0, 2.0, 2.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0]]

    """
    for number, sentence in enumerate(gold):
        if len(sentence.heads) != len(sentence.forms):
            name = sentence.sent_id or number
            raise ShapeError(f"sentence {name}: expected a gold tree, got a sentence without")
    check_pairs(gold, heads, "predicted heads", _words_in)
    if relations is not None:
        check_pairs(gold, relations, "predicted relations", _words_in)
        if any(not sentence.relations and sentence.forms for sentence in gold):
            raise ShapeError(
                "expected gold sentences with relations to compare relations with, got one without"
            )
    rows = torch.full((len(gold), len(ATTACHMENT_STATISTICS)), torch.nan, dtype=torch.float64)
    counts = rows.numpy()  # the same memory: single numbers of a tensor are slow to write
    for number, (sentence, guess) in enumerate(zip(gold, heads, strict=True)):
        n = len(sentence.forms)
        right = list(map(operator.eq, sentence.heads, guess))
        row = counts[number]
        row[0], row[1], row[7], row[9] = n, sum(right), all(right), 1
        if relations is not None:
            true = list(map(universal, sentence.relations))
            guessed = list(map(universal, relations[number]))
            labelled = [same and a == b for same, a, b in zip(right, true, guessed, strict=True)]
            whole = [
                same and a == b
                for same, a, b in zip(right, sentence.relations, relations[number], strict=True)
            ]
            content = [relation in CONTENT_RELATIONS for relation in true]
            row[2:7] = (
                sum(labelled),
                sum(whole),
                sum(map(operator.and_, labelled, content)),
                sum(relation in CONTENT_RELATIONS for relation in guessed),
                sum(content),
            )
            row[8] = all(labelled)
    return rows


def _words_in(sentence: TreeSentence) -> int:
    return len(sentence.forms)


def universal(relation: str) -> str:
    """A relation without the subtype of a language or treebank.

    >>> universal("nmod:poss")
    'nmod'
    """
    return relation.partition(":")[0]


uas = Ratio(ATTACHMENT_STATISTICS, "right_heads", "words")
"""Share of words with the right head."""
las = Ratio(ATTACHMENT_STATISTICS, "right_relations", "words")
"""Share of words with the right head and relation, up to its first ``:``."""
las_subtypes = Ratio(ATTACHMENT_STATISTICS, "right_subtypes", "words")
"""Share of words with the right head and the whole relation right."""
clas = Ratio(
    ATTACHMENT_STATISTICS, "right_content", ("predicted_content", "gold_content"), 2, math.nan
)
"""F1 of head and relation on content words.

NaN where there are none, neither true nor predicted.
"""

ATTACHMENT_METRICS: dict[str, Metric] = {
    "uas": uas,
    "las": las,
    "las_subtypes": las_subtypes,
    "clas": clas,
    "exact_match": Ratio(ATTACHMENT_STATISTICS, "exact", "sentences"),
    "labelled_exact_match": Ratio(ATTACHMENT_STATISTICS, "labelled_exact", "sentences"),
}
"""All of them by name.

Those but "uas" and "exact_match", the share of sentences with every head right, need relations.
"""


class Agreed(NamedTuple):
    """How far system and gold words agree.

    Share of the system's words, share of the gold words, and their harmonic mean.
    """

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class AlignedScores:
    """Scores where words may differ; ``las`` and ``clas`` are None where one side has no relations.

    Attributes:
        words: Of finding the words, whatever their tree.
        uas: Of words with the right head.
        las: Of words with the right head and relation, up to its first ``:``.
        clas: The same of content words; None, too, where neither side has any.

    """

    words: Agreed
    uas: Agreed
    las: Agreed | None
    clas: Agreed | None


def align_score(gold: Sequence[TreeSentence], system: Sequence[TreeSentence]) -> AlignedScores:
    """Scores of one text, parsed by a system that split it into words and sentences itself.

    Both must be of the same text, white space aside. Words align if they are the same stretch of
    characters. Multi-word tokens are stretches too, but their words are not: where a multi-word
    token of one side overlaps tokens of the other, the words of all of them align as the longest
    common subsequence of their forms in lower case. A head is right if it is aligned with the gold
    head.
    """
    left, right = _Words.of(gold, "gold"), _Words.of(system, "system")
    _check_text(left, right)
    pairs = list(_align(left, right))
    gold_of = (
        dict.fromkeys(range(len(right.forms)), _UNALIGNED)
        | {s: g for g, s in pairs}
        | {_ROOT: _ROOT}
    )
    attached = [(g, s) for g, s in pairs if gold_of[right.heads[s]] == left.heads[g]]
    sizes = len(right.forms), len(left.forms)
    words, heads = _agreed(len(pairs), *sizes), _agreed(len(attached), *sizes)
    if len(left.relations) < len(left.forms) or len(right.relations) < len(right.forms):
        return AlignedScores(words, heads, None, None)
    labelled = [left.relations[g] for g, s in attached if left.relations[g] == right.relations[s]]
    content = [
        sum(relation in CONTENT_RELATIONS for relation in side)
        for side in (labelled, right.relations, left.relations)
    ]
    return AlignedScores(
        words, heads, _agreed(len(labelled), *sizes), _agreed(*content) if any(content) else None
    )


def _agreed(both: int, system: int, gold: int) -> Agreed:
    return Agreed(both / max(1, system), both / max(1, gold), 2 * both / max(1, system + gold))


_ROOT, _UNALIGNED = -1, -2  # as heads among words that are counted through the file from 0


@dataclass(frozen=True)
class _Words:
    """The words of a file, with the stretch of its characters that each has, or that its multi-word token has.

    Attributes:
        text: Forms of all tokens, without spaces.
        forms: Of words, in lower case.
        spans: Start and end of each in the text.
        inside: Whether a word belongs to one.
        heads: Counted through the file from 0.
        relations: Without subtypes; fewer than words where sentences lack them.
        names: Sentence of each word, for messages.

    """

    text: str
    forms: list[str]
    spans: list[tuple[int, int]]
    inside: list[bool]
    heads: list[int]
    relations: list[str]
    names: list[str]

    @classmethod
    def of(cls, sentences: Iterable[TreeSentence], whose: str) -> _Words:
        words = cls("", [], [], [], [], [], [])
        pieces: list[str] = []
        end = 0
        for number, sentence in enumerate(sentences, start=1):
            name = f"{whose} sentence {sentence.sent_id or number}"
            before = len(words.forms)
            if len(sentence.heads) != len(sentence.forms):
                raise DataError(f"{name}: expected a tree, got a sentence without")
            last_of = {
                token.first: (token.last, token.form) for token in sentence.multiword_tokens()
            }
            place = 1
            while place <= len(sentence.forms):
                last, form = last_of.get(place, (place, sentence.forms[place - 1]))
                piece = (
                    form.replace(" ", "")
                    if form.isascii()
                    else "".join(c for c in form if unicodedata.category(c) != "Zs")
                )
                if not piece:
                    raise DataError(
                        f"{name}: expected a word with characters other than spaces, got {form!r}"
                    )
                pieces.append(piece)
                start, end = end, end + len(piece)
                words.spans.extend([(start, end)] * (last - place + 1))
                words.inside.extend([place in last_of] * (last - place + 1))
                place = last + 1
            words.forms.extend(form.lower() for form in sentence.forms)
            words.heads.extend(before + head - 1 if head else _ROOT for head in sentence.heads)
            words.relations.extend(map(universal, sentence.relations))
            words.names.extend([name] * len(sentence.forms))
        return cls(
            "".join(pieces),
            words.forms,
            words.spans,
            words.inside,
            words.heads,
            words.relations,
            words.names,
        )

    def reaches(self, place: int, end: int) -> bool:
        """Whether this word, if there is one, belongs to the stretch of multi-word tokens up to ``end``."""
        if place == len(self.spans):
            return False
        return self.spans[place][0] < end if self.inside[place] else self.spans[place][1] <= end


def _check_text(gold: _Words, system: _Words) -> None:
    if gold.text != system.text:
        same = next(
            (i for i, (a, b) in enumerate(zip(gold.text, system.text, strict=False)) if a != b),
            None,
        )
        same = min(len(gold.text), len(system.text)) if same is None else same
        where = [
            next(
                (name for name, (_, end) in zip(w.names, w.spans, strict=True) if end > same),
                "the end",
            )
            for w in (gold, system)
        ]
        raise DataError(
            f"expected gold and system words of the same text, got {gold.text[same : same + 20]!r}"
            f" in {where[0]} and {system.text[same : same + 20]!r} in {where[1]}"
        )


def _align(gold: _Words, system: _Words) -> Iterator[tuple[int, int]]:
    """Pairs of gold and system words that belong together, from one walk along both."""
    g = s = 0  # the next words
    while g < len(gold.spans) and s < len(system.spans):
        if gold.inside[g] or system.inside[s]:
            leader, next_leader, follower, next_follower = (
                (gold, g, system, s) if gold.inside[g] else (system, s, gold, g)
            )
            start, end = leader.spans[next_leader]
            late = int(
                not follower.inside[next_follower] and follower.spans[next_follower][0] < start
            )  # it began before the token
            first = (g, s + late) if leader is gold else (g + late, s)
            g, s = _end_of_stretch(gold, system, *first, end)
            yield from _common(gold.forms, range(first[0], g), system.forms, range(first[1], s))
        elif gold.spans[g] == system.spans[s]:
            yield g, s
            g, s = g + 1, s + 1
        elif gold.spans[g][0] <= system.spans[s][0]:
            g += 1
        else:
            s += 1


def _end_of_stretch(gold: _Words, system: _Words, g: int, s: int, end: int) -> tuple[int, int]:
    """The words after a stretch of multi-word tokens that overlap, which goes to the character ``end`` at least.

    Words are taken by where they begin, gold before system, until what comes next on either side is outside: a plain word that ends
    beyond the stretch, or a multi-word token that begins there. A multi-word token that begins inside makes the stretch longer.
    """
    while gold.reaches(g, end) or system.reaches(s, end):
        if s == len(system.spans) or (
            g < len(gold.spans) and gold.spans[g][0] <= system.spans[s][0]
        ):
            taken, place, g = gold, g, g + 1
        else:
            taken, place, s = system, s, s + 1
        if taken.inside[place]:
            end = max(end, taken.spans[place][1])
    return g, s


def _common(
    gold: list[str], left: range, system: list[str], right: range
) -> Iterator[tuple[int, int]]:
    """A longest common subsequence of two lists of words.

    Of several, the one that a walk from the left finds, gold words passed first.
    """
    # longest[i][j]: of the words from i and from j on
    longest = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in range(len(left) - 1, -1, -1):
        for j in range(len(right) - 1, -1, -1):
            same = gold[left[i]] == system[right[j]]
            longest[i][j] = (
                1 + longest[i + 1][j + 1] if same else max(longest[i + 1][j], longest[i][j + 1])
            )
    i = j = 0
    while i < len(left) and j < len(right):
        if gold[left[i]] == system[right[j]]:
            yield left[i], right[j]
            i, j = i + 1, j + 1
        elif longest[i][j] == longest[i + 1][j]:
            i += 1
        else:
            j += 1
