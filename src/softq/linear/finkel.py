"""The templates of features of words that taggers have unless others are named; without what reads them, which takes seconds to import."""

FINKEL = (
    "bias",
    "word[-1]",
    "word[0]",
    "word[1]",
    "lower[-2]",
    "lower[-1]",
    "lower[0]",
    "lower[1]",
    "lower[2]",
    "ngrams[0]{1:6}",
    "shape[-1]",
    "shape[0]",
    "shape[1]",
    "shape[-1]|shape[0]",
    "shape[0]|shape[1]",
    "shape[-1]|shape[0]|shape[1]",
    "type[-2]|type[-1]|type[0]|type[1]|type[2]",
    "bag[-4:-1]",
    "bag[1:4]",
    "word[-1]|word[0]",
    "word[0]|word[1]",
    "word[-1]|shape[0]",
    "shape[0]|word[1]",
    "prefix[-1]{1:3}",
    "suffix[-1]{1:3}",
    "prefix[1]{1:3}",
    "suffix[1]{1:3}",
)
"""Local features for entities, after Finkel, Grenager and Manning (2005); needs nothing but words.

Affixes of the word are among its n-grams: ``<Par`` is the prefix ``Par``.
"""
