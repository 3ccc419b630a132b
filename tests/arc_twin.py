"""Features of arcs in plain Python, from strings.

Shares no code with the kernels but the numbers that hashing begins with.
"""

import zlib
from itertools import groupby

MASK = 2**64 - 1
MIX, MORE = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
BEFORE, BEHIND, ROOT, UNKNOWN = range(4)


def shape(form):
    return "".join(
        k
        for k, _ in groupby(
            "X" if c.isupper() else "d" if c.isdigit() else "x" if c.isalpha() else c for c in form
        )
    )


def values(sentence, column):
    """The strings of a column, without the root."""
    return {
        "word": lambda: [form.lower() for form in sentence.forms],
        "lemma": lambda: list(sentence.lemmas),
        "upos": lambda: list(sentence.upos),
        "xpos": lambda: list(sentence.xpos),
        "feats": lambda: list(sentence.feats),
        "prefix": lambda: [form.lower()[:3] for form in sentence.forms],
        "suffix": lambda: [form.lower()[-3:] for form in sentence.forms],
        "shape": lambda: [shape(form) for form in sentence.forms],
    }[column]()


def code(index, sentence, column, place):
    """The number of what stands at a place, 0 being the root."""
    if place < 0:
        return BEFORE
    if place > len(sentence.forms):
        return BEHIND
    if place == 0:
        return ROOT
    text = values(sentence, column)[place - 1]
    return index.strings[column].index(text) + 4 if text in index.strings[column] else UNKNOWN


def mix(state, value):
    z = ((state ^ value) * MIX) & MASK
    return ((z ^ (z >> 29)) * MORE) & MASK


def kind(head, dependent):
    length = abs(head - dependent)
    step = length if length <= 5 else 6 if length <= 10 else 7
    return step if head < dependent else 7 + step


def splitmix(seed, count):
    found, state = [], seed
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        found.append(z ^ (z >> 31))
    return found


MULTIPLIERS = [word >> 32 | 1 for word in splitmix(0x13198A2E03707344, 15)]


def features(index, templates, sentence, head, dependent):
    """(template's number, hash of 32 bits) of each feature of an arc, without direction and length."""
    parsed = []
    for text in templates:
        sides = {"head": [], "dep": [], "between": []}
        for atom in text.split("|"):
            side, rest = atom.split(".")
            column, _, place = rest.partition("[")
            sides[side].append((column, int(place.rstrip("]") or 0)))
        parsed.append((text, sides))
    parsed.sort(key=lambda item: bool(item[1]["between"]))
    for number, (text, sides) in enumerate(parsed):
        seed = (zlib.crc32(text.encode()) * MIX) & MASK
        total = 0
        for salt, side, word in ((1, "head", head), (2, "dep", dependent)):
            state = mix(seed, salt)
            for column, place in sides[side]:
                state = mix(state, code(index, sentence, column, word + place))
            total += state >> 32
        if not sides["between"]:
            yield number, total % 2**32
            continue
        column = sides["between"][0][0]
        inside = range(min(head, dependent) + 1, max(head, dependent))
        for tag in sorted({code(index, sentence, column, place) for place in inside}):
            yield number, (total + (mix(tag, 3) >> 32)) % 2**32


def places(index, templates, sentence, head, dependent, size):
    """The weights of an arc's features, each alone and with direction and length."""
    bank = size // 8
    for number, x in features(index, templates, sentence, head, dependent):
        for multiplier in (MULTIPLIERS[0], MULTIPLIERS[kind(head, dependent)]):
            upper = (x * multiplier % 2**32) * bank // 2**32
            yield number % 8 * bank + upper
