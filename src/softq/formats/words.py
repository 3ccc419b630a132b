"""Running text as the words that taggers and parsers are trained on, and how to tell it from a file of columns.

Words end where `softq.formats.tokens` ends them, at white space and at punctuation, in any script, and further:

- Addresses of pages and mail, ``@names`` and ``#tags`` are one word.
- English ``n't`` is a word of its own, as in treebanks: ``do n't``, ``ca n't``; other clitics are ``'s``, ``'ll``, ``l'``.
- A full stop after an initial or a title (``J.``, ``Dr.``) inside a line belongs to it.

>>> split_words("Dr. J. Smith (@jo) didn't visit Merkel's U.S. site, http://a.b/c.")
['Dr.', 'J.', 'Smith', '(', '@jo', ')', 'did', "n't", 'visit', 'Merkel', "'s", 'U.S.', 'site', ',', 'http://a.b/c', '.']
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence

from softq.errors import DataError
from softq.formats.tokens import MARK, MARK_IN_TEXT, tokens_of_chunk, without_marks

_WHOLE = re.compile(
    r"((?:https?://|www\.)\S*[\w/]|[\w.+-]+@[\w-]+(?:\.[\w-]+)+|(?<!\w)[@#]\w+)"
)  # addresses, @names and #tags
_TITLES = frozenset(
    [
        "Mr",
        "Mrs",
        "Ms",
        "Dr",
        "Prof",
        "St",
        "Jr",
        "Sr",
        "Gen",
        "Sen",
        "Rep",
        "Gov",
        "Col",
        "Capt",
        "Lt",
        "Hon",
        "Rev",
        "Hr",
        "Fr",
    ]
)
_NOT = re.compile(r"['\u2019\u02bc]t$")
_LABEL = re.compile(r"O|[BIES]-.+")
_SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f]['\")\]\u00bb\u2019\u201d]*$")


def split_words(text: str) -> list[str]:
    """The words of a line of running text; see the module."""
    words: list[str] = []
    chunks = text.split()
    for number, chunk in enumerate(chunks, start=1):
        for place, piece in enumerate(_WHOLE.split(chunk)):
            if place % 2:
                words.append(piece)
                continue
            for word in without_marks(tokens_of_chunk(piece)) if piece else ():
                before = words[-1] if words else ""
                if _NOT.match(word) and len(before) > 1 and before[-1] in "nN":
                    words[-1:] = [before[:-1], before[-1] + word]
                elif word == "." and number < len(chunks) and _takes_stop(before, chunk):
                    words[-1] += "."
                else:
                    words.append(word)
    return words


def place_words(text: str, words: Iterable[str]) -> list[tuple[int, int]]:
    """Where words stand in their text: the first character of each, and the one after its last.

    >>> place_words("Didn't she?", split_words("Didn't she?"))
    [(0, 3), (3, 6), (7, 10), (10, 11)]
    """
    places: list[tuple[int, int]] = []
    text, end = text.replace(MARK, MARK_IN_TEXT), 0
    for word in words:
        start = text.find(word.replace(MARK, MARK_IN_TEXT), end)
        if start < 0:
            raise DataError(
                f"expected the words of the text one after the other, got {word!r}, which is not"
                f" in {text[end : end + 50]!r}"
            )
        end = start + len(word)
        places.append((start, end))
    return places


def _takes_stop(word: str, chunk: str) -> bool:
    initial = len(word) == 1 and word.isupper()
    return chunk == f"{word}." and (initial or word in _TITLES)


def looks_like_text(lines: Sequence[str], labels: Container[str] = ()) -> bool:
    """Whether the first lines of what should be columns look like running text.

    Running text has no tabs, no label at the end of a line, and mostly lines of several words that
    end as sentences do or stand alone between empty lines; a column file has one token on a line,
    and a sentence on several.

    Args:
        lines: the first lines, without their ends.
        labels: what a column may hold at the end of a line, beside entity tags.

    >>> looks_like_text(["Angela Merkel visited Paris."])
    True
    >>> looks_like_text(["Angela B-PER", "visited O"]), looks_like_text(["Angela", "visited"])
    (False, False)

    """
    filled = [line.split() for line in lines]
    if any("\t" in line for line in lines) or any(
        words and (words[0] in ("#", "-DOCSTART-") or _is_label(words, labels)) for words in filled
    ):
        return False
    padded = [[], *filled, []]
    prose = [
        len(words) > 1
        and (bool(_SENTENCE_END.search(words[-1])) or not (padded[place] or padded[place + 2]))
        for place, words in enumerate(filled)
        if words
    ]
    return bool(prose) and 2 * sum(prose) > len(prose)


def _is_label(words: Sequence[str], labels: Container[str]) -> bool:
    return len(words) > 1 and (words[-1] in labels or is_entity_tag(words[-1]))


def is_entity_tag(label: str) -> bool:
    """Whether a label is an entity tag of any scheme.

    >>> is_entity_tag("B-PER"), is_entity_tag("NN")
    (True, False)
    """
    return _LABEL.fullmatch(label) is not None
