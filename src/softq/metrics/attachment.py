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
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from softq.errors import DataError, ShapeError
from softq.formats.conllu import TreeSentence
from softq.metrics.counts import Metric, Ratio, check_pairs
from softq.metrics.spans import KindScores

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
    rows = []
    named = relations if relations is not None else [None] * len(gold)
    for sentence, guess, names in zip(gold, heads, named, strict=True):
        right = list(map(operator.eq, sentence.heads, guess))
        *labelled, exact = (
            (math.nan,) * 6 if names is None else _relation_counts(sentence.relations, names, right)
        )
        rows.append((len(right), sum(right), *labelled, all(right), exact, 1))
    return torch.tensor(rows, dtype=torch.float64).view(len(gold), len(ATTACHMENT_STATISTICS))


def _relation_counts(
    gold: Sequence[str], predicted: Sequence[str], right: Sequence[bool]
) -> tuple[int, ...]:
    """Columns 2 to 6 and 8 of a row, from relations and whether heads are right."""
    true, guessed = list(map(universal, gold)), list(map(universal, predicted))
    labelled = list(map(operator.and_, right, map(operator.eq, true, guessed)))
    content = [relation in CONTENT_RELATIONS for relation in true]
    return (
        sum(labelled),
        sum(map(operator.and_, right, map(operator.eq, gold, predicted))),
        sum(map(operator.and_, labelled, content)),
        sum(relation in CONTENT_RELATIONS for relation in guessed),
        sum(content),
        all(labelled),
    )


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


class AlignedScores(NamedTuple):
    """Scores where words may differ; ``las`` and ``clas`` are None where one side has no relations.

    Attributes:
        words: Of finding the words, whatever their tree.
        uas: Of words with the right head.
        las: Of words with the right head and relation, up to its first ``:``.
        clas: The same of content words; None, too, where neither side has any.

    """

    words: KindScores
    uas: KindScores
    las: KindScores | None
    clas: KindScores | None


def align_score(gold: Sequence[TreeSentence], system: Sequence[TreeSentence]) -> AlignedScores:
    """Scores of one text, parsed by a system that split it into words and sentences itself.

    Both must be of the same text, white space aside. Words align if they are the same stretch of
    characters. Multi-word tokens are stretches too, but their words are not: where a multi-word
    token of one side overlaps tokens of the other, the words of all of them align as the longest
    common subsequence of their forms in lower case. A head is right if it is aligned with the gold
    head.
    """
    gold_text, left = _words_of(gold, "gold")
    system_text, right = _words_of(system, "system")
    if gold_text != system_text:
        raise DataError(_first_difference(gold_text, system_text, left, right))
    pairs = list(_align(left, right))
    gold_of = dict.fromkeys(range(len(right)), _UNALIGNED) | {s: g for g, s in pairs}
    gold_of[_ROOT] = _ROOT
    attached = [(g, s) for g, s in pairs if gold_of[right[s].head] == left[g].head]
    sizes = len(right), len(left)
    words, heads = (KindScores.of(len(found), *sizes) for found in (pairs, attached))
    if not all(word.relation for word in (*left, *right)):
        return AlignedScores(words, heads, None, None)
    labelled = [left[g] for g, s in attached if left[g].relation == right[s].relation]
    content = [
        sum(word.relation in CONTENT_RELATIONS for word in side) for side in (labelled, right, left)
    ]
    clas = KindScores.of(*content) if any(content) else None
    return AlignedScores(words, heads, KindScores.of(len(labelled), *sizes), clas)


_ROOT, _UNALIGNED = -1, -2  # as heads among words that are counted through the file from 0


class _Word(NamedTuple):
    """A word of a file, with the stretch of characters that it has, or that its multi-word token has.

    Attributes:
        form: In lower case.
        start: Of the stretch, in the text of the file without spaces.
        end: Of the same.
        inside: Whether it belongs to a multi-word token.
        head: Counted through the file from 0.
        relation: Without subtype; empty where the sentence lacks relations.
        sentence: Its name, for messages.

    """

    form: str
    start: int
    end: int
    inside: bool
    head: int
    relation: str
    sentence: str


def _words_of(sentences: Iterable[TreeSentence], whose: str) -> tuple[str, list[_Word]]:
    """The text of a file without spaces, and its words."""
    pieces: list[str] = []
    words: list[_Word] = []
    start, end, inside = 0, 0, False
    for number, sentence in enumerate(sentences, start=1):
        name = f"{whose} sentence {sentence.sent_id or number}"
        if len(sentence.heads) != len(sentence.forms):
            raise DataError(f"{name}: expected a tree, got a sentence without")
        tokens = {token.first: token for token in sentence.multiword_tokens()}
        relations = sentence.relations or ("",) * len(sentence.forms)
        before, last = len(words), 0  # words of other sentences, and the last one of the token
        columns = zip(sentence.forms, sentence.heads, relations, strict=True)
        for place, (form, head, relation) in enumerate(columns, start=1):
            if place > last:
                inside, token = place in tokens, tokens.get(place)
                last, written = (token.last, token.form) if token else (place, form)
                pieces.append("".join(c for c in written if unicodedata.category(c) != "Zs"))
                start, end = end, end + len(pieces[-1])
                if start == end:
                    expected = "expected a word with characters other than spaces"
                    raise DataError(f"{name}: {expected}, got {written!r}")
            to = before + head - 1 if head else _ROOT
            words.append(_Word(form.lower(), start, end, inside, to, universal(relation), name))
    return "".join(pieces), words


def _first_difference(
    gold_text: str, system_text: str, gold: Sequence[_Word], system: Sequence[_Word]
) -> str:
    """Where two texts differ first, for a message."""
    characters = enumerate(zip_longest(gold_text, system_text))
    same = next(place for place, (one, other) in characters if one != other)
    found = [
        f"{text[same : same + 20]!r} in "
        + next((word.sentence for word in words if word.end > same), "the end")
        for text, words in ((gold_text, gold), (system_text, system))
    ]
    return f"expected gold and system words of the same text, got {' and '.join(found)}"


def _align(gold: Sequence[_Word], system: Sequence[_Word]) -> Iterator[tuple[int, int]]:
    """Pairs of gold and system words that belong together, from one walk along both."""
    g = s = 0  # the next words
    while g < len(gold) and s < len(system):
        left, right = gold[g], system[s]
        if left.inside or right.inside:
            token = left if left.inside else right
            # A plain word of the other side that began before the token is passed.
            first_gold = g + (not left.inside and left.start < token.start)
            first_system = s + (not right.inside and right.start < token.start)
            g, s = _end_of_stretch(gold, system, first_gold, first_system, token.end)
            yield from _common(gold, range(first_gold, g), system, range(first_system, s))
        elif (left.start, left.end) == (right.start, right.end):
            yield g, s
            g, s = g + 1, s + 1
        elif left.start <= right.start:
            g += 1
        else:
            s += 1


def _end_of_stretch(
    gold: Sequence[_Word], system: Sequence[_Word], g: int, s: int, end: int
) -> tuple[int, int]:
    """The words after a stretch of multi-word tokens that overlap, which goes to the character ``end`` at least.

    Words are taken by where they begin, gold before system, until what comes next on either side is outside: a plain word that ends
    beyond the stretch, or a multi-word token that begins there. A multi-word token that begins inside makes the stretch longer.
    """

    def reaches(words: Sequence[_Word], place: int) -> bool:
        if place == len(words):
            return False
        word = words[place]
        return word.start < end if word.inside else word.end <= end

    while reaches(gold, g) or reaches(system, s):
        if s == len(system) or (g < len(gold) and gold[g].start <= system[s].start):
            taken, g = gold[g], g + 1
        else:
            taken, s = system[s], s + 1
        if taken.inside:
            end = max(end, taken.end)
    return g, s


def _common(
    gold: Sequence[_Word], left: range, system: Sequence[_Word], right: range
) -> Iterator[tuple[int, int]]:
    """A longest common subsequence of two lists of words.

    Of several, the one that a walk from the left finds, gold words passed first.
    """
    # longest[i][j]: of the words from i and from j on
    longest = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in range(len(left) - 1, -1, -1):
        for j in range(len(right) - 1, -1, -1):
            same = gold[left[i]].form == system[right[j]].form
            longest[i][j] = (
                1 + longest[i + 1][j + 1] if same else max(longest[i + 1][j], longest[i][j + 1])
            )
    i = j = 0
    while i < len(left) and j < len(right):
        if gold[left[i]].form == system[right[j]].form:
            yield left[i], right[j]
            i, j = i + 1, j + 1
        elif longest[i][j] == longest[i + 1][j]:
            i += 1
        else:
            j += 1
