"""Tag schemes.

Spans against seqeval, faults against regular expressions, transitions against enumeration.
"""

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from softq.errors import DataError, OutputError
from softq.formats.conll import Sentence, find_scheme
from softq.formats.tags import Span, allowed_transitions, convert, faults, spans

SCHEMES = ["iob1", "bio", "bioes"]
PREFIXES = {"iob1": "BI", "bio": "BI", "bioes": "BIES"}
KINDS = ["PER", "MISC-X"]
# Whole sentences, a blank after each label. In iob1 every run of touching entities of one type
# starts with I-.
FAULTLESS = {
    "iob1": re.compile(r"(?:O |I-(\S+) (?:[IB]-\1 )*)*"),
    "bio": re.compile(r"(?:O |B-(\S+) (?:I-\1 )*)*"),
    "bioes": re.compile(r"(?:O |S-\S+ |B-(\S+) (?:I-\1 )*E-\1 )*"),
}


def inventory(scheme):
    return ["O", *(f"{prefix}-{kind}" for kind in KINDS for prefix in PREFIXES[scheme])]


def all_sentences(scheme, longest):
    return [
        labels
        for length in range(longest + 1)
        for labels in itertools.product(inventory(scheme), repeat=length)
    ]


def is_faultless(labels, scheme):
    return FAULTLESS[scheme].fullmatch("".join(f"{label} " for label in labels)) is not None


def sentences(scheme):
    return st.lists(st.sampled_from(inventory(scheme)), max_size=9)


schemes_and_sentences = st.sampled_from(SCHEMES).flatmap(
    lambda scheme: st.tuples(st.just(scheme), sentences(scheme))
)
schemes_and_two_sentences = st.sampled_from(SCHEMES).flatmap(
    lambda scheme: st.tuples(st.just(scheme), sentences(scheme), sentences(scheme))
)


@st.composite
def entities(draw):
    """Spans, from left to right, and the length of a sentence that holds them."""
    found, position = [], 0
    for gap, length, kind in draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from(KINDS)), max_size=5
        )
    ):
        found.append(Span(kind, position + gap, position + gap + length))
        position += gap + length
    return found, position + draw(st.integers(0, 2))


def written_as_bio(found, length):
    labels = ["O"] * length
    for kind, start, end in found:
        labels[start:end] = [f"B-{kind}"] + [f"I-{kind}"] * (end - start - 1)
    return labels


# --- spans --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_spans_are_those_of_seqeval(scheme):
    rng = random.Random(0)
    longer = [rng.choices(inventory(scheme), k=rng.randint(4, 30)) for _ in range(300)]
    for labels in [*all_sentences(scheme, 3), *longer]:
        assert spans(labels, scheme) == [
            (kind, start, last + 1) for kind, start, last in get_entities(list(labels))
        ]


@given(schemes_and_sentences)
@settings(deadline=None)
def test_spans_stand_in_order_and_hold_exactly_the_words_that_are_not_outside(case):
    scheme, labels = case
    found = spans(labels, scheme)
    positions = [position for span in found for position in range(span.start, span.end)]
    assert positions == [position for position, label in enumerate(labels) if label != "O"]
    assert all(label[2:] == kind for kind, start, end in found for label in labels[start:end])


@given(schemes_and_two_sentences)
@settings(deadline=None)
def test_what_stands_beyond_an_outside_word_changes_no_span(case):
    scheme, left, right = case
    moved = [
        Span(kind, start + len(left) + 1, end + len(left) + 1)
        for kind, start, end in spans(right, scheme)
    ]
    assert spans([*left, "O", *right], scheme) == spans(left, scheme) + moved


@given(entities(), st.sampled_from(SCHEMES))
@settings(deadline=None)
def test_every_scheme_can_write_any_entities(case, scheme):
    found, length = case
    written = convert(written_as_bio(found, length), "bio", scheme)
    assert spans(written, scheme) == found
    assert len(written) == length
    assert is_faultless(written, scheme)


@pytest.mark.parametrize(
    "label", ["B", "X-PER", "", "B-", "-PER", "o", "b-PER", "O-PER", "BI-PER", "S-PER"]
)
def test_a_label_that_is_no_tag_is_an_error(label):
    with pytest.raises(
        OutputError,
        match=f"label 1 is no tag of bio: expected O, or a type after B- or I-, .*, got '{label}'",
    ):
        spans(["O", label], "bio")


def test_an_unknown_scheme_is_an_error():
    for call in (
        lambda: spans([], "bilou"),
        lambda: faults([], "bilou"),
        lambda: convert([], "bio", "bilou"),
    ):
        with pytest.raises(DataError, match="expected one of iob1, bio, bioes, got 'bilou'"):
            call()


# --- faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_faults_are_the_neighbours_that_no_faultless_sentence_has(scheme):
    every = all_sentences(scheme, 4)
    faultless = [labels for labels in every if is_faultless(labels, scheme)]
    neighbours = {
        pair for labels in faultless for pair in itertools.pairwise(("edge", *labels, "edge"))
    }
    for labels in every:
        wrong = [
            position
            for position, pair in enumerate(itertools.pairwise(("edge", *labels, "edge")))
            if pair not in neighbours
        ]
        assert [position for position, _ in faults(labels, scheme)] == [
            min(position, len(labels) - 1) for position in wrong
        ]
        assert is_faultless(labels, scheme) == (not wrong)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_fault_names_exactly_the_labels_that_would_mend_it(scheme):
    for labels in all_sentences(scheme, 3):
        for position, message in faults(labels, scheme):
            expected, place, got = re.fullmatch(
                r"expected (.*) (after \S+|at the start|at the end), got (.*)", message
            ).groups()
            patterns = [
                re.escape(part).replace(r"\*", r"\S+") for part in re.split(", | or ", expected)
            ]
            named = {
                label
                for label in inventory(scheme)
                if any(re.fullmatch(pattern, label) for pattern in patterns)
            }
            mended = {
                label
                for label in inventory(scheme)
                if not any(
                    at == position and place in again
                    for at, again in faults([*labels[:position], label], scheme)
                )
            }
            assert named == mended
            assert got == labels[position]
            assert (
                place in ("at the start", "at the end")
                if position == 0
                else place in (f"after {labels[position - 1]}", "at the end")
            )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_labels_that_are_no_tags_are_faults_and_blame_no_other(scheme):
    found = faults(["B", "I-PER", "X-PER", "B-PER", ""], scheme)
    assert [position for position, _ in found if position in (0, 2, 4)] == [0, 2, 4]
    assert (1, "I-PER") not in [
        (position, message.rpartition(" ")[2]) for position, message in found
    ]
    ending = "B-, I-, E- or S-" if scheme == "bioes" else "B- or I-"
    assert found[0] == (0, f"expected O, or a type after {ending}, such as B-PER, got 'B'")
    assert [position for position, _ in faults(["S-PER"], scheme)] == (
        [] if scheme == "bioes" else [0]
    )


# --- convert, find_scheme ----------------------------------------------------------------------------


@given(schemes_and_sentences, st.sampled_from(SCHEMES))
@settings(deadline=None)
def test_conversion_keeps_the_entities_and_writes_no_fault(case, target):
    source, labels = case
    written = convert(labels, source, target)
    assert spans(written, target) == spans(labels, source)
    assert is_faultless(written, target)
    back = convert(written, target, source)
    assert (back == labels) == is_faultless(labels, source)


@given(st.lists(entities(), min_size=1, max_size=4), st.sampled_from(SCHEMES))
@settings(deadline=None)
def test_the_scheme_is_told_by_any_entity(cases, scheme):
    written = [convert(written_as_bio(found, length), "bio", scheme) for found, length in cases]
    sentences = [Sentence(tuple("x" * len(labels)), (tuple(labels),)) for labels in written]
    assert find_scheme(sentences) == (scheme if any(found for found, _ in cases) else None)


# --- allowed_transitions ------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_transitions_allow_exactly_the_sentences_without_faults(scheme):
    labels = inventory(scheme)
    transitions = allowed_transitions(labels, scheme)
    between, first, last = (part.tolist() for part in transitions)
    assert transitions[0].shape == (len(labels), len(labels))
    for length in range(1, 5):
        for path in itertools.product(range(len(labels)), repeat=length):
            allowed = (
                first[path[0]]
                and last[path[-1]]
                and all(between[a][b] for a, b in itertools.pairwise(path))
            )
            assert allowed == (not faults([labels[index] for index in path], scheme))


def test_transitions_of_an_empty_inventory_and_of_no_tags():
    assert [tuple(part.shape) for part in allowed_transitions([], "bio")] == [(0, 0), (0,), (0,)]
    with pytest.raises(
        OutputError,
        match=(
            "label 1 is no tag of bio: expected O, or a type after B- or I-, such as B-PER, got"
            " 'E-PER'"
        ),
    ):
        allowed_transitions(["O", "E-PER"], "bio")
