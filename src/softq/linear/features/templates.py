"""Templates: short strings that say which features a token has.

A template is one or more atoms joined by ``|``. It gives a token one feature, or several where its atom has several values.
Numbers in brackets are places relative to the token, 0 being its own. A place before the sentence has the value ``<s>``, one behind it
``</s>``; a word that is written so is another value.

| atom | values |
| --- | --- |
| ``word[0]`` | the word |
| ``lower[-1]`` | the word in lower case, as by ``str.lower`` |
| ``shape[0]`` | X for a capital, d for a digit, x for another letter, else the character; four at most of each run: ``Xxxxx`` |
| ``type[0]`` | the shape with one character for each run: ``Xx``, ``d`` |
| ``prefix[0]{1:6}`` | its first character, first two, … first six |
| ``suffix[0]{2:4}`` | its last two characters to its last four |
| ``ngrams[0]{1:6}`` | all runs of one to six characters of the word between the marks ``<`` and ``>``, but for the marks alone; each once |
| ``bag[-4:-1]`` | the words at these places, each once, in no order |
| ``pos[0]`` | any other name: a column of strings that the caller gives along with the words |
| ``bias`` | always there; stands alone |

Affixes, n-grams and bags have several values and stand alone, too. Two templates that differ in nothing but braces are refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple, NoReturn

from softq.errors import RecipeError

FINKEL = (
    "bias",
    "word[-1]",
    "word[0]",
    "word[1]",
    "lower[-2]",
    "lower[-1]",
    "lower[0]",
    "lower[1]",
    "lower[2]",
    "ngrams[0]{1:6}",
    "shape[-1]",
    "shape[0]",
    "shape[1]",
    "shape[-1]|shape[0]",
    "shape[0]|shape[1]",
    "shape[-1]|shape[0]|shape[1]",
    "type[-2]|type[-1]|type[0]|type[1]|type[2]",
    "bag[-4:-1]",
    "bag[1:4]",
    "word[-1]|word[0]",
    "word[0]|word[1]",
    "word[-1]|shape[0]",
    "shape[0]|word[1]",
    "prefix[-1]{1:3}",
    "suffix[-1]{1:3}",
    "prefix[1]{1:3}",
    "suffix[1]{1:3}",
)
"""Local features for entities, after Finkel, Grenager and Manning (2005); needs nothing but words.

Affixes of the word are among its n-grams: ``<Par`` is the prefix ``Par``.
"""

_FINKEL_POS = (
    "pos[0]",
    "pos[-1]|pos[0]",
    "pos[0]|pos[1]",
    "pos[-1]|pos[0]|pos[1]",
    "word[0]|pos[0]",
)

_WORD_ATOMS = ("word", "lower", "shape", "type")
_PIECES = ("prefix", "suffix", "ngrams")
_WIDEST_BAG = 100
_BUILT_IN = (*_WORD_ATOMS, *_PIECES, "bag", "bias")


class Atom(NamedTuple):
    """One atom: a name, the first and last place (the same but for a bag), the fewest and most characters (0 where there is no choice)."""

    name: str
    first: int
    last: int
    low: int = 0
    high: int = 0

    @property
    def label(self) -> str:
        """The atom without its braces."""
        return (
            f"{self.name}[{self.first}:{self.last}]"
            if self.name == "bag"
            else f"{self.name}[{self.first}]"
        )

    @property
    def column(self) -> str | None:
        """The column it reads, None if that is the words."""
        return None if self.name in _BUILT_IN else self.name


class Template(NamedTuple):
    """A template that was read; without atoms it is the bias."""

    text: str
    atoms: tuple[Atom, ...]

    @property
    def label(self) -> str:
        """What the names of its features begin with; also what tells them from those of other templates."""
        return "|".join(atom.label for atom in self.atoms) or "bias"


def default_templates(columns: Collection[str] = ()) -> tuple[str, ...]:
    """`FINKEL`, and with a column "pos" its features of parts of speech.

    >>> [template for template in default_templates(columns=("pos",)) if "pos" in template][:2]
    ['pos[0]', 'pos[-1]|pos[0]']
    """
    return FINKEL + _FINKEL_POS if "pos" in columns else FINKEL


def parse_templates(templates: Sequence[str]) -> tuple[Template, ...]:
    """Read templates; none may stand twice."""
    if isinstance(templates, str) or not all(isinstance(text, str) for text in templates):
        raise RecipeError(f"templates must be a sequence of strings, got {templates!r}")
    if not templates:
        raise RecipeError(
            "templates must hold at least one template, got none; 'bias' is the smallest"
        )
    seen: dict[str, str] = {}
    parsed = tuple(parse_template(text) for text in templates)
    for template in parsed:
        if template.label in seen:
            raise RecipeError(
                f"templates {seen[template.label]!r} and {template.text!r} would give a token the same features: leave one out"
            )
        seen[template.label] = template.text
    return parsed


def parse_template(text: str) -> Template:
    """Read one template.

    >>> parse_template("word[-1]|word[0]").atoms
    (Atom(name='word', first=-1, last=-1, low=0, high=0), Atom(name='word', first=0, last=0, low=0, high=0))
    """
    return _Reader(text).template()


def check_columns(templates: Sequence[Template], given: Collection[str]) -> tuple[str, ...]:
    """Names of the columns that templates read, in order of appearance; each must be given."""
    names: dict[str, None] = {}
    for template in templates:
        for name in (atom.column for atom in template.atoms):
            if name is None:
                continue
            if name not in given:
                near = difflib.get_close_matches(name, [*_BUILT_IN, *given], 1)
                guess = f"; did you mean {near[0]!r}?" if near else ""
                raise RecipeError(
                    f"template {template.text!r} reads a column {name!r}, which is not given: expected one of {', '.join(_BUILT_IN)}"
                    f" or of the columns given ({', '.join(map(repr, given)) or 'none'}){guess}"
                )
            names[name] = None
    return tuple(names)


class _Reader:
    """Reads a template from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def template(self) -> Template:
        if self.text == "bias":
            return Template(self.text, ())
        atoms = [self.atom()]
        starts = [0]
        while self.at < len(self.text):
            self.expect("|", "'|' and another atom, or the end")
            starts.append(self.at)
            atoms.append(self.atom())
        for start, atom in zip(starts, atoms, strict=True):
            if len(atoms) > 1 and atom.name in (*_PIECES, "bag"):
                self.at = start
                self.fail(f"an atom with one value: {atom.name} has several and must stand alone")
        return Template(self.text, tuple(atoms))

    def atom(self) -> Atom:
        name = self.match(r"[^\W\d]\w*")
        if name is None:
            self.fail("the name of an atom")
        if name == "bias":
            self.at -= len(name)
            self.fail("'bias' to stand alone, or the name of another atom")
        self.expect("[", "'[' and a place")
        first = last = self.number("a place such as -1, 0 or 1")
        if name == "bag":
            self.expect(":", "':' and the last place of the bag")
            last = self.number(
                "the last place of the bag", at_least=first, at_most=first + _WIDEST_BAG - 1
            )
        self.expect("]", "']'")
        if name not in _PIECES:
            return Atom(name, first, last)
        self.expect("{", "'{' and the numbers of characters, as in {1:6},")
        low = self.number("the smallest number of characters", at_least=1)
        self.expect(":", "':' and the largest number of characters")
        high = self.number("the largest number of characters", at_least=low)
        self.expect("}", "'}'")
        return Atom(name, first, last, low, high)

    def number(self, wanted: str, at_least: int | None = None, at_most: int | None = None) -> int:
        start = self.at
        digits = self.match(r"-?[0-9]{1,9}")
        if digits is None:
            self.fail(wanted)
        if at_least is not None and int(digits) < at_least:
            self.at = start
            self.fail(f"{wanted}, at least {at_least},")
        if at_most is not None and int(digits) > at_most:
            self.at = start
            self.fail(f"{wanted}, at most {at_most},")
        return int(digits)

    def expect(self, character: str, wanted: str) -> None:
        if not self.text.startswith(character, self.at):
            self.fail(wanted)
        self.at += 1

    def match(self, pattern: str) -> str | None:
        found = re.compile(pattern).match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found.group()

    def fail(self, wanted: str) -> NoReturn:
        rest = self.text[self.at :]
        got = f"{rest!r} at character {self.at + 1}" if rest else "the end"
        raise RecipeError(f"template {self.text!r}: expected {wanted} and got {got}")
