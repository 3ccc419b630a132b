"""Sentences from models that say one word after the other: beam search, greedy choice, draws, minimum Bayes risk."""

from softq.decode.beam import beam_search
from softq.decode.draws import greedy, sample
from softq.decode.mbr import Mbr, mbr
from softq.decode.sources import NextWords

__all__ = ["Mbr", "NextWords", "beam_search", "greedy", "mbr", "sample"]
