"""Functions for rewards of one's own, in a module that worker processes can import."""

import math
import os

TOKENS = 10_000


def shared(candidate, reference):
    """Number of different tokens, or characters of texts, that both have."""
    return len(set(candidate) & set(reference))


def shared_of_all(candidates, references):
    return [shared(a, b) for a, b in zip(candidates, references, strict=True)]


def spell(tokens):
    return "".join(chr(ord("a") + token) for token in tokens)


def first_token_and_process(candidate, reference):
    """Two numbers in one: which pair it was and which process had it. NaN for the token 9999."""
    return math.nan if candidate[0] == TOKENS - 1 else os.getpid() * TOKENS + candidate[0]


def shared_and_more(candidate, reference, more):
    return shared(candidate, reference) + 100 * more
