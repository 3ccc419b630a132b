"""Ground truth by enumeration: plain Python over itertools, nothing from softq and no tensors."""

import itertools
import math


def classes(count):
    return list(range(count))


def label_sequences(length, labels):
    return list(itertools.product(range(labels), repeat=length))


def trees(length, *, multiroot, projective):
    """All head tuples over words 1..length under the root 0."""
    every = itertools.product(range(length + 1), repeat=length)
    return [heads for heads in every if is_tree(heads, multiroot=multiroot) and (not projective or is_projective(heads))]


def is_tree(heads, *, multiroot):
    if not multiroot and sum(h == 0 for h in heads) > 1:
        return False
    for word in range(1, len(heads) + 1):
        steps, node = 0, word
        while node != 0:
            node = heads[node - 1]
            steps += 1
            if steps > len(heads):
                return False
    return True


def is_projective(heads):
    """No two arcs cross when drawn above the sentence, root at the left."""
    arcs = [tuple(sorted((head, word))) for word, head in enumerate(heads, start=1)]
    return not any(a < c < b < d for a, b in arcs for c, d in arcs)


def label_score(emissions, transitions, labels):
    """emissions[t][k]; transitions[t][i][j] for the step from t to t+1."""
    total = sum(emissions[t][k] for t, k in enumerate(labels))
    return total + sum(transitions[t][i][j] for t, (i, j) in enumerate(itertools.pairwise(labels)))


def tree_score(arcs, heads):
    return sum(arcs[head][word] for word, head in enumerate(heads, start=1))


def log_sum_exp(values):
    peak = max(values, default=-math.inf)
    if peak == -math.inf:
        return -math.inf
    return peak + math.log(math.fsum(math.exp(v - peak) for v in values))


def probabilities(scores):
    """Scores of all outputs -> their probabilities."""
    log_z = log_sum_exp(scores)
    return [math.exp(s - log_z) if s > -math.inf else 0.0 for s in scores]


def entropy(probs):
    return -math.fsum(p * math.log(p) for p in probs if p > 0)


def cross_entropy(target, model):
    if any(t > 0 and m == 0 for t, m in zip(target, model, strict=True)):
        return math.inf
    return -math.fsum(t * math.log(m) for t, m in zip(target, model, strict=True) if t > 0)


def raml(rewards, weights, tau):
    """rewards[i][y]: reward of output y against reference i -> target probabilities (eq. 5, 17)."""
    payoffs = [probabilities([r / tau for r in row]) for row in rewards]
    return [math.fsum(w * q[y] for w, q in zip(weights, payoffs, strict=True)) for y in range(len(rewards[0]))]


def sqdml(rewards, weights, tau):
    """Softmax of the mean reward (eq. 15); a reward of -inf marks an output that is not in the space."""
    used = [(w, row) for w, row in zip(weights, rewards, strict=True) if w > 0]
    means = [sum(w * row[y] for w, row in used) for y in range(len(rewards[0]))]
    return probabilities([m / tau for m in means])


def matches(output, reference):
    """The natural reward: number of equal entries."""
    if isinstance(output, int):
        return float(output == reference)
    return float(sum(a == b for a, b in zip(output, reference, strict=True)))
