"""Decoding of autoregressive models: beam search, greedy search, sampling, minimum Bayes risk."""

from softq.decode.autoregressive import AutoregressiveModel
from softq.decode.beam import beam_search
from softq.decode.mbr import Mbr, mbr
from softq.decode.sampling import greedy, sample

__all__ = ["AutoregressiveModel", "Mbr", "beam_search", "greedy", "mbr", "sample"]
