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
    return [
        heads
        for heads in every
        if is_tree(heads, multiroot=multiroot) and (not projective or is_projective(heads))
    ]


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


def segmentations(length, longest, labels):
    """Every way to cut tokens into labelled segments, where one begins length · K + label, else 0."""
    if length == 0:
        return [()]
    return [
        (size * labels + label, *[0] * (size - 1), *rest)
        for size in range(1, min(longest, length) + 1)
        for label in range(labels)
        for rest in segmentations(length - size, longest, labels)
    ]


def segments_of(output, labels):
    """(begin, length, label) of each segment."""
    return [(t, *divmod(value, labels)) for t, value in enumerate(output) if value]


def segment_score(scores, transitions, output, labels):
    """scores[t][length - 1][label]; transitions[label][next label]."""
    found = segments_of(output, labels)
    total = sum(scores[t][size - 1][label] for t, size, label in found)
    pairs = itertools.pairwise(label for _, _, label in found)
    return total + sum(transitions[i][j] for i, j in pairs)


def segment_matches(output, reference):
    """Number of segments that begin and end at the same tokens and have the same label."""
    return float(sum(a == b != 0 for a, b in zip(output, reference, strict=True)))


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
    return [
        math.fsum(w * q[y] for w, q in zip(weights, payoffs, strict=True))
        for y in range(len(rewards[0]))
    ]


def sqdml(rewards, weights, tau):
    """Softmax of the mean reward (eq. 15).

    A reward of -inf marks an output that is not in the space.
    """
    used = [(w, row) for w, row in zip(weights, rewards, strict=True) if w > 0]
    means = [sum(w * row[y] for w, row in used) for y in range(len(rewards[0]))]
    return probabilities([m / tau for m in means])


def matches(output, reference):
    """The natural reward: number of equal entries."""
    if isinstance(output, int):
        return float(output == reference)
    return float(sum(a == b for a, b in zip(output, reference, strict=True)))


def sentences(words, max_length):
    """Every sentence over the words of length 0..max_length."""
    return [y for length in range(max_length + 1) for y in itertools.product(words, repeat=length)]


def hamming(a, b):
    return sum(x != y for x, y in zip(a, b, strict=True))


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1]


def mixture(laws):
    """Equal mixture of dictionaries output -> probability."""
    out = {}
    for law in laws:
        for y, p in law.items():
            out[y] = out.get(y, 0.0) + p / len(laws)
    return out


def normalised(weights):
    total = math.fsum(weights.values())
    return {y: w / total for y, w in weights.items() if w > 0}


def ngram_replacement(refs, max_n, law, *, keep_last=False):
    """law(n) -> {n-gram: probability}; the law of one draw given that it is not a reference."""
    drawn = {}
    usable = [ref for ref in refs if len(ref) > keep_last]
    for ref in usable:
        room = len(ref) - keep_last
        for n in range(1, min(max_n, room) + 1):
            for p in range(room - n + 1):
                others = {g: f for g, f in law(n).items() if g != ref[p : p + n]}
                share = 1.0 / (len(usable) * min(max_n, room) * (room - n + 1))
                for gram, f in normalised(others).items() if others else ():
                    y = ref[:p] + gram + ref[p + n :]
                    drawn[y] = drawn.get(y, 0.0) + share * f
    return normalised({y: w for y, w in drawn.items() if y not in refs})


def edit_ways(ref, words, edits):
    """Every way to make e edits.

    S words each replaced by another or left out, e - s inserted before words that stay or at the
    end.
    """
    made = []
    for edited in range(min(len(ref), edits) + 1):
        for places in itertools.combinations(range(len(ref)), edited):
            options = [
                [(w,) for w in words if w != ref[t]] + ([()] if ref[t] in words else [])
                for t in places
            ]
            kept, inserted = len(ref) - edited, edits - edited
            for marks in itertools.combinations(
                range(kept + inserted), inserted
            ):  # which of the kept and new words are new
                before = [0] * (kept + 1)  # new words before each kept one, and at the end
                seen = 0
                for slot in range(kept + inserted):
                    if slot in marks:
                        before[seen] += 1
                    else:
                        seen += 1
                for change in itertools.product(*options):
                    changes = dict(zip(places, change, strict=True))
                    made += [
                        _apply(ref, changes, before, list(new))
                        for new in itertools.product(words, repeat=inserted)
                    ]
    return made


def _apply(ref, changes, before, new):
    out, kept = [], 0
    for t, word in enumerate(ref):
        if t in changes:
            out.extend(changes[t])
        else:
            out += [new.pop(0) for _ in range(before[kept])]
            out.append(word)
            kept += 1
    return (*out, *new)


def edit_law(ref, words, tau, max_edits):
    weights = {}
    for edits in range(min(len(ref), max_edits) + 1):
        for y in edit_ways(ref, words, edits):
            weights[y] = weights.get(y, 0.0) + math.exp(-edits / tau)
    return normalised(weights)
