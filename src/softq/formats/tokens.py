"""Text as words and words as text, for any language that Unicode can write.

From the words, the text comes back without rules.

A word that stood right beside its neighbour says so with a mark, ``￭``:

>>> tokenize('"Tom\u2019s well-known," she said (in 1.5 hours) ...')
['"￭', 'Tom', '￭\u2019s', 'well-known', '￭,', '￭"', 'she', 'said', '(￭', 'in', '1.5', 'hours', '￭)', '...']
>>> detokenize(_)
'"Tom\u2019s well-known," she said (in 1.5 hours) ...'

What is one word:

- Letters and digits that follow each other, with their combining marks and with format characters
  such as the zero-width joiner. Hyphens between them belong to the word, and so do ``.``, ``,`` and
  ``:`` between digits.
- Letters with a full stop behind each: ``U.S.``, ``z.B.``
- An apostrophe between letters, with what follows if that is one or two letters (``Tom ￭'s``, ``we
  ￭'ll``, ``geht ￭'s``), otherwise with what comes before (``l'￭ homme``, ``O'￭ Brien``).
- Each character on its own in scripts that are written without spaces and in which most characters
  mean something: Chinese ones and kana. Other scripts without spaces (Thai, Khmer, …) stay whole
  between spaces: to cut them takes a dictionary.
- Any other character, as many times as it stands there in a row: ``!``, ``...``, ``€``.

Of two words side by side, the one that is no letter or digit there has the mark: ``Tom`` is the
same word before a comma and before a space. Nothing is changed but white space, which becomes one
space between words and none at the ends, and the mark itself, which becomes ``■``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

MARK = "￭"
MARK_IN_TEXT = "■"  # what Unicode's compatibility forms make of the mark, too

_SINGLE = re.compile(
    "[\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_LETTER, _DIGIT, _CHINESE, _ATTACHED, _APOSTROPHE, _HYPHEN, _STOP, _COMMA, _OTHER = "ldcmahf,o"
_WRITTEN = _LETTER + _DIGIT + _CHINESE
_KIND_OF = (
    dict.fromkeys("'\u2019\u02bc", _APOSTROPHE)
    | dict.fromkeys("-\u2010\u2011", _HYPHEN)
    | {
        ".": _STOP,
        ",": _COMMA,
        ":": _COMMA,
    }
)
_WORD = re.compile(
    r"""(?<![ldm]) (?: l m* f ){2,}                                # U.S.
      | (?<=[ldm]) a m* (?: [ld] m* ){1,2} (?![ldm])               # 's after Tom
      | m* (?: [ld] m* )+                                          # a run of letters and digits, which goes on
        (?: (?: h (?=[ld]) | (?<=d) [f,] (?=d) ) (?: [ld] m* )+ )* #   over hyphens, and over stops and commas between digits
        (?: a (?= (?: [ld] m* ){3} ) )?                            #   up to an apostrophe before three or more
      | [^ld] m*                                                   # a Chinese character, or any other
    """,
    re.VERBOSE,
)


def tokenize(text: str) -> list[str]:
    """The words of a text, with marks where there is no space between them."""
    return [word for chunk in text.split() for word in tokens_of_chunk(chunk)]


def detokenize(words: Iterable[str]) -> str:
    """The text of words with marks.

    >>> detokenize(["(￭", "ja", "￭)", "￭.", "Nein", "￭!"])
    '(ja). Nein!'
    """
    return " ".join(words).replace(" " + MARK, "").replace(MARK + " ", "").replace(MARK, "")


def without_marks(words: Iterable[str]) -> list[str]:
    """The bare words, as metrics count them.

    >>> without_marks(tokenize("Nein, (Tom)!"))
    ['Nein', ',', '(', 'Tom', ')', '!']
    """
    return [word.strip(MARK) for word in words]


@lru_cache(1 << 17)
def tokens_of_chunk(chunk: str) -> tuple[str, ...]:
    """The words of a text without white space; they do not depend on what stands around it."""
    chunk = chunk.replace(MARK, MARK_IN_TEXT)
    if chunk.isascii() and chunk.isalnum():
        return (chunk,)
    kinds = "".join(map(_kind, chunk))
    spans: list[tuple[int, int]] = []
    for start, end in (match.span() for match in _WORD.finditer(kinds)):
        repeats = (
            bool(spans)
            and kinds[start] not in _WRITTEN
            and not chunk[spans[-1][0] : end].strip(chunk[start])
        )
        spans.append((spans.pop()[0] if repeats else start, end))  # three dots are one
    words: list[str] = []
    for start, end in spans:
        word = chunk[start:end]
        if start and kinds[start] in _WRITTEN and kinds[start - 1] not in _WRITTEN + _ATTACHED:
            words[-1] += MARK
        elif start:
            word = MARK + word
        words.append(word)
    return tuple(words)


@lru_cache(1 << 14)
def _kind(character: str) -> str:
    if character in _KIND_OF:
        return _KIND_OF[character]
    if _SINGLE.match(character):
        return _CHINESE
    category = unicodedata.category(character)
    if category[0] == "M" or category == "Cf":
        return _ATTACHED
    return {"L": _LETTER, "N": _DIGIT}.get(category[0], _OTHER)
