"""Dependency parsers.

Edge-factored log-linear models of trees, trained exactly (Appendix D.2.3).
"""

from softq.linear.parsing.fit import (
    FEWEST_BITS,
    MOST_BITS,
    Descent,
    ParserFit,
    ParserObjective,
    ParserSettings,
    Treebank,
)
from softq.linear.parsing.model import Decoding, Parse, Parser
from softq.linear.parsing.target import Trees, TreeTargets

__all__ = [
    "FEWEST_BITS",
    "MOST_BITS",
    "Decoding",
    "Descent",
    "Parse",
    "Parser",
    "ParserFit",
    "ParserObjective",
    "ParserSettings",
    "TreeTargets",
    "Treebank",
    "Trees",
]
