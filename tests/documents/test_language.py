"""Phrases that readers of the field would have to translate do not come back."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

EVERYWHERE = {  # what not to write: what to write instead
    "a made-up language": "a generated language",
    "as few as hold": "the smallest set whose probability is at least",
    "every so many-th": "at equal distances",
    "final numbers": "test set, test scores",
    "for sure": "significantly",
    "go by way of": "are computed on",
    "go on from": "start from, restore",
    "go on with": "resume, continue with",
    "goes by way of": "is computed on",
    "goes on from": "starts from",
    "goes on with": "resumes, continues with",
    "gone on from": "started from",
    "gone on with": "unfinished (hypotheses)",
    "holds its ground": "is as good as",
    "in the mean": "on average",
    "is told in": "is described in",
    "is worth nothing": "gains nothing",
    "label numbers": "label ids",
    "labels in part": "partial labels",
    "mean other words": "the vocabulary differs",
    "numbers that are no words": "special tokens",
    "out comes": "the result is",
    "to be had": "available",
    "token numbers": "token ids",
    "turn the knobs": "change the settings",
    "ways to candidates": "kinds of candidates",
    "what comes out": "output, predictions",
    "what is trained on": "the training data",
    "who did not see it": "who did not label it",
}
DOCUMENTS = {  # in docstrings some of these still stand
    "anybody's": "of any system",
    "are asked for": "are requested",
    "are drawn": "are sampled",
    "are judged": "are evaluated",
    "by the clock": "as wall-clock time",
    "by turns": "alternating",
    "draws from": "samples from",
    "drawn anew": "sampled again",
    "drawn by": "sampled by",
    "is asked for": "is requested",
    "is judged": "is evaluated",
    "is mended": "is repaired",
    "is said": "is stated",
    "judged by": "evaluated with",
    "made-up": "generated",
    "of one's own": "your own",
    "stands beside": "is beside",
    "stands still": "waits",
    "tells how": "shows how",
    "there is no such": "does not exist",
    "what it gives": "results",
    "what it says": "meaning",
    "what this says": "what this means",
}
TEXTS = {".py", ".md", ".toml", ".html", ".j2"}
CODE = ["src", "recipes", "benchmarks", "examples"]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


def found_in(text, phrases):
    """Those of the phrases that the text has, also where they are broken over two lines."""
    flat = re.sub(r"\s+", " ", re.sub(r"\n\s*#\s*", " ", text)).lower()
    return [phrase for phrase in phrases if re.search(rf"\b{phrase}\b", flat)]


def test_the_search_finds_phrases_over_line_ends():
    assert found_in("a run\n    # that goes\n    # on with it", EVERYWHERE) == ["goes on with"]
    assert found_in("the same token\nnumbers", EVERYWHERE) == ["token numbers"]
    assert not found_in("in the meantime, a category of numbers", EVERYWHERE | DOCUMENTS)


def test_no_phrase_of_the_glossary():
    searched = dict.fromkeys(PAGES, EVERYWHERE | DOCUMENTS)
    for folder in [*CODE, "docs"]:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in TEXTS:
                searched.setdefault(path, EVERYWHERE)
    assert len(searched) > 100
    faults = [
        f"{path.relative_to(ROOT)}: {phrase!r}, write {phrases[phrase]!r}"
        for path, phrases in searched.items()
        for phrase in found_in(path.read_text("utf-8"), phrases)
    ]
    assert not faults, "\n".join(faults)


def test_pages_are_at_most_100_columns_wide():
    """Tables excepted, whose rows cannot be broken."""
    wide = [
        f"{path.relative_to(ROOT)}, line {number}: {len(line)} columns"
        for path in PAGES
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(line) > 100 and not line.lstrip().startswith("|")
    ]
    assert not wide, "\n".join(wide)
