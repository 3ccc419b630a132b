"""What a `DependencyTrainer` trains toward, beside what every Trainer is told."""

from __future__ import annotations

from dataclasses import dataclass

from softq.integrations.transformers.words.arguments import WordArguments


@dataclass
class DependencyArguments(WordArguments):
    """`WordArguments` for parsers: ``tau`` is in right heads."""
