"""Labels of annotators as annotation tools export them: JSON, or JSON lines, with spans of a text or labels of tokens.

A file is JSON if its name ends in .json or .jsonl (and .gz or .xz). Whatever the ending, it holds a
list of records, or a record on each line. What is read of a record:

- Its words: the list ``tokens``, or the words of ``text`` by `softq.formats.words.split_words`.
  Label Studio and Argilla have the text inside ``data`` or ``fields``, some versions of doccano as
  ``data``.
- Its labels: ``annotations``, ``annotation``, ``spans``, ``entities``, ``labels`` or ``label``, or
  the answers of Argilla, ``responses`` or ``entities.responses``. They are a list of spans, or a
  label for each of the ``tokens``; or several of these, as an object with the names of annotators
  as keys, or as a list of objects that name theirs.
- A span is ``[0, 3, "PER"]``, ``["PER", 0, 3]``, or an object with ``start`` and ``end``, or
  ``start_offset`` and ``end_offset``, and with ``label`` or ``labels``, of which there is one.
  Offsets count characters. Labels become BIO tags, or those of the scheme that is requested.
- A label of a token is a string, null for none, a list of those that are allowed, or an object with
  probabilities: what `softq.formats.partial_labels` spells in columns.
- The annotator: ``annotator``, ``user``, ``username``, ``completed_by``, ``user_id``,
  ``annotation_agent`` or ``annotation_approver``, of a record, of a list of labels or of a span.
  Spaces in a name become ``_``.

An annotator who labelled nothing of a text said ``O`` everywhere. Labels that are null, cancelled,
discarded or a draft are left out, and so are predictions and suggestions. Records with one annotator
each that share ``id`` and words, or words where there is no ``id``, are one sentence. Spans that
begin or end inside a word are widened; spans of one annotator may not overlap.
"""

from __future__ import annotations

import re
import warnings
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from reprlib import repr as shown
from sys import intern
from typing import Any

from softq.errors import DataError, DataWarning
from softq.formats.conll import (
    Annotators,
    Corpus,
    Sentence,
    check_conll,
    find_scheme,
    read_conll,
    tag_faults,
)
from softq.formats.file_checks import FAULTS, in_one_line, parse_json
from softq.formats.partial_labels import alternatives, spelled
from softq.formats.tags import OUTSIDE, Scheme, convert
from softq.formats.text import Fault, file_type, name_of, opened, read_lines, read_whole, refuse
from softq.formats.words import place_words, split_words

_EXAMPLE = '{"text": "Ann ran.", "label": [[0, 3, "PER"]]}'
_LABELS = ("annotations", "annotation", "spans", "entities", "labels", "label")
_NAMES = (
    "annotator",
    "user",
    "username",
    "completed_by",
    "user_id",
    "annotation_agent",
    "annotation_approver",
)
_ORDERS = (("start", "end", "label"), ("label", "start", "end"))
_WHOLE = re.compile(rb"(\xef\xbb\xbf)?\s*(\[|\{\s*\n)")  # how a file begins that is one value
_TEXT = re.compile(r'\s*(\[\s*)?\{\s*["}]')  # how JSON begins, and columns do not
_OF_LABELS = re.compile(  # how JSON begins that is not of captions, an object with "images"
    rb'(\xef\xbb\xbf)?\s*(\[|\{((?!"images")[\s\S])*?"(text|tokens|data|fields)"\s*:)'
)
_HEAD = 1 << 12  # bytes to tell by what a file is
_NOTES = {
    "widened": "spans that begin or end inside a word and were widened",
    "lost": "spans that were left out, of white space or of a word that another span has",
    "other": "spans that do not have the text that the file quotes for them",
    "nobody": "texts that nobody labelled, left out",
}


def is_json(source: Path | str) -> bool:
    """Whether a file is JSON by the end of its name, or a text by its beginning."""
    text = _TEXT.match(str(source)) if name_of(source) == "the text" else None
    return text is not None or file_type(Path(source)) in (".json", ".jsonl")


def looks_annotated(path: Path) -> bool:
    """Whether a file of JSON holds labels of texts, and not Karpathy's captions, by its beginning."""
    with opened(path) as file:
        return _OF_LABELS.match(file.read(_HEAD)) is not None


def read_annotations(
    source: Path | str,
    *others: Path | str,
    annotators: Annotators = 0,
    scheme: Scheme | None = None,
) -> Corpus:
    r"""Sentences of JSON as this module describes it, or of columns; a fault is a ``DataError`` with its line or record.

    What was changed, spans that were widened say, is counted in a `softq.errors.DataWarning`.

    Args:
        source: A file, or its text, a string with line ends.
        others: More of them: each has the labels of one annotator, who is called by the file's name
            where the file names nobody. The same words, or the same ``id`` and words, are one
            sentence.
        annotators: Of columns as `read_conll` has it. Of JSON, which names its annotators: with 0,
            annotators are not named if one of them gave all labels.
        scheme: That of the labels, BIO for spans unless it is given.

    >>> corpus = read_annotations('{"text": "Ann ran.", "label": [[0, 3, "PER"]], "user": "w1"}\n'
    ...                           '{"text": "Ann ran.", "label": [], "user": "w2"}\n')
    >>> corpus.sentences[0].labels, corpus.sentences[0].annotators
    ((('B-PER', 'O', 'O'), ('O', 'O', 'O')), ('w1', 'w2'))

    """
    if not others and not is_json(source):
        return read_conll(source, annotators=annotators, scheme=scheme)
    sources, named = (source, *others), annotators or others
    sentences: list[Sentence] = []
    for number, given in enumerate(sources, 1):
        if is_json(given):
            read, found, changed = _parse(given, scheme)
            refuse(name_of(given), [*found, *(tag_faults(read, scheme) if scheme else [])])
            if changed:
                warnings.warn(f"{name_of(given)}: {changed}", DataWarning, stacklevel=2)
        else:
            read = read_conll(given, annotators=annotators, scheme=scheme).sentences
        sentences += _named_by_file(read, given, number) if named else read
    sentences = _gathered(sentences)
    if not named and len({one.annotators for one in sentences}) == 1 == len(sentences[0].labels):
        sentences = [replace(one, annotators=()) for one in sentences]
    return Corpus(", ".join(map(name_of, sources)), sentences)


def check_annotations(
    source: Path | str, *, annotators: Annotators = 0, scheme: Scheme | None = None
) -> list[Fault]:
    """Every fault of a file in order, none if it is sound; those of a list of records have no line.

    Columns are checked by `check_conll`.
    """
    if not is_json(source):
        return check_conll(source, annotators=annotators, scheme=scheme)
    try:
        sentences, found, _ = _parse(source, scheme)
    except DataError as error:
        return [Fault(0, str(error))]
    scheme = scheme or find_scheme(sentences)
    return [*found, *(tag_faults(sentences, scheme) if scheme else [])]


def _named_by_file(
    sentences: list[Sentence], source: Path | str, number: int
) -> Iterable[Sentence]:
    """Sentences that name nobody, as those of an annotator with the name of the file."""
    if any(one.annotators for one in sentences):
        return sentences
    file = Path(name_of(source).removesuffix(".gz").removesuffix(".xz"))
    name = _name({"user": number if file.name == "the text" else file.stem})
    return (replace(one, annotators=(name,)) for one in sentences)


def _gathered(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Sentences of one annotator each that are the same sentence, as one."""
    found: dict[Any, Sentence] = {}
    times = Counter[Any]()  # that an annotator has had the same words
    for number, one in enumerate(sentences):
        key = one.annotators, one.tokens
        same = one.comments, one.tokens, 0 if one.comments else times[key]
        times[key] += 1
        first = found.setdefault(same if len(one.annotators) == 1 else number, one)
        if first is not one:
            found[same] = replace(
                first,
                labels=first.labels + one.labels,
                annotators=first.annotators + one.annotators,
            )
    return list(found.values())


def _parse(source: Path | str, scheme: Scheme | None) -> tuple[list[Sentence], list[Fault], str]:
    """Sentences without a fault, all faults, and what was changed, in words."""
    sentences: list[Sentence] = []
    found: list[Fault] = []
    notes = Counter[str]()
    for line, unit, given in _records(source):
        try:
            record = parse_json(given, "the line") if unit == "line" else given
            sentences.append(_sentence(record, scheme, notes, line, unit))
        except FAULTS as error:
            expected = "" if isinstance(error, DataError) else f"expected {_EXAMPLE}, got "
            found.append(_fault(line, unit, expected + in_one_line(error)))
    kept = _labelled(sentences, found)
    notes["nobody"] = len(sentences) - len(kept)
    if not kept and not found:
        found.append(Fault(0, f"no labelled text: expected records such as {_EXAMPLE}"))
    changed = "; ".join(f"{_NOTES[note]}: {notes[note]:,}" for note in _NOTES if notes[note])
    return kept, sorted(found, key=lambda fault: fault.line), changed


def _labelled(sentences: list[Sentence], found: list[Fault]) -> list[Sentence]:
    """Those that somebody labelled; labels must name their annotator if any do."""
    named = any(one.annotators for one in sentences)
    found += [
        _fault(one.line, one.unit, "expected the name of an annotator, as in other records")
        for one in sentences
        if named and not one.annotators and {*chain(*one.labels)} - {OUTSIDE}
    ]
    return [one for one in sentences if one.labels and (one.annotators or not named)]


def _fault(number: int, unit: str, message: str) -> Fault:
    """What is wrong with a line, or with a record, whose line is not known."""
    return Fault(number, message) if unit == "line" else Fault(0, f"record {number}: {message}")


def _records(source: Path | str) -> Iterable[tuple[int, str, Any]]:
    """All records, or the lines that should hold them, each with its number and what that counts."""
    with opened(source) as file:
        head = file.read(_HEAD)
    if not _WHOLE.match(head):
        return ((k, "line", line) for k, line in enumerate(read_lines(source), 1) if line.strip())
    found = parse_json(read_whole(source).removeprefix(b"\xef\xbb\xbf"), name_of(source))
    return (
        (k, "record", one) for k, one in enumerate(found if isinstance(found, list) else [found], 1)
    )


def _sentence(
    record: Any, scheme: Scheme | None, notes: Counter[str], line: int, unit: str
) -> Sentence:
    """A record; without labels if nobody labelled it."""
    if not isinstance(record, dict):
        raise DataError(f"expected a record such as {_EXAMPLE}, got {shown(record)}")
    given = _labels_of(record)
    if not given:
        return Sentence((), (), line=line, unit=unit)
    names, values = zip(*given, strict=True)
    text, tokens, words = _text_of(record)
    if all(map(_holds_spans, values)):
        words = [word for word in words if not word.isspace()]
        rows = [*_from_spans(values, text, words, scheme or "bio", notes)]
    elif tokens is None:
        raise DataError(f"expected spans such as [0, 3, 'PER'], got {shown(values[0])}")
    else:
        rows = [_from_tokens(value, len(words)) for value in values]
    if len(names) > 1 and not all(names):
        raise DataError("expected the name of an annotator for all labels, got some without")
    sent_id = " ".join(str(record.get("id") or "").split())
    return Sentence(
        tuple(map(intern, words)),
        tuple(tuple(map(intern, row)) for row in rows),
        tuple(map(intern, filter(None, names))),
        line=line,
        comments=(f"# sent_id = {sent_id}",) if sent_id else (),
        unit=unit,
    )


def _text_of(record: Mapping[str, Any]) -> tuple[str | None, Any, list[str]]:
    """The text of a record and its tokens, None where it has none, and its words by one of them."""
    inside = record.get("data", record.get("fields"))
    holder = inside if isinstance(inside, dict) else record
    strings = [value for value in holder.values() if isinstance(value, str)]
    known = (
        holder.get("text"),
        inside,
        *(strings if holder is inside and len(strings) == 1 else ()),
    )
    text = next((value for value in known if isinstance(value, str)), None)
    tokens = holder.get("tokens", record.get("tokens"))
    words = split_words(text or "") if tokens is None else tokens
    if not isinstance(words, list) or not words or not all(isinstance(w, str) and w for w in words):
        raise DataError(
            "expected a text under 'text', or a list of words under 'tokens', none of them empty,"
            f" got {shown(text if tokens is None else tokens)}"
        )
    return text, tokens, words


def _labels_of(record: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The annotators of a record with their labels; a name is empty where there is none."""
    value, owner = _value_of(record), _name(record)
    if isinstance(value, dict):
        value = [{"annotator": name, "value": labels} for name, labels in value.items()]
    if value is None or _is_left_out(record):
        return []
    if not isinstance(value, list):
        raise DataError(f"expected a list of spans or labels, got {shown(value)}")
    if not value:  # a task of Label Studio waits, others have no labels
        return [] if isinstance(record.get("data"), dict) else [(owner, [])]
    if all(map(_is_annotation, value)):
        several = [(one, _result(one)) for one in value if not _is_left_out(one)]
        return [
            (_name(one, str(number)), labels)
            for number, (one, labels) in enumerate(several, 1)
            if labels is not None
        ]
    by_name: dict[str, list[Any]] = {}
    for one in value:
        by_name.setdefault(_name(one, owner), []).append(one)
    return list(by_name.items())


def _value_of(record: Mapping[str, Any]) -> Any:
    """What a record has under the first name of labels that it has; None where nobody labelled it."""
    answers = _answers(record)
    if answers:
        found = [given for given in answers.values() if _are_spans(given)]
    else:
        found = [record[key] for key in _LABELS if key in record][:1]
        found = found or [value for value in record.values() if value and _holds_spans(value)]
    if len(found) > 1 or not (found or answers or "annotation_id" in record):
        raise DataError(
            f"expected labels under one of {', '.join(map(repr, _LABELS))}, or answers to one"
            f" question of spans, got {', '.join(map(repr, answers or record)) or 'nothing'}"
        )
    return next(iter(found), None if answers else [])


def _answers(record: Mapping[str, Any]) -> dict[str, Any]:
    """What annotators answered to each question of Argilla."""
    nested = record.get("responses")
    answers = dict(nested) if isinstance(nested, dict) else {}
    for key in [key for key in record if key.endswith(".responses")]:
        answers[key] = [
            {"value": value, "user_id": user, "status": status}
            for value, user, status in zip_longest(
                *(record.get(key + more) or () for more in ("", ".users", ".status"))
            )
        ]
    return answers


def _are_spans(answers: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the answers to a question are spans, and not none at all."""
    return any(one["value"] is not None for one in answers) and all(
        _holds_spans(one["value"] or []) for one in answers
    )


def _is_annotation(value: Any) -> bool:
    """Whether this is all that one annotator labelled, and no span."""
    return (
        isinstance(value, dict)
        and not _is_span(value)
        and not {"result", "value", *_LABELS}.isdisjoint(value)
    )


def _is_left_out(holder: Mapping[str, Any]) -> bool:
    """Whether an annotator took labels back, or did not finish them."""
    return bool(holder.get("was_cancelled")) or (
        str(holder.get("status")).lower() in ("discarded", "draft")
    )


def _result(annotation: Mapping[str, Any]) -> Any:
    """What one annotator labelled; of Label Studio's regions those that are spans."""
    if "result" not in annotation:
        return next(annotation[key] for key in ("value", *_LABELS) if key in annotation)
    values = [region.get("value") or {} for region in annotation["result"]]
    if any(key.endswith("labels") and key != "labels" for value in values for key in value):
        raise DataError(f"expected labels of a text, got {shown(values)}")
    return [value for value in values if "labels" in value]


def _name(holder: Any, default: str = "") -> str:
    """Who labelled something; the default where nobody is named."""
    values = [holder.get(key) for key in _NAMES if isinstance(holder, dict)]
    names = [one.get("email") or one.get("id") if isinstance(one, dict) else one for one in values]
    found = ("_".join(str(name).split()) for name in names if isinstance(name, (str, int)))
    return next(found, "") or default


def _holds_spans(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_span, value))


def _is_span(value: Any) -> bool:
    return (isinstance(value, dict) and not {"start", "start_offset"}.isdisjoint(value)) or (
        isinstance(value, list) and len(value) > 2 and int in map(type, value[:2])
    )


def _spans(value: Sequence[Any], text: str, notes: Counter[str]) -> Iterator[tuple[int, int, str]]:
    """First character, the one after the last, and label of each span."""
    for given in value:
        one = (
            dict(zip(_ORDERS[type(given[0]) is not int], given, strict=False))
            if isinstance(given, list)
            else given
        )
        start, end = (one.get(key, one.get(f"{key}_offset")) for key in ("start", "end"))
        label, quoted = one.get("label", one.get("labels")), one.get("text")
        label = label[0] if isinstance(label, list) and len(label) == 1 else label
        kind = " ".join(str(label).split()) if isinstance(label, (str, int)) else ""
        if type(start) is not int or type(end) is not int or not kind:
            raise DataError(f"expected start, end and one label of a span, got {shown(given)}")
        if isinstance(quoted, str) and quoted != text[start:end]:
            first, last = _in_characters(text, start), _in_characters(text, end)
            start, end = (first, last) if text[first:last] == quoted else (start, end)
            notes["other"] += quoted.split() != text[start:end].split()
        if not 0 <= start <= end <= len(text):
            raise DataError(
                f"expected a span of the {len(text)} characters of the text, got {start} to {end}"
            )
        yield start, end, kind


def _in_characters(text: str, units: int) -> int:
    """A place in the text that is counted in units of UTF-16, as browsers do."""
    return len(text.encode("utf-16-le")[: 2 * units].decode("utf-16-le", "ignore"))


def _from_spans(
    values: Iterable[Any],
    text: str | None,
    words: Sequence[str],
    scheme: Scheme,
    notes: Counter[str],
) -> Iterator[list[str]]:
    """Tags of the words of a text by the spans of each annotator."""
    if text is None:
        raise DataError("expected the text of which spans count characters, under 'text'")
    starts, ends = zip(*place_words(text, words), strict=True)
    for value in values:
        spans = sorted(_spans(value, text, notes))
        for one, other in pairwise(spans):
            if other[0] < one[1]:
                raise DataError(
                    "expected spans of an annotator that do not overlap, got"
                    f" {list(one)} and {list(other)}"
                )
        labels = [OUTSIDE] * len(words)
        free = 0  # the first word that no span has yet
        for start, end, kind in spans:
            first, last = max(bisect_right(ends, start), free), bisect_left(starts, end)
            notes["lost"] += first >= last
            if first < last:
                notes["widened"] += starts[first] < start or ends[last - 1] > end
                labels[first:last] = [f"B-{kind}", *[f"I-{kind}"] * (last - first - 1)]
                free = last
        yield convert(labels, "bio", scheme)


def _from_tokens(value: Any, length: int) -> list[str]:
    """Labels of tokens as columns spell them."""
    if not isinstance(value, list) or len(value) != length:
        raise DataError(f"expected a label for each of the {length} tokens, got {shown(value)}")
    for label in value:
        several = isinstance(label, (dict, list))
        known = alternatives(spelled(label))
        if not (several or isinstance(label, str | None)) or (several and {*known} != {*label}):
            raise DataError(
                "expected a label, null, a list of labels or an object of their probabilities, got"
                f" {shown(label)}"
            )
    return [spelled(label) for label in value]
