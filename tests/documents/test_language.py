"""Phrases that readers of the field would have to translate do not come back."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

GLOSSARY = {  # what not to write: what to write instead
    "go on with": "resume, continue with",
    "goes on with": "resumes, continues with",
    "go on from": "start from, restore",
    "goes on from": "starts from",
    "gone on from": "started from",
    "gone on with": "unfinished (hypotheses)",
    "numbers that are no words": "special tokens",
    "token numbers": "token ids",
    "label numbers": "label ids",
    "what comes out": "output, predictions",
    "final numbers": "test set, test scores",
    "in the mean": "on average",
    "as few as hold": "the smallest set whose probability is at least",
    "every so many-th": "at equal distances",
    "mean other words": "the vocabulary differs",
}
FOLDERS = ["src", "docs", "recipes", "benchmarks", "examples"]
TEXTS = {".py", ".md", ".toml", ".html", ".j2"}


def found_in(text):
    """Phrases of the glossary, also where they are broken over two lines."""
    flat = re.sub(r"\s+", " ", re.sub(r"\n\s*#\s*", " ", text)).lower()
    return [phrase for phrase in GLOSSARY if re.search(rf"\b{phrase}\b", flat)]


def test_the_search_finds_phrases_over_line_ends():
    assert found_in("a run\n    # that goes\n    # on with it") == ["goes on with"]
    assert found_in("the same token\nnumbers") == ["token numbers"]
    assert not found_in("in the meantime, a category of numbers")


def test_no_phrase_of_the_glossary():
    texts = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder in FOLDERS:
        texts += [path for path in (ROOT / folder).rglob("*") if path.suffix in TEXTS]
    assert len(texts) > 100
    faults = [
        f"{path.relative_to(ROOT)}: {phrase!r}, write {GLOSSARY[phrase]!r}"
        for path in texts
        for phrase in found_in(path.read_text("utf-8"))
    ]
    assert not faults, "\n".join(faults)
