"""Attachment scores by their definitions, and scores of differently split text worked out by hand."""

import io
import random

import pytest
import torch

from softq.errors import DataError, ShapeError
from softq.formats.conllu import TreeSentence, iter_conllu
from softq.metrics import (
    ATTACHMENT_METRICS,
    ATTACHMENT_STATISTICS,
    align_score,
    attachment_statistics,
    clas,
    las,
    uas,
)
from softq.metrics.attachment import CONTENT_RELATIONS

RELATIONS = ["nsubj", "nsubj:pass", "obj", "det", "punct", "case", "nmod:poss", "root"]


def sentence(heads, relations=(), forms=None, lines=(), sent_id=""):
    blank = ("_",) * len(heads)
    return TreeSentence(
        forms or tuple("w" * len(heads)),
        blank,
        blank,
        blank,
        blank,
        tuple(heads),
        tuple(relations),
        lines,
        0,
        sent_id,
    )


def corpus(seed, size=40):
    """Sentences whose heads need not be trees: the scores do not care.

    And a prediction that is right in part.
    """
    rng = random.Random(seed)
    gold, heads, relations = [], [], []
    for _ in range(size):
        n = rng.randint(1, 7)
        gold.append(sentence(rng.choices(range(n + 1), k=n), rng.choices(RELATIONS, k=n)))
        heads.append([head if rng.random() < 0.8 else rng.randint(0, n) for head in gold[-1].heads])
        relations.append(
            [
                relation if rng.random() < 0.8 else rng.choice(RELATIONS)
                for relation in gold[-1].relations
            ]
        )
    return gold, heads, relations


def scores_by_definition(gold, heads, relations):
    words = [
        (
            h == a,
            r == b,
            r.split(":")[0] == b.split(":")[0],
            r.split(":")[0] in CONTENT_RELATIONS,
            b.split(":")[0] in CONTENT_RELATIONS,
        )
        for g, hs, rs in zip(gold, heads, relations, strict=True)
        for h, r, a, b in zip(g.heads, g.relations, hs, rs, strict=True)
    ]
    n = len(words)
    right = sum(head and label and content for head, _, label, content, _ in words)
    precision, recall = (
        right / sum(word[4] for word in words),
        right / sum(word[3] for word in words),
    )
    whole = [
        (
            list(g.heads) == hs,
            list(g.heads) == hs
            and [r.split(":")[0] for r in g.relations] == [r.split(":")[0] for r in rs],
        )
        for g, hs, rs in zip(gold, heads, relations, strict=True)
    ]
    return {
        "uas": sum(word[0] for word in words) / n,
        "las": sum(word[0] and word[2] for word in words) / n,
        "las_subtypes": sum(word[0] and word[1] for word in words) / n,
        "clas": 2 * precision * recall / (precision + recall),
        "exact_match": sum(pair[0] for pair in whole) / len(whole),
        "labelled_exact_match": sum(pair[1] for pair in whole) / len(whole),
    }


@pytest.mark.parametrize("seed", range(20))
def test_scores_by_definition(seed):
    gold, heads, relations = corpus(seed)
    rows = attachment_statistics(gold, heads, relations)
    assert rows.shape == (len(gold), len(ATTACHMENT_STATISTICS))
    assert rows.dtype == torch.float64
    found = {name: float(metric(rows.sum(0))) for name, metric in ATTACHMENT_METRICS.items()}
    assert found == pytest.approx(scores_by_definition(gold, heads, relations), abs=1e-12)
    assert list(found) == list(ATTACHMENT_METRICS)
    alone = torch.cat(
        [
            attachment_statistics([g], [h], [r])
            for g, h, r in zip(gold, heads, relations, strict=True)
        ]
    )
    assert torch.equal(rows, alone)


def test_a_perfect_parse_and_the_worst():
    gold, _, _ = corpus(1)
    rows = attachment_statistics(gold, [g.heads for g in gold], [g.relations for g in gold])
    assert all(float(metric(rows.sum(0))) == 1.0 for metric in ATTACHMENT_METRICS.values())
    rows = attachment_statistics(
        gold, [[-1] * len(g.heads) for g in gold], [g.relations for g in gold]
    )
    assert all(float(metric(rows.sum(0))) == 0.0 for metric in ATTACHMENT_METRICS.values())


def test_content_relations_are_those_of_the_task():
    core = "nsubj obj iobj csubj ccomp xcomp obl vocative expl dislocated advcl advmod discourse"
    others = (
        "nmod appos nummod acl amod conj fixed flat compound list parataxis orphan goeswith"
        " reparandum root dep"
    )
    assert {*core.split(), *others.split()} == CONTENT_RELATIONS
    functional = {"aux", "case", "cc", "clf", "cop", "det", "mark", "punct"}
    assert len(CONTENT_RELATIONS | functional) == 37  # all of Universal Dependencies, version 2


def test_without_relations_labelled_scores_are_not_known():
    gold, heads, _ = corpus(2)
    bare = [sentence(g.heads) for g in gold]
    for sentences in (gold, bare):
        sums = attachment_statistics(sentences, heads, None).sum(0)
        known = {name for name, metric in ATTACHMENT_METRICS.items() if not metric(sums).isnan()}
        assert known == {"uas", "exact_match"}
    with pytest.raises(ShapeError, match="expected gold sentences with relations"):
        attachment_statistics(bare, heads, heads)
    assert attachment_statistics([], [], []).shape == (0, len(ATTACHMENT_STATISTICS))


def test_without_content_words_clas_is_not_known():
    gold = [sentence((0, 1), ("ROOT", "OBJ")), sentence((2, 0), ("det", "punct"))]
    for relations in ([g.relations for g in gold], [("OBJ", "ROOT"), ("case", "mark")]):
        heads = [g.heads for g in gold]
        sums = attachment_statistics(gold, heads, relations).sum(0)
        assert {name for name, metric in ATTACHMENT_METRICS.items() if metric(sums).isnan()} == {
            "clas"
        }
        aligned = align_score(gold, [sentence(h, r) for h, r in zip(heads, relations, strict=True)])
        assert aligned.las.f1 == float(las(sums))
        assert aligned.clas is None
    for relations in (
        [("root", "OBJ"), ("det", "punct")],
        [("ROOT", "obj"), ("det", "punct")],
    ):  # wrong, and so known
        assert float(clas(attachment_statistics(gold, heads, relations).sum(0))) == 0
        assert align_score(
            gold, [sentence(h, r) for h, r in zip(heads, relations, strict=True)]
        ).clas[:3] == (0, 0, 0)


def test_what_does_not_fit_is_refused():
    gold = [sentence((0, 1), ("root", "obj"), sent_id="s7")]
    with pytest.raises(ShapeError, match="expected predicted heads for each of 1 sentences, got 2"):
        attachment_statistics(gold, [(0, 1)] * 2, None)
    with pytest.raises(
        ShapeError, match="sentence s7: expected predicted heads for 2 words, got 1"
    ):
        attachment_statistics(gold, [(0,)], None)
    with pytest.raises(
        ShapeError, match="sentence s7: expected predicted relations for 2 words, got 3"
    ):
        attachment_statistics(gold, [(0, 1)], [("a", "b", "c")])
    blind = TreeSentence(("a",), ("_",), ("_",), ("_",), ("_",))
    with pytest.raises(ShapeError, match="sentence 0: expected a gold tree"):
        attachment_statistics([blind], [(0,)], None)


def parsed(text):
    """Sentences from rows 'ID FORM HEAD DEPREL' separated by ';', sentences by '|'.

    '~' is a no-break space.
    """
    lines = []
    for block in text.split("|"):
        for row in block.split(";"):
            number, form, *tree = row.split()
            head, relation = tree or ("_", "_")
            lines.append(
                "\t".join(
                    (
                        number,
                        form.replace("~", "\u00a0"),
                        "_",
                        "_",
                        "_",
                        "_",
                        head,
                        relation,
                        "_",
                        "_",
                    )
                )
            )
        lines.append("")
    return [
        sentence
        for part in iter_conllu(io.BytesIO("\n".join(lines).encode()), "rows", trees=None)
        for sentence in part
    ]


def counts(agreed, system, gold):
    """How many words agree, from all three numbers of a score."""
    both = round(agreed.precision * system)
    assert agreed[:3] == pytest.approx((both / system, both / gold, 2 * both / (system + gold)))
    return both


@pytest.mark.parametrize(
    ("gold", "system", "sizes", "words", "attached", "labelled"),
    [
        # The same words: as attachment_statistics has it.
        ("1 a 2 nsubj;2 b 0 root", "1 a 2 obj;2 b 0 root", (2, 2), 2, 2, 1),
        ("1 a 2 nmod:poss;2 b 0 root", "1 a 2 nmod:x;2 b 0 root", (2, 2), 2, 2, 2),
        # "ab" is split by one side only: c aligns, its head b is no gold word, and the root is.
        ("1 ab 0 root;2 c 1 obj", "1 a 0 root;2 b 1 obj;3 c 2 obj", (3, 2), 1, 0, 0),
        ("1 ab 2 obj;2 c 0 root", "1 a 2 det;2 b 3 obj;3 c 0 root", (3, 2), 1, 1, 1),
        # Sentences are split elsewhere: heads are words of the text, not numbers.
        ("1 a 0 root|1 b 2 obj;2 c 0 root", "1 a 3 dep;2 b 3 obj;3 c 0 root", (3, 3), 3, 2, 2),
        # Spaces inside words do not count, of whatever kind.
        ("1 1~000 0 root;2 x 1 obj", "1 1000 0 root;2 x 1 obj", (2, 2), 2, 2, 2),
        # A multi-word token of both sides: words align by their forms in lower case, b with none.
        (
            "1-2 Zum;1 zu 3 case;2 dem 3 det;3 M 0 root",
            "1-2 Zum;1 Zu 3 case;2 der 3 det;3 M 0 root",
            (3, 3),
            2,
            2,
            2,
        ),
        # One side has the token whole: no word of it is found, but where its form is that of a
        # word.
        ("1-2 zum;1 zu 3 case;2 dem 3 det;3 M 0 root", "1 zum 2 case;2 M 0 root", (2, 3), 1, 1, 1),
        ("1-2 du;1 de 2 case;2 du 0 root", "1 du 0 root", (1, 2), 1, 1, 1),
        # Of two longest common subsequences, (x) and (y), the walk that passes gold words first
        # takes y.
        ("1-2 q;1 x 2 obj;2 y 0 root", "1-2 q;1 y 0 root;2 x 1 obj", (2, 2), 1, 1, 1),
        # A word that began before the multi-word token is not in its stretch, though its form is
        # that of a word there.
        ("1 x 3 dep;2-3 yz;2 xy 3 obj;3 b 0 root", "1 xy 2 obj;2 z 0 root", (2, 3), 0, 0, 0),
        # Multi-word tokens that overlap make one stretch: b and c are found, though c is in the
        # second gold token.
        (
            "1-2 pq;1 a 0 root;2 b 1 obj;3-4 rs;3 c 2 obj;4 d 1 obj",
            "1 p 2 obj;2-3 qr;2 b 0 root;3 c 2 obj;4 s 2 obj",
            (4, 4),
            2,
            1,
            1,
        ),
    ],
)
def test_words_that_differ(gold, system, sizes, words, attached, labelled):
    scores = align_score(parsed(gold), parsed(system))
    assert [counts(score, *sizes) for score in (scores.words, scores.uas, scores.las)] == [
        words,
        attached,
        labelled,
    ]


def test_content_words_of_differently_split_text():
    gold = parsed("1 the 2 det;2 ab 3 nsubj;3 ran 0 root")
    system = parsed("1 the 4 det;2 a 4 compound;3 b 4 nsubj;4 ran 0 root")
    scores = align_score(
        gold, system
    )  # the and ran are found; of content words, one of three and of two is right
    assert scores.words[:3] == pytest.approx((2 / 4, 2 / 3, 4 / 7))
    assert scores.uas[:3] == scores.las[:3] == pytest.approx((1 / 4, 1 / 3, 2 / 7))
    assert scores.clas[:3] == pytest.approx((1 / 3, 1 / 2, 2 / 5))


@pytest.mark.parametrize("seed", range(5))
def test_where_words_are_the_same_both_ways_agree(seed):
    gold, heads, relations = corpus(seed)
    system = [sentence(h, r) for h, r in zip(heads, relations, strict=True)]
    sums = attachment_statistics(gold, heads, relations).sum(0)
    scores = align_score(gold, system)
    assert (scores.words.f1, scores.uas.f1, scores.las.f1, scores.clas.f1) == pytest.approx(
        (1.0, *(float(f(sums)) for f in (uas, las, clas)))
    )
    assert scores.clas.precision == pytest.approx(float(sums[4] / sums[5]))
    bare = align_score(gold, [sentence(h) for h in heads])
    assert (bare.uas, bare.las, bare.clas) == (scores.uas, None, None)


def test_other_text_is_refused():
    gold = parsed("1 a 0 root|1 bc 0 root")
    with pytest.raises(DataError, match="got 'c' in gold sentence 2 and 'd' in system sentence 1"):
        align_score(gold, parsed("1 ab 0 root;2 d 1 obj"))
    with pytest.raises(DataError, match="got 'c' in gold sentence 2 and '' in the end"):
        align_score(gold, parsed("1 ab 0 root"))
    with pytest.raises(DataError, match="gold sentence 1: expected a tree"):
        align_score(parsed("1 a"), gold)
    with pytest.raises(
        DataError, match="system sentence 1: expected a word with characters other than spaces"
    ):
        align_score(gold, parsed("1 ~ 0 root"))
    assert align_score([], []).uas == (0, 0, 0, 0, 0)
