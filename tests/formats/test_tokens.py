"""Words of text: what is one word, and that the text comes back from them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softq.formats.tokens import MARK, detokenize, tokenize, without_marks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \t\u00a0 ", []),
        ("Hallo", ["Hallo"]),
        ("Hallo, Welt!", ["Hallo", "￭,", "Welt", "￭!"]),
        ("a,b", ["a", "￭,￭", "b"]),
        ("„Ja“, sagte er.", ["„￭", "Ja", "￭“", "￭,", "sagte", "er", "￭."]),
        ("(a)", ["(￭", "a", "￭)"]),
        ("a ( b", ["a", "(", "b"]),
        ("Wait... what?!", ["Wait", "￭...", "what", "￭?", "￭!"]),
        ("--", ["--"]),
        ("Tom's don't we'll geht’s", ["Tom", "￭'s", "don", "￭'t", "we", "￭'ll", "geht", "￭’s"]),
        ("l'homme O'Brien", ["l'￭", "homme", "O'￭", "Brien"]),
        ("'quoted' dogs'", ["'￭", "quoted", "￭'", "dogs", "￭'"]),
        ("E-Mail-Adresse -5 a- -", ["E-Mail-Adresse", "-￭", "5", "a", "￭-", "-"]),
        (
            "1,000.50 um 10:30, 5. a.b",
            ["1,000.50", "um", "10:30", "￭,", "5", "￭.", "a", "￭.￭", "b"],
        ),
        ("z.B. U.S.A. 5 p.m.", ["z.B.", "U.S.A.", "5", "p.m."]),
        ("10km B2B 3rd x²", ["10km", "B2B", "3rd", "x²"]),
        ("cafe\u0301s e\u0301-e\u0301", ["cafe\u0301s", "e\u0301-e\u0301"]),
        ("हिन्दी में", ["हिन्दी", "में"]),  # vowel signs are marks, not letters
        ("می\u200cخواهم", ["می\u200cخواهم"]),  # a zero-width non-joiner
        ("ภาษาไทย", ["ภาษาไทย"]),
        ("我们说Tom。", ["我", "￭们", "￭说", "￭Tom", "￭。"]),
        ("カタカナ", ["カ", "￭タ", "￭カ", "￭ナ"]),
        ("我\u0301a", ["我\u0301", "￭a"]),
        ("👍🏽!", ["👍", "￭🏽", "￭!"]),
        ("a￭b", ["a", "￭■￭", "b"]),
        ("\u0301a \u0301", ["\u0301a", "\u0301"]),
        ("'s 's's", ["'￭", "s", "'￭", "s", "￭'s"]),
    ],
)
def test_words(text, words):
    assert tokenize(text) == words
    assert detokenize(words) == " ".join(text.replace(MARK, "■").split())


QUICK = settings(max_examples=300, deadline=None)

awkward = st.text(st.sampled_from("ab3 \t'’-.,:!\"(\u0301\u200d我カ👍ß_€")) | st.text()


@QUICK
@given(awkward.filter(lambda text: MARK not in text))
def test_the_text_comes_back(text):
    words = tokenize(text)
    assert detokenize(words) == " ".join(text.split())
    bare = without_marks(words)
    assert "".join(bare) == "".join(text.split())
    assert all(bare)
    assert all(
        word in (plain, MARK + plain, plain + MARK, MARK + plain + MARK)
        for word, plain in zip(words, bare, strict=True)
    )


@QUICK
@given(awkward, awkward)
def test_words_do_not_depend_on_what_stands_beyond_a_space(first, second):
    assert tokenize(f"{first} {second}") == tokenize(first) + tokenize(second)


def test_marks_that_no_text_has():
    assert detokenize(["￭a￭", "￭b", "c￭"]) == "ab c"
    assert detokenize([]) == ""
