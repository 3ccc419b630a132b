"""Agreement on segments and Krippendorff's alpha, against other ways to compute them."""

from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softq.annotators import agreement
from softq.formats.conll import MISSING, Sentence

LABELS = ["O", "B-P", "I-P", "B-L", "I-L", MISSING]


@st.composite
def crowds(draw):
    sentences = []
    for _ in range(draw(st.integers(1, 3))):
        n = draw(st.integers(1, 4))
        label = st.lists(st.sampled_from(LABELS), min_size=n, max_size=n).map(tuple)
        names = draw(st.permutations(["u", "v", "w"]))[: draw(st.integers(2, 3))]
        rows = tuple(draw(label) for _ in names)
        sentences.append(Sentence(("t",) * n, rows, tuple(names)))
    return sentences


def type_of(labels, start, end):
    """The type of an entity of exactly these tokens, by what BIO says; "" if there is none."""

    def begins(t):
        # an I- that follows nothing of its type begins an entity, as conlleval has it
        before = labels[t - 1] if t else "O"
        return labels[t][0] == "B" or (labels[t][0] == "I" and before[2:] != labels[t][2:])

    kind = labels[start][2:]
    inside = all(labels[t] == f"I-{kind}" for t in range(start + 1, end))
    ends = end == len(labels) or labels[end] != f"I-{kind}"
    return kind if kind and begins(start) and inside and ends else ""


def segment_kappa(sentences, first, second):
    """Cohen's kappa over all stretches of tokens that both labelled, one by one."""
    pairs = []
    for sentence in sentences:
        rows = dict(zip(sentence.annotators, sentence.labels, strict=True))
        if first not in rows or second not in rows:
            continue
        n = len(sentence.tokens)
        for start in range(n):
            for end in range(start + 1, n + 1):
                both = [rows[name][t] for name in (first, second) for t in range(start, end)]
                if MISSING not in both:
                    pairs.append(tuple(type_of(rows[x], start, end) for x in (first, second)))
    observed = sum(a == b for a, b in pairs) / len(pairs)
    chance = sum(
        sum(a == kind for a, _ in pairs) * sum(b == kind for _, b in pairs) / len(pairs) ** 2
        for kind in ("", "P", "L")
    )
    return None if chance == 1 else (observed - chance) / (1 - chance)


@settings(max_examples=200, deadline=None)
@given(crowds())
def test_span_kappa_is_cohens_kappa_of_all_segments(sentences):
    for pair in agreement(sentences, "bio").pairs:
        expected = segment_kappa(sentences, pair.first, pair.second)
        assert pair.span_kappa == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_span_kappa_by_hand():
    # 6 segments of three tokens; entities [0, 2) and [2, 3) against [0, 2) alone
    rows = ("B-P", "I-P", "B-L"), ("B-P", "I-P", "O")
    (pair,) = agreement([Sentence(("a", "b", "c"), rows, ("u", "v"))], "bio").pairs
    chance = (4 * 5 + 1 * 1) / 36
    assert pair.span_kappa == pytest.approx((5 / 6 - chance) / (1 - chance))
    assert agreement([Sentence(("a", "b", "c"), rows, ("u", "v"))]).pairs[0].span_kappa is None


def alpha(units):
    """One less observed over expected disagreement, from the coincidence matrix (Krippendorff)."""
    units = [unit for unit in units if len(unit) > 1]
    coincidences = {}
    for unit in units:
        for a, b in permutations(unit, 2):
            coincidences[a, b] = coincidences.get((a, b), 0) + 1 / (len(unit) - 1)
    totals = {}
    for (a, _), count in coincidences.items():
        totals[a] = totals.get(a, 0) + count
    n = sum(totals.values())
    observed = sum(count for (a, b), count in coincidences.items() if a != b) / n
    expected = 2 * sum(totals[a] * totals[b] for a, b in combinations(totals, 2)) / (n * (n - 1))
    return 1 - observed / expected


@settings(max_examples=200, deadline=None)
@given(crowds())
def test_alpha_by_the_coincidence_matrix(sentences):
    units = [
        [label for label in column if label != MISSING]
        for sentence in sentences
        for column in zip(*sentence.labels, strict=True)
    ]
    found = agreement(sentences).alpha
    if len({label for unit in units if len(unit) > 1 for label in unit}) < 2:
        assert found is None
    else:
        assert found == pytest.approx(alpha(units), abs=1e-12)


def test_alpha_of_krippendorffs_example():
    # Computing Krippendorff's alpha-reliability (2011), section C: four observers, twelve units
    table = (
        "123321412???",
        "1233224125?3",
        "?3332342251?",
        "12332441251?",
    )
    sentence = Sentence(("u",) * 12, tuple(map(tuple, table)), ("A", "B", "C", "D"))
    assert round(agreement([sentence]).alpha, 3) == 0.743
