"""Samplers: from references to candidate sets, each with the log-probability of its proposal."""

from softq.samplers.model import FromModel
from softq.samplers.ngram import NgramReplacement
from softq.samplers.stratified import EditStratified, HammingStratified
from softq.samplers.stream import CandidateStream
from softq.samplers.words import Sampler

__all__ = ["CandidateStream", "EditStratified", "FromModel", "HammingStratified", "NgramReplacement", "Sampler"]
