"""Templates: short strings that name the features of a token, or of an arc between two words.

A template is one or more atoms joined by ``|``. An atom is a name with a place in brackets,
relative to the word it belongs to; of an arc that word is ``head``, ``dep`` or ``between``, which
stands before the name with a dot, and the place is 0 if there is none. A place before the sentence
and one behind it have values of their own, ``<s>`` and ``</s>``; so has the root.

Features of tokens (`TemplateIndex`):

| atom | values |
| --- | --- |
| ``word[0]`` | the word |
| ``lower[-1]`` | the word before, in lower case, as by ``str.lower`` |
| ``shape[0]`` | X for a capital, d for a digit, x for another letter, else the character; at most four of each run: ``Xxxxx`` |
| ``type[0]`` | the shape with one character for each run: ``Xx``, ``d`` |
| ``prefix[0]{1:6}`` | its first character, first two, … first six |
| ``suffix[0]{2:4}`` | its last two characters to its last four |
| ``ngrams[0]{1:6}`` | all runs of one to six characters of the word between the marks ``<`` and ``>``, except the marks alone; each once |
| ``bag[-4:-1]`` | the words at these places, each once, in no order |
| ``pos[0]`` | any other name: a column of strings that the caller gives along with the words |
| ``bias`` | always there; stands alone |

Affixes, n-grams and bags have several values and stand alone, too.

Features of arcs (`ArcIndex`), each of them twice: alone, and together with the direction and the
length of the arc:

| atom | value |
| --- | --- |
| ``head.word`` | the head's form, in lower case |
| ``dep.lemma`` | the dependent's lemma |
| ``head.upos[1]`` | the universal part of speech of the word right of the head |
| ``dep.xpos[-1]`` | the treebank's own part of speech, of the word left of the dependent |
| ``dep.feats`` | the morphological features |
| ``head.prefix``, ``head.suffix`` | the first and last three characters of the form, in lower case |
| ``dep.shape`` | X for a capital, d for a digit, x for another letter, else the character; one for each run |
| ``between.upos`` | a part of speech between head and dependent: a feature for each one that occurs; at most one such atom in a template |

Two templates that would give the same features are refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from softq.errors import RecipeError
from softq.linear.finkel import FINKEL as FINKEL

COLUMNS = ("word", "lemma", "upos", "xpos", "feats", "prefix", "suffix", "shape")
"""Names of the atoms of arcs."""

_FINKEL_POS = (
    "pos[0]",
    "pos[-1]|pos[0]",
    "pos[0]|pos[1]",
    "pos[-1]|pos[0]|pos[1]",
    "word[0]|pos[0]",
)


def _tags(tag: str) -> tuple[str, ...]:
    """Parts of speech of an arc, of the words around its ends and of those between (McDonald, Crammer and Pereira 2005)."""
    h, d = f"head.{tag}", f"dep.{tag}"
    return (
        h,
        d,
        f"{h}|{d}",
        f"{h}|{h}[1]|{d}[-1]|{d}",
        f"{h}[-1]|{h}|{d}[-1]|{d}",
        f"{h}|{h}[1]|{d}|{d}[1]",
        f"{h}[-1]|{h}|{d}|{d}[1]",
        f"{h}|{d}[-1]|{d}",
        f"{h}|{d}|{d}[1]",
        f"{h}|{h}[1]|{d}",
        f"{h}[-1]|{h}|{d}",
        f"{h}|{d}[-1]|{d}|{d}[1]",
        f"{h}[-1]|{h}|{h}[1]|{d}",
        f"{h}|{d}[-2]|{d}[-1]|{d}",
        f"{h}|{d}|{d}[1]|{d}[2]",
        f"{h}|{h}[1]|{h}[2]|{d}",
        f"{h}[-2]|{h}[-1]|{h}|{d}",
        f"{h}|between.{tag}|{d}",
    )


def _words(word: str, tag: str) -> tuple[str, ...]:
    """Words and parts of speech of the two ends (McDonald, Crammer and Pereira 2005)."""
    hw, dw, ht, dt = f"head.{word}", f"dep.{word}", f"head.{tag}", f"dep.{tag}"
    return (
        hw,
        dw,
        f"{hw}|{ht}",
        f"{dw}|{dt}",
        f"{hw}|{dw}",
        f"{hw}|{dt}",
        f"{ht}|{dw}",
        f"{hw}|{ht}|{dt}",
        f"{ht}|{dw}|{dt}",
        f"{hw}|{ht}|{dw}",
        f"{hw}|{dw}|{dt}",
        f"{hw}|{ht}|{dw}|{dt}",
    )


ARC_TEMPLATES = (
    *_tags("xpos"),
    *_tags("upos"),
    *_words("word", "xpos"),
    "head.word|dep.upos",
    "head.upos|dep.word",
    "head.lemma",
    "dep.lemma",
    "head.lemma|dep.lemma",
    "head.lemma|dep.upos",
    "head.upos|dep.lemma",
    "head.lemma|dep.xpos",
    "head.xpos|dep.lemma",
    "head.lemma|head.xpos|dep.lemma|dep.xpos",
    "head.feats|dep.feats",
    "head.upos|head.feats|dep.upos|dep.feats",
    "head.feats|dep.upos",
    "head.upos|dep.feats",
    "head.feats|dep.xpos",
    "head.xpos|dep.feats",
    "head.suffix|dep.suffix",
    "head.suffix|dep.upos",
    "head.upos|dep.suffix",
    "head.suffix|dep.xpos",
    "head.xpos|dep.suffix",
    "head.suffix|head.xpos",
    "dep.suffix|dep.xpos",
    "head.prefix|dep.upos",
    "head.upos|dep.prefix",
    "head.word|dep.upos[-1]|dep.upos",
    "head.word|dep.upos|dep.upos[1]",
    "head.upos[-1]|head.upos|dep.word",
    "head.upos|head.upos[1]|dep.word",
    "dep.word[-1]|dep.upos",
    "dep.word[1]|dep.upos",
    "head.word[1]|head.upos|dep.upos",
    "head.word[-1]|head.upos|dep.upos",
    "head.upos|dep.word[-1]|dep.upos",
    "head.upos|dep.word[1]|dep.upos",
    "head.word|head.word[1]|dep.upos",
    "head.upos|dep.word[-1]|dep.word",
)
"""Features of arcs after McDonald, Crammer and Pereira (2005), and lemmas, morphology, affixes and neighbouring words beside them."""

RELATION_TEMPLATES = (
    "head.upos|dep.upos",
    "head.xpos|dep.xpos",
    "dep.word",
    "dep.lemma",
    "dep.xpos",
    "dep.suffix",
    "dep.feats",
    "head.word",
    "head.lemma",
    "head.feats",
    "head.word|dep.word",
    "head.lemma|dep.lemma",
    "head.lemma|dep.upos",
    "head.upos|dep.lemma",
    "head.word|dep.xpos",
    "head.xpos|dep.word",
    "head.feats|dep.feats",
    "head.suffix|dep.suffix",
    "head.xpos|dep.suffix",
    "head.upos|dep.upos|dep.upos[1]",
    "head.upos|dep.upos[-1]|dep.upos",
    "head.upos[-1]|head.upos|dep.upos",
    "head.upos|head.upos[1]|dep.upos",
    "head.upos|dep.upos[-1]|dep.upos|dep.upos[1]",
    "dep.word[-1]|dep.upos",
    "dep.word[1]|dep.upos",
    "head.upos|dep.word[-1]|dep.upos",
    "head.upos|dep.word[1]|dep.upos",
    "head.lemma|dep.word[-1]",
    "head.lemma|dep.word[1]",
    "head.upos|between.upos|dep.upos",
)
"""Features of an arc's relation: its two words, and what stands around them."""


_PIECES = ("prefix", "suffix", "ngrams")
_SEVERAL = (*_PIECES, "bag")  # names of atoms with several values
_OF_WORDS = ("word", "lower", "shape", "type", *_SEVERAL, "bias")
_WIDEST_BAG = 100
_ATOM = re.compile(
    r"(?:(?P<side>head|dep|between)\.)?(?P<name>[^\W\d]\w*)"
    r"(?:\[(?P<first>[+-]?[0-9]{1,9})(?::(?P<last>[+-]?[0-9]{1,9}))?\])?"  # places
    r"(?:\{(?P<low>[0-9]{1,9}):(?P<high>[0-9]{1,9})\})?"  # numbers of characters
)
_EXAMPLES = {
    False: "word[0], bag[-4:-1], suffix[0]{1:3} or bias",
    True: "head.word, dep.upos[-1] or between.upos",
}


class Atom(NamedTuple):
    """One atom.

    Attributes:
        side: ``"head"``, ``"dep"`` or ``"between"`` of an arc; "" of a token.
        name: what is read.
        first: the place, or the first of several.
        last: the last place; the same as the first except in a bag.
        low: the fewest characters of a piece of a word, 0 where there is no choice.
        high: the most characters.

    """

    side: str
    name: str
    first: int
    last: int
    low: int = 0
    high: int = 0

    @property
    def label(self) -> str:
        """The atom of a token without its braces."""
        return f"{self.name}[{self.first}{f':{self.last}' if self.name == 'bag' else ''}]"

    @property
    def column(self) -> str | None:
        """The column that an atom of a token reads, None if that is the words."""
        return None if self.name in _OF_WORDS else self.name


class Template(NamedTuple):
    """A parsed template; without atoms it is the bias."""

    text: str
    atoms: tuple[Atom, ...]

    @property
    def label(self) -> str:
        """Of a token: what the names of its features begin with."""
        return "|".join(atom.label for atom in self.atoms) or "bias"

    @property
    def key(self) -> tuple[Atom, ...]:
        """What tells its features from those of other templates, however they are written."""
        return tuple(sorted(atom._replace(low=0, high=0) for atom in self.atoms))

    def of(self, side: str) -> tuple[Atom, ...]:
        """Its atoms of one side of an arc."""
        return tuple(atom for atom in self.atoms if atom.side == side)


def default_templates(columns: Collection[str] = ()) -> tuple[str, ...]:
    """`FINKEL`, and with a column "pos" its features of parts of speech.

    >>> [template for template in default_templates(columns=("pos",)) if "pos" in template][:2]
    ['pos[0]', 'pos[-1]|pos[0]']
    """
    return FINKEL + _FINKEL_POS if "pos" in columns else FINKEL


def parse_templates(templates: Sequence[str], *, arcs: bool = False) -> tuple[Template, ...]:
    """Parse templates of tokens, or of arcs; no two may give the same features."""
    if isinstance(templates, str) or not all(isinstance(text, str) for text in templates):
        raise RecipeError(f"templates must be a sequence of strings, got {templates!r}")
    if not templates:
        smallest = "head.upos|dep.upos" if arcs else "bias"
        raise RecipeError(
            f"templates must hold at least one template such as {smallest!r}, got none"
        )
    seen: dict[tuple[Atom, ...], str] = {}
    parsed = tuple(parse_template(text, arcs=arcs) for text in templates)
    for template in parsed:
        if template.key in seen:
            raise RecipeError(
                f"templates {seen[template.key]!r} and {template.text!r} would give "
                f"{'an arc' if arcs else 'a token'} the same features: leave one out"
            )
        seen[template.key] = template.text
    return parsed


def parse_template(text: str, *, arcs: bool = False) -> Template:
    """Parse one template of tokens, or of arcs.

    >>> parse_template("word[-1]|word[0]").atoms[0]
    Atom(side='', name='word', first=-1, last=-1, low=0, high=0)
    >>> parse_template("head.upos|dep.word[-1]", arcs=True).of("dep")
    (Atom(side='dep', name='word', first=-1, last=-1, low=0, high=0),)
    """
    if text == "bias" and not arcs:
        return Template(text, ())
    atoms = tuple(_parse_atom(text, part.strip(), arcs) for part in text.split("|"))
    if sum(atom.side == "between" for atom in atoms) > 1:
        raise RecipeError(f"template {text!r}: expected at most one atom between, got several")
    for atom in atoms if len(atoms) > 1 and not arcs else ():
        if atom.name in (*_SEVERAL, "bias"):
            raise RecipeError(
                f"template {text!r}: expected atoms with one value each, got {atom.name}, which "
                "must stand alone"
            )
    return Template(text, atoms)


def _parse_atom(text: str, part: str, arcs: bool) -> Atom:
    found = _ATOM.fullmatch(part)
    if found is None or bool(found["side"]) != arcs:
        wanted: str | None = f"atoms such as {_EXAMPLES[arcs]}, joined by |"
    else:
        wanted = (_arc_fault if arcs else _token_fault)(**found.groupdict())
    if found is None or wanted is not None:
        raise RecipeError(f"template {text!r}: expected {wanted}, got {part!r}")
    side, name, first, last, low, high = found.groups()
    place = int(first or 0)
    return Atom(side or "", name, place, int(last or place), int(low or 0), int(high or 0))


def _arc_fault(side: str, name: str, first: str, last: str, low: str, high: str) -> str | None:
    """What was expected of an atom of an arc, None if nothing is wrong with it."""
    if name not in COLUMNS:
        near = difflib.get_close_matches(name, COLUMNS, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return f"one of the columns {', '.join(COLUMNS)}{hint}"
    if last or low:
        return "one place and no numbers of characters, as in dep.upos[-1]"
    return "an atom between without a place" if side == "between" and first else None


def _token_fault(
    side: str, name: str, first: str, last: str | None, low: str | None, high: str
) -> str | None:
    """What was expected of an atom of a token, None if nothing is wrong with it."""
    if first is None and name != "bias":
        return "a name and a place, as in word[0]"
    if (last is not None) != (name == "bag"):
        return "one place, or as in bag[-4:-1] the first and the last of a bag"
    if last is not None and not 0 <= int(last) - int(first) < _WIDEST_BAG:
        return f"a bag of 1 to {_WIDEST_BAG} places from left to right"
    if (low is not None) != (name in _PIECES):
        return "numbers of characters, as in suffix[0]{1:3}, with affixes and n-grams alone"
    if low is not None and not 1 <= int(low) <= int(high):
        return "numbers of characters from 1, the smaller one first"
    return None


def check_columns(templates: Sequence[Template], given: Collection[str]) -> tuple[str, ...]:
    """Names of the columns that templates of tokens read, in order of appearance.

    Each must be given.
    """
    names: dict[str, None] = {}
    for template in templates:
        for name in (atom.column for atom in template.atoms):
            if name is None:
                continue
            if name not in given:
                near = difflib.get_close_matches(name, [*_OF_WORDS, *given], 1)
                guess = f"; did you mean {near[0]!r}?" if near else ""
                raise RecipeError(
                    f"template {template.text!r} reads a column {name!r}, which is not given:"
                    f" expected one of {', '.join(_OF_WORDS)} or of the columns given"
                    f" ({', '.join(map(repr, given)) or 'none'}){guess}"
                )
            names[name] = None
    return tuple(names)


def columns_of(templates: Sequence[str]) -> tuple[str, ...]:
    """The columns that templates of arcs read."""
    read = {atom.name for text in templates for atom in parse_template(text, arcs=True).atoms}
    return tuple(column for column in COLUMNS if column in read)


def templates_for(templates: Sequence[str], given: Collection[str]) -> tuple[str, ...]:
    """Those of these templates of arcs that read nothing but the columns that are given.

    Where one kind of parts of speech is missing, the other takes its place.

    >>> templates_for(["head.upos|dep.upos", "head.xpos|dep.xpos", "head.word|dep.xpos", "dep.lemma"], given={"word", "upos"})
    ('head.upos|dep.upos', 'head.word|dep.upos')
    """
    found: dict[tuple[Atom, ...], str] = {}
    for text in templates:
        for column, other in (("upos", "xpos"), ("xpos", "upos")):
            if column not in given and other in given:
                text = text.replace(f".{column}", f".{other}")
        if set(columns_of([text])) <= set(given):
            found.setdefault(parse_template(text, arcs=True).key, text)
    return tuple(found.values())
