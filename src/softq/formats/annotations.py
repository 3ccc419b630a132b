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
discarded or a draft are nobody's, and so are predictions and suggestions. Records with one annotator
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
from pathlib import Path
from reprlib import repr as shown
from sys import intern
from typing import Any

from softq.errors import DataError, DataWarning
from softq.formats.conll import (
    MISSING,
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
from softq.formats.text import (
    Fault,
    file_type,
    name_of,
    opened,
    read_parts,
    read_whole,
    refuse,
)
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
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WHOLE = re.compile(rb"\s*(\[|\{\s*\n)")  # how a file begins that is no record on each line
_TEXT = re.compile(r'\s*(\[\s*)?\{\s*["}]')  # how JSON begins, and columns do not
_HEAD = 1 << 12  # bytes to tell by what a file is
_FIRST_KEY = re.compile(rb'"(images|text|tokens|data|fields)"\s*:')
_NOTES = {
    "widened": "spans that begin or end inside a word and were widened",
    "lost": "spans that were left out, of white space or of a word that another span has",
    "other": "spans that do not have the text that the file quotes for them",
    "nobody": "texts that nobody labelled, left out",
}


def is_json(source: Path | str) -> bool:
    """Whether a file is JSON by the end of its name, or a text by its beginning."""
    if isinstance(source, str) and "\n" in source:
        return _TEXT.match(source) is not None
    return file_type(Path(source)) in (".json", ".jsonl")


def looks_annotated(path: Path) -> bool:
    """Whether a file of JSON holds labels of texts: its first records are not Karpathy's captions."""
    if not is_json(path):
        return False
    with opened(path) as file:
        head = file.read(_HEAD)
    first = _FIRST_KEY.search(head)
    return head.removeprefix(_BYTE_ORDER_MARK).lstrip()[:1] == b"[" or (
        first is not None and first[1] != b"images"
    )


def read_annotations(
    *sources: Path | str, annotators: Annotators = 0, scheme: Scheme | None = None
) -> Corpus:
    r"""Sentences of JSON as this module describes it, or of columns; a fault is a ``DataError`` with its line or record.

    What was changed, spans that were widened say, is counted in a `softq.errors.DataWarning`.

    Args:
        sources: A file, or its text, a string with line ends. Several are the labels of one annotator
            each, who is called by the file's name where the file names nobody; the same words, or
            the same ``id`` and words, are one sentence.
        annotators: How many annotators each sentence has, or "all" for any number; needless where
            the file names them. With 0, labels that are all one annotator's are nobody's in
            particular. Of columns as `read_conll` has it.
        scheme: That of the labels, BIO for spans unless it is given.

    >>> corpus = read_annotations('{"text": "Ann ran.", "label": [[0, 3, "PER"]], "user": "w1"}\n'
    ...                           '{"text": "Ann ran.", "label": [], "user": "w2"}\n')
    >>> corpus.sentences[0].labels, corpus.sentences[0].annotators
    ((('B-PER', 'O', 'O'), ('O', 'O', 'O')), ('w1', 'w2'))

    """
    if not sources:
        raise DataError("expected a file of labels, got none")
    sentences: list[Sentence] = []
    for number, source in enumerate(sources, 1):
        if is_json(source):
            read, found, notes = _parse(source, scheme)
            if scheme is not None:
                found += tag_faults(certain(read), scheme)
            refuse(name_of(source), sorted(found))
            if notes:
                told = "; ".join(f"{_NOTES[note]}: {count:,}" for note, count in notes.items())
                warnings.warn(f"{name_of(source)}: {told}", DataWarning, stacklevel=2)
        elif len(sources) == 1:
            return read_conll(source, annotators=annotators, scheme=scheme)
        else:
            read = read_conll(source, annotators=annotators, scheme=scheme).sentences
        if (annotators or sources[1:]) and not any(one.annotators for one in read):
            file = Path(name_of(source).removesuffix(".gz").removesuffix(".xz"))
            whose = str(number) if name_of(source) == "the text" else _spelled_name(file.stem)
            read = [replace(one, annotators=(whose,)) for one in read]
        sentences += read
    sentences = _gathered(sentences)
    alone = len({one.annotators for one in sentences}) == 1 == len(sentences[0].labels)
    if alone and annotators == 0 and len(sources) == 1:
        sentences = [replace(one, annotators=()) for one in sentences]
    name = ", ".join(map(name_of, sources))
    refuse(name, list(_wrong_numbers(sentences, annotators)))
    return Corpus(name, sentences)


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
    found += _wrong_numbers(_gathered(sentences), annotators)
    judged = certain(sentences)
    scheme = scheme or find_scheme(judged)
    return sorted([*found, *(tag_faults(judged, scheme) if scheme else [])])


def certain(sentences: Iterable[Sentence]) -> list[Sentence]:
    """The same sentences with `MISSING` for labels that are not one.

    Where nobody is named and a label is missing, annotators without a name are.

    >>> certain([Sentence(("Ann", "ran"), (("B-PER|B-ORG", "O"),))])[0].labels
    (('?', 'O'),)
    """
    found = []
    for one in sentences:
        labels = tuple(
            tuple(MISSING if "|" in label else label for label in row) for row in one.labels
        )
        missing = any(MISSING in row for row in labels)
        whose = one.annotators or ("",) * (missing and len(labels))
        found.append(replace(one, labels=labels, annotators=whose))
    return found


def _wrong_numbers(sentences: Iterable[Sentence], annotators: Annotators) -> Iterator[Fault]:
    """Sentences that do not have the labels of so many annotators."""
    for one in sentences:
        if annotators not in (0, "all", len(one.labels)):
            expected = f"expected labels of {annotators} annotators, got {len(one.labels)}"
            yield Fault(0, f"{one.where()}: {expected}")


def _gathered(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Sentences of one annotator each that are the same sentence, as one."""
    found: dict[Any, Sentence] = {}
    times = Counter[Any]()  # that an annotator has had the same words
    for number, one in enumerate(sentences):
        key: Any = number
        if len(one.annotators) == 1:
            whose = one.annotators, one.tokens
            key = one.comments, one.tokens, 0 if one.comments else times[whose]
            times[whose] += 1
        first = found.setdefault(key, one)
        if first is not one:
            labels, names = first.labels + one.labels, first.annotators + one.annotators
            found[key] = replace(first, labels=labels, annotators=names)
    return list(found.values())


def _parse(
    source: Path | str, scheme: Scheme | None
) -> tuple[list[Sentence], list[Fault], Counter[str]]:
    """Sentences without a fault, all faults, and how often something was changed."""
    found: list[Fault] = []
    notes = Counter[str]()
    sentences: list[Sentence] = []

    def refused(line: int, unit: str, message: str) -> None:
        found.append(
            Fault(line, message) if unit == "line" else Fault(0, f"record {line}: {message}")
        )

    for line, unit, record in _records(source, found):
        try:
            words, labels = _read_record(record, scheme, notes)
        except DataError as error:
            refused(line, unit, str(error))
            continue
        except FAULTS as error:
            refused(line, unit, f"expected a record such as {_EXAMPLE}, got {in_one_line(error)}")
            continue
        if not labels:
            notes["nobody"] += 1
            continue
        names, rows = zip(*labels, strict=True)
        sent_id = " ".join(str(record.get("id") or "").split())
        comments = (f"# sent_id = {sent_id}",) if sent_id else ()
        sentences.append(Sentence(words, rows, names if names[0] else (), (), line, comments, unit))
    if any(one.annotators for one in sentences):
        for one in sentences:
            if not one.annotators and {*one.labels[0]} != {OUTSIDE}:
                refused(one.line, one.unit, "expected the annotator's name, as in other records")
        notes["nobody"] += sum(not one.annotators for one in sentences)
        sentences = [one for one in sentences if one.annotators]
    if not sentences and not found:
        found.append(Fault(0, f"no labelled text: expected records such as {_EXAMPLE}"))
    return sentences, found, +notes


def _records(source: Path | str, found: list[Fault]) -> Iterator[tuple[int, str, Any]]:
    """All records, each with its number and what that counts; what cannot be read goes to ``found``."""
    with opened(source) as file:
        head = file.read(_HEAD).removeprefix(_BYTE_ORDER_MARK)
    if _WHOLE.match(head):
        try:
            whole = parse_json(read_whole(source).removeprefix(_BYTE_ORDER_MARK), "it")
        except DataError as error:
            found.append(Fault(getattr(error.__cause__, "lineno", 0), str(error)))
            return
        for number, record in enumerate(whole if isinstance(whole, list) else [whole], 1):
            yield number, "record", record
        return
    with opened(source) as file:
        for part in read_parts(file, name_of(source), sentences=False, strict=False):
            found += part.faults
            wrong = {fault.line for fault in part.faults}
            for number, line in enumerate(part.lines, part.first):
                if line.strip() and number not in wrong:
                    try:
                        record = parse_json(line, "the line")
                    except DataError as error:
                        found.append(Fault(number, str(error)))
                        continue
                    yield number, "line", record


def _read_record(
    record: Any, scheme: Scheme | None, notes: Counter[str]
) -> tuple[tuple[str, ...], list[tuple[str, tuple[str, ...]]]]:
    """The words of a record, and names of annotators with their labels."""
    if not isinstance(record, dict):
        raise DataError(f"expected a record such as {_EXAMPLE}, got {shown(record)}")
    given = _labels_of(record)
    if not given:
        return (), []
    inside = record.get("data", record.get("fields"))
    holder = inside if isinstance(inside, dict) else record
    tokens = holder.get("tokens", record.get("tokens"))
    text: Any = inside if isinstance(inside, str) else holder.get("text")
    strings = [value for value in holder.values() if isinstance(value, str)]
    if text is None and holder is inside and len(strings) == 1:
        (text,) = strings
    if tokens is None and not isinstance(text, str):
        raise DataError(
            "expected a text under 'text', or a list of words under 'tokens', got"
            f" {', '.join(map(repr, holder)) or 'neither'}"
        )
    words = split_words(text) if tokens is None else tokens
    if not isinstance(words, list) or not words or not all(isinstance(w, str) and w for w in words):
        raise DataError(f"expected one word or more, none of them empty, got {shown(words)}")
    spans = all(map(_holds_spans, (value for _, value in given)))
    if spans:
        words = [word for word in words if not word.isspace()]
        if not isinstance(text, str):
            raise DataError("expected the text of which spans count characters, under 'text'")
        places = place_words(text, words)
    labels = []
    for name, value in given:
        try:
            if spans:
                row = _from_spans(sorted(_spans(value, text, notes)), places, notes)
                row = convert(row, "bio", scheme) if scheme not in (None, "bio") else row
            elif tokens is None:
                raise DataError(f"expected spans such as [0, 3, 'PER'], got {shown(value)}")
            else:
                row = _from_tokens(value, len(words))
        except DataError as error:
            raise DataError(f"annotator {name}: {error}" if name else str(error)) from None
        labels.append((name, tuple(map(intern, row))))
    return tuple(map(intern, words)), labels


def _labels_of(record: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Whose labels a record has and what they are, not looked at yet; a name is empty where there is none."""
    value = _value_of(record)
    if value is None or _is_left_out(record):
        return []
    if isinstance(value, dict):
        return [(_spelled_name(name), row) for name, row in value.items() if row is not None]
    if not isinstance(value, list):
        raise DataError(f"expected a list of spans or labels, got {shown(value)}")
    if value and all(map(_is_annotation, value)):
        rows = ((one, _result(one)) for one in value if not _is_left_out(one))
        return [
            (_name(one) or str(number), row)
            for number, (one, row) in enumerate(rows, 1)
            if row is not None
        ]
    names = [_name(one) if isinstance(one, dict) else "" for one in value]
    if any(names):
        if not all(names):
            raise DataError(f"expected the name of an annotator for each span, got {shown(value)}")
        return [
            (whose, [one for one, name in zip(value, names, strict=True) if name == whose])
            for whose in dict.fromkeys(names)
        ]
    if not value and isinstance(record.get("data"), dict):
        return []  # a task of Label Studio that waits
    return [(_name(record), value)]


def _value_of(record: Mapping[str, Any]) -> Any:
    """What a record has under the first name of labels that it has; None where nobody labelled it."""
    answers: dict[str, Any] = {}
    nested = record.get("responses")
    if isinstance(nested, dict):
        answers |= nested
    for key, values in record.items():
        if key.endswith(".responses"):
            columns = (values, record.get(f"{key}.users"), record.get(f"{key}.status"))
            length = len(values or [])
            whole = [column or [None] * length for column in columns]
            answers[key] = [
                {"value": value, "user_id": user, "status": status}
                for value, user, status in zip(*whole, strict=True)
            ]
    if answers:
        spans = {
            question: given
            for question, given in answers.items()
            if given and all(one["value"] is None or _holds_spans(one["value"]) for one in given)
        }
        if len(spans) > 1:
            raise DataError(f"expected one question of spans, got {', '.join(map(repr, spans))}")
        return next(iter(spans.values()), None)
    for key in _LABELS:
        if key in record:
            return record[key]
    others = [value for value in record.values() if value and _holds_spans(value)]
    if len(others) == 1 or "annotation_id" in record:
        return others[0] if others else []
    raise DataError(
        f"expected labels under one of {', '.join(map(repr, _LABELS))}, got"
        f" {', '.join(map(repr, record)) or 'an empty record'}"
    )


def _is_annotation(value: Any) -> bool:
    """Whether this is all that one annotator labelled, and no span."""
    if not isinstance(value, dict) or _is_span(value):
        return False
    return any(key in value for key in ("result", "value", *_LABELS))


def _is_left_out(holder: Mapping[str, Any]) -> bool:
    """Whether an annotator took labels back, or did not finish them."""
    status = str(holder.get("status")).lower()
    return bool(holder.get("was_cancelled")) or status in ("discarded", "draft")


def _result(annotation: Mapping[str, Any]) -> Any:
    """What one annotator labelled; of Label Studio's regions those that are spans."""
    if "result" not in annotation:
        return next(annotation[key] for key in ("value", *_LABELS) if key in annotation)
    values = [region.get("value") or {} for region in annotation["result"]]
    others = sorted(
        {key for value in values for key in value if key.endswith("labels")} - {"labels"}
    )
    if others:
        raise DataError(f"expected labels of a text, got {', '.join(others)}")
    return [value for value in values if "labels" in value]


def _name(holder: Mapping[str, Any]) -> str:
    """Who labelled something; empty where nobody is named."""
    for key in _NAMES:
        value = holder.get(key)
        if isinstance(value, dict):
            value = next((value[k] for k in ("email", "username", "id") if value.get(k)), None)
        if value is not None and value != "":
            return _spelled_name(value)
    return ""


def _spelled_name(name: Any) -> str:
    if not isinstance(name, (str, int)):
        raise DataError(f"expected the name of an annotator, got {shown(name)}")
    return intern("_".join(str(name).split()))


def _holds_spans(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_span, value))


def _is_span(value: Any) -> bool:
    if isinstance(value, dict):
        return "start" in value or "start_offset" in value
    return isinstance(value, list) and len(value) > 2 and int in map(type, value[:2])


def _spans(value: Sequence[Any], text: str, notes: Counter[str]) -> Iterator[tuple[int, int, str]]:
    """First character, the one after the last, and label of each span."""
    for one in value:
        quoted = None
        if isinstance(one, list):
            start, end, label = one[:3] if type(one[0]) is int else (*one[1:3], one[0])
        else:
            start, end = (one.get(key, one.get(f"{key}_offset")) for key in ("start", "end"))
            label, quoted = one.get("label", one.get("labels")), one.get("text")
        if isinstance(label, list) and len(label) == 1:
            (label,) = label
        kind = " ".join(str(label).split()) if isinstance(label, (str, int)) else ""
        if type(start) is not int or type(end) is not int or not kind:
            raise DataError(f"expected start, end and one label of a span, got {shown(one)}")
        if isinstance(quoted, str) and quoted != text[start:end]:
            start, end = _in_characters(start, end, text, quoted)
            same = "".join(quoted.split()) == "".join(text[start:end].split())
            notes["other"] += not same
        if not 0 <= start <= end <= len(text):
            raise DataError(
                f"expected a span of the {len(text)} characters of the text, got {start} to {end}"
            )
        yield start, end, kind


def _in_characters(start: int, end: int, text: str, quoted: str) -> tuple[int, int]:
    """Offsets of a span, which browsers count in units of UTF-16."""
    units = text.encode("utf-16-le")
    places = [len(units[: 2 * place].decode("utf-16-le", "ignore")) for place in (start, end)]
    return (places[0], places[1]) if text[slice(*places)] == quoted else (start, end)


def _from_spans(
    spans: Iterable[tuple[int, int, str]], places: Sequence[tuple[int, int]], notes: Counter[str]
) -> list[str]:
    """BIO tags of words at these places."""
    starts, ends = zip(*places, strict=True)
    labels = [OUTSIDE] * len(places)
    free = 0  # the first word that no span has yet
    before = (0, 0, "")
    for span in spans:
        start, end, kind = span
        if start < before[1]:
            raise DataError(
                f"expected spans that do not overlap, got {list(before)} and {list(span)}"
            )
        first, last = bisect_right(ends, start), bisect_left(starts, end)
        if max(first, free) >= last:
            notes["lost"] += 1
            continue
        notes["widened"] += starts[first] < start or ends[last - 1] > end
        first, before = max(first, free), span
        labels[first:last] = [f"B-{kind}", *[f"I-{kind}"] * (last - first - 1)]
        free = last
    return labels


def _from_tokens(value: Any, length: int) -> list[str]:
    """Labels of tokens as columns spell them."""
    if not isinstance(value, list) or len(value) != length:
        raise DataError(f"expected a label for each of the {length} tokens, got {shown(value)}")
    labels = []
    for label in value:
        several = isinstance(label, (dict, list))
        text = spelled(label)
        if not (label is None or several or (isinstance(label, str) and label)) or (
            several and {*map(str, alternatives(text))} != {*map(str, label)}
        ):
            raise DataError(
                "expected a label, null, a list of labels or an object of their probabilities, got"
                f" {shown(label)}"
            )
        labels.append(text)
    return labels
