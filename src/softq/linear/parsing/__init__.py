"""Dependency parsers.

Edge-factored log-linear models of trees, trained exactly (Appendix D.2.3).
"""

from softq.linear.parsing.fit import (
    Descent,
    ParserFit,
    ParserObjective,
    ParserSettings,
    Treebank,
)
from softq.linear.parsing.model import Parse, Parser
from softq.linear.parsing.target import Trees, TreeTargets
from softq.options import FEWEST_BITS, MOST_BITS
from softq.options import TreeDecoding as Decoding

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
