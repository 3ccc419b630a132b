"""What `softq data stats` says of files of trees (CoNLL-U)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from softq.formats.conllu import read_conllu
from softq.formats.trees import crossing_arcs, tree_depth


def count_trees(path: Path) -> dict[str, Any]:
    """All numbers of a file, as they go to JSON; those of trees are None in a file without, and of sentences with trees elsewhere."""
    sentences = read_conllu(path, trees=None)
    lengths = [len(sentence.forms) for sentence in sentences]
    trees = [sentence.heads for sentence in sentences if sentence.heads]
    crossing = list(map(crossing_arcs, trees))
    arcs = [abs(head - word) for heads in trees for word, head in enumerate(heads, start=1) if head]
    depths = list(map(tree_depth, trees))
    words = sum(map(len, trees))
    return {
        "path": str(path),
        "format": "conllu",
        "sentences": len(sentences),
        "words": sum(lengths),
        "multiword_tokens": sum(len(sentence.multiword_tokens()) for sentence in sentences),
        "empty_nodes": sum(sentence.empty_nodes() for sentence in sentences),
        "distinct_words": len({form for sentence in sentences for form in sentence.forms}),
        "mean_length": sum(lengths) / len(sentences),
        "longest": max(lengths),
        "trees": len(trees),
        "nonprojective_sentences": sum(count > 0 for count in crossing) if trees else None,
        "nonprojective_arcs": sum(crossing) if trees else None,
        "nonprojective_sentence_share": sum(count > 0 for count in crossing) / len(trees)
        if trees
        else None,
        "nonprojective_arc_share": sum(crossing) / words if trees else None,
        "mean_arc_length": sum(arcs) / len(arcs) if arcs else None,
        "mean_depth": sum(depths) / len(depths) if trees else None,
        "deepest": max(depths) if trees else None,
        "relations": _sorted(
            Counter(relation for sentence in sentences for relation in sentence.relations)
        ),
        "upos": _sorted(Counter(tag for sentence in sentences for tag in sentence.upos)),
    }


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def show_trees(file: dict[str, Any], console: Console) -> None:
    """The same as a table."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    for name in ("sentences", "words", "multiword_tokens", "empty_nodes", "distinct_words"):
        table.add_row(name.replace("multiword", "multi-word").replace("_", " "), f"{file[name]:,}")
    table.add_row("words per sentence, mean", f"{file['mean_length']:.2f}")
    table.add_row("words of the longest sentence", f"{file['longest']:,}")
    table.add_section()
    table.add_row("trees", f"{file['trees']:,}")
    if file["trees"]:
        for name, key in (("sentences", "sentence"), ("arcs", "arc")):
            table.add_row(
                f"non-projective {name}",
                f"{file[f'nonprojective_{key}s']:,}",
                f"{file[f'nonprojective_{key}_share']:.2%}",
            )
        table.add_row(
            "arc length, mean",
            "undefined" if file["mean_arc_length"] is None else f"{file['mean_arc_length']:.2f}",
        )
        table.add_row("depth, mean", f"{file['mean_depth']:.2f}")
        table.add_row("depth of the deepest tree", f"{file['deepest']:,}")
    for name in ("relations", "upos"):
        if file[name]:
            add_counts(table, {"upos": "parts of speech"}.get(name, name), file[name])
    console.print(escape(file["path"]), highlight=False, soft_wrap=True)
    console.print(table)


def add_counts(table: Table, title: str, counts: dict[str, int]) -> None:
    """Rows of names with their counts and shares, the most frequent first."""
    total = sum(counts.values())
    table.add_section()
    table.add_row(title, f"{total:,}")
    for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(f"  {escape(name)}", f"{count:,}", f"{count / total:.2%}")
