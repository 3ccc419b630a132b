"""Files of data: column files, CoNLL-U, parallel text, captions; tag schemes and vocabularies."""

from softq.formats.conll import Corpus, Sentence, TaggerInput, read_conll
from softq.formats.conllu import Treebank, TreeSentence, read_conllu

__all__ = [
    "Corpus",
    "Sentence",
    "TaggerInput",
    "TreeSentence",
    "Treebank",
    "read_conll",
    "read_conllu",
]
