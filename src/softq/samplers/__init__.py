"""Samplers.

From references to candidate sets, with the log-probability of the proposal where it is of use.
"""

from softq.samplers.common import Sampler
from softq.samplers.kbest import k_best
from softq.samplers.model import FromModel
from softq.samplers.ngram import NgramReplacement
from softq.samplers.recombine import Recombination
from softq.samplers.stratified import EditStratified, HammingStratified
from softq.samplers.stream import CandidateStream

__all__ = [
    "CandidateStream",
    "EditStratified",
    "FromModel",
    "HammingStratified",
    "NgramReplacement",
    "Recombination",
    "Sampler",
    "k_best",
]
