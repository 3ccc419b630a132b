"""Features, references and the enumeration oracle for tests of feature CRFs."""

import itertools
import math
import re

import numpy as np
import torch

import oracle
from softq.linear.features import FeatureMatrix
from softq.linear.tagger_training import CRFSettings
from softq.linear.tagging import References

LENGTHS = {
    1: (3, 0, 1),
    2: (4, 0, 1, 3),
    3: (4, 1, 0, 2),
    5: (3, 0, 1, 4),
    9: (1, 3, 0, 2),
    17: (2, 0, 1, 2),
}
KINDS = ("PER", "LOC", "ORG", "MISC")
NAMES = {
    1: ("O",),
    2: ("O", "B-PER"),
    3: ("I-PER", "O", "B-PER"),
    5: ("E-PER", "I-PER", "O", "S-PER", "B-PER"),
    9: ("O", *(f"{prefix}-{kind}" for kind in KINDS[:2] for prefix in "BIES")),
    17: ("O", *(f"{prefix}-{kind}" for kind in KINDS for prefix in "BIES")),
}
SCHEMES = {2: "bio", 3: "bio", 5: "bioes", 9: "bioes", 17: "bioes"}
_ENTITY = {"bio": r"B-(\w+) (?:I-\1 )*", "bioes": r"(?:S-\w+ |B-(\w+) (?:I-\1 )*E-\1 )"}


def follows(names, scheme):
    """Whether a sequence of labels is one of the scheme, by a regular expression for whole sentences."""
    return (
        scheme is None
        or re.fullmatch(f"(?:O |{_ENTITY[scheme]})*", "".join(f"{name} " for name in names))
        is not None
    )


def sequences(length, names, scheme):
    return [
        y
        for y in oracle.label_sequences(length, len(names))
        if follows([names[k] for k in y], scheme)
    ]


def features(seed, lengths, size=6, valued=False, twice=True):
    """Random rows, some empty, some with a column twice; column 0 stands nowhere."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(1, size, rng.integers(0, 4)) for _ in range(sum(lengths))]
    if twice:
        rows[0] = np.array([2, 1, 2])
    indices = np.concatenate(rows).astype(np.int32)
    values = rng.choice(np.float32([-1.5, 0.25, 2.0]), len(indices)) if valued else None
    return FeatureMatrix(
        np.concatenate([[0], np.cumsum([len(row) for row in rows])]),
        indices,
        values,
        np.array(lengths),
        size,
    )


def some_references(seed, lengths, names, scheme=None, most=3):
    """One to three label sequences a sentence, with weights of any sum.

    From two on, one weighs nothing, and holds no labels at all.
    """
    rng = np.random.default_rng(seed)
    labels, weights = [], []
    for length in lengths:
        choice = sequences(length, names, scheme)
        count = int(rng.integers(1, most + 1))
        labels.append(
            np.array(
                [choice[int(i)] for i in rng.integers(0, len(choice), count)], np.int64
            ).reshape(count, length)
        )
        weights.append(rng.integers(1, 4, count) / 2)
        if count > 1:
            labels[-1][0], weights[-1][0] = 99, 0.0
    return References(labels, weights)


def by_enumeration(
    matrix,
    references,
    names,
    objective,
    tau,
    table,
    parameters,
    *,
    c2=0.0,
    target_scheme=None,
    model_scheme=None,
):
    """Value, gradient (flat: features, then neighbours), E_target of labels and of neighbours, and the constant between value and KL."""
    labels, size = len(names), matrix.size
    weights = [[parameters[f * labels + k] for k in range(labels)] for f in range(size)]
    between = [
        [parameters[size * labels + i * labels + j] for j in range(labels)] for i in range(labels)
    ]
    value, constant = c2 * math.fsum(p * p for p in parameters), 0.0
    gradient = [2 * c2 * p for p in parameters]
    unary, pairs = [], [[0.0] * labels for _ in range(labels)]
    token = 0
    for length, sentence, shares in zip(
        matrix.lengths, references.labels, references.weights, strict=True
    ):
        rows = []
        for t in range(token, token + length):
            cells = range(matrix.offsets[t], matrix.offsets[t + 1])
            rows.append(
                [
                    (
                        int(matrix.indices[i]),
                        1.0 if matrix.values is None else float(matrix.values[i]),
                    )
                    for i in cells
                ]
            )
        token += length
        possible = sequences(length, names, model_scheme)
        allowed = set(sequences(length, names, target_scheme))
        emissions = [
            [math.fsum(v * weights[f][k] for f, v in row) for k in range(labels)] for row in rows
        ]
        scores = [oracle.label_score(emissions, [between] * length, y) for y in possible]
        used = [
            (tuple(y), w / sum(shares))
            for y, w in zip(sentence.tolist(), shares, strict=True)
            if w > 0
        ]
        mass = [w for _, w in used]
        if objective == "ml":
            q = [math.fsum(w for ref, w in used if ref == y) for y in possible]
            constant += oracle.entropy(q)
        else:
            rewards = [
                [
                    (
                        sum(table[a][b] for a, b in zip(y, ref, strict=True))
                        if y in allowed
                        else -math.inf
                    )
                    for y in possible
                ]
                for ref, _ in used
            ]
            q = (oracle.raml if objective == "raml" else oracle.sqdml)(rewards, mass, tau)
            parts = (
                [(1.0, q)]
                if objective == "sqdml"
                else [
                    (w, oracle.raml([row], [1.0], tau))
                    for w, row in zip(mass, rewards, strict=True)
                ]
            )
            constant += math.fsum(w * oracle.entropy(part) for w, part in parts)
        p = oracle.probabilities(scores)
        value += oracle.log_sum_exp(scores) - math.fsum(
            a * s for a, s in zip(q, scores, strict=True) if a > 0
        )
        expected = [[0.0] * labels for _ in range(length)]
        for y, a, b in zip(possible, p, q, strict=True):
            for t, k in enumerate(y):
                expected[t][k] += b
                for f, v in rows[t]:
                    gradient[f * labels + k] += (a - b) * v
            for i, j in itertools.pairwise(y):
                pairs[i][j] += b
                gradient[size * labels + i * labels + j] += a - b
        unary += expected
    return value, gradient, unary, pairs, constant


def settings_for(names, objective, tau, constraints="none", **more):
    more = {"scheme": SCHEMES.get(len(names)), "all_states": True, "c2": 0.0} | more
    return CRFSettings(
        names, objective, None if objective == "ml" else tau, constraints=constraints, **more
    )


def evaluate(objective, parameters):
    gradient = torch.full_like(parameters, torch.nan)
    return objective(parameters, gradient), gradient
