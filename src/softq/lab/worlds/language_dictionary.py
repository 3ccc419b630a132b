"""The dictionary of the two invented languages of `softq.lab.worlds.languages`."""

from __future__ import annotations

from typing import Literal, NamedTuple

from softq.lab.worlds.grammar import Texts

Kind = Literal[
    "determiner", "noun", "adjective", "auxiliary", "time", "preposition", "place", "manner", "verb"
]


class Meaning(NamedTuple):
    """A meaning in the target language: its only formal word, and its plain words, uninflected."""

    formal: str
    words: Texts


class Entry(NamedTuple):
    """A word of the source language by its stem: its meanings, and the gender of a noun."""

    stem: str
    meanings: list[Meaning]
    gender: int = 0


# Function words of the source language: the forms of each lemma. Determiners and adjectives agree
# with their noun: three genders, and the plural, which is the same for all of them. Determiners
# tell nominative from accusative, too.
FUNCTION_WORDS: dict[Kind, list[list[str]]] = {
    "determiner": [  # definite, indefinite, demonstrative; the accusative after each nominative
        ["tor", "ton", "ta", "tam", "tus", "tum", "ti", "tim"],
        ["ulor", "ulon", "ula", "ulam", "ulus", "ulum", "uli", "ulim"],
        ["jonor", "jonon", "jona", "jonam", "jonus", "jonum", "joni", "jonim"],
    ],
    "auxiliary": [["vas", "vasen"], ["tir", "tiren"]],  # present and past, singular and plural
    "preposition": [["ob"], ["zun"]],  # of places of even and of odd lemma
}
ENDINGS: dict[Kind, tuple[str, ...]] = {"adjective": ("or", "ae", "us", "ei"), "noun": ("", "en")}
PLURAL_GENDER = 3

# Function words of the target language.
DETERMINERS: list[tuple[Texts, Texts]] = [  # of singular and plural nouns
    ([("na", 1.0)], [("na", 1.0)]),
    ([("un", 1.0)], [("soma", 0.6), ("", 0.4)]),
    ([("dis", 0.7), ("dat", 0.3)], [("dise", 0.7), ("date", 0.3)]),
]
PREPOSITIONS = ("inna", "onna")  # of places of even and of odd lemma
PLACE_ARTICLES: Texts = [("na", 0.7), ("", 0.3)]
PAST, BY = "ded", "frae"
PASSIVES = (("iz", "ara"), ("woza", "wera"))  # present and past, singular and plural
PLURAL_NOUN, SINGULAR_VERB = "s", "t"

DICTIONARY: dict[Kind, list[Entry]] = {
    "noun": [
        Entry("tramp", [Meaning("motaha", [("daho", 0.7), ("ludo", 0.3)])], 1),
        Entry(
            "fend",
            [
                Meaning("nenolea", [("fuwea", 1.0)]),
                Meaning("cooleaju", [("joocoo", 0.6), ("feahoo", 0.25), ("veafu", 0.15)]),
            ],
            1,
        ),
        Entry("starn", [Meaning("tupaco", [("deale", 0.6), ("jeadoo", 0.25), ("jori", 0.15)])], 0),
        Entry("trust", [Meaning("bepihoo", [("nearea", 1.0)])], 1),
        Entry("stirn", [Meaning("teataho", [("woolo", 0.75), ("cojo", 0.25)])], 0),
        Entry(
            "tretz",
            [
                Meaning("geleawu", [("danu", 0.7), ("givea", 0.3)]),
                Meaning("goodevoo", [("fona", 1.0)]),
            ],
            1,
        ),
        Entry("lamp", [Meaning("hoobobi", [("gunea", 1.0)])], 0),
        Entry("stirk", [Meaning("mimowoo", [("wewa", 0.6), ("gedo", 0.25), ("tuje", 0.15)])], 2),
        Entry("knift", [Meaning("roogego", [("hice", 1.0)])], 0),
        Entry(
            "mork",
            [
                Meaning("filini", [("rece", 0.75), ("jiwea", 0.25)]),
                Meaning("boorapoo", [("voohu", 0.7), ("cibea", 0.3)]),
            ],
            2,
        ),
        Entry("mend", [Meaning("hacowe", [("rilo", 0.7), ("huvo", 0.3)])], 2),
        Entry("lend", [Meaning("mavedu", [("bucu", 1.0)])], 2),
        Entry("wump", [Meaning("paroba", [("gomo", 0.6), ("pudu", 0.25), ("peati", 0.15)])], 0),
        Entry(
            "knacht",
            [
                Meaning("pifawo", [("nivo", 1.0)]),
                Meaning("nenumea", [("teavoo", 0.75), ("nepoo", 0.25)]),
            ],
            0,
        ),
        Entry("schlirn", [Meaning("melavea", [("nenu", 0.75), ("lopu", 0.25)])], 0),
        Entry("nitz", [Meaning("mobalu", [("fupe", 0.7), ("doowe", 0.3)])], 2),
        Entry("farn", [Meaning("pealage", [("tine", 1.0)])], 2),
        Entry(
            "gecht",
            [
                Meaning("furoofi", [("weadea", 0.6), ("gibu", 0.25), ("dihoo", 0.15)]),
                Meaning("niwaju", [("fogu", 1.0)]),
            ],
            1,
        ),
    ],
    "verb": [
        Entry("geld", [Meaning("rofarea", [("fola", 0.7), ("weago", 0.3)])]),
        Entry("klump", [Meaning("duninu", [("pote", 1.0)])]),
        Entry("mond", [Meaning("pafawo", [("deva", 0.6), ("cata", 0.25), ("dedoo", 0.15)])]),
        Entry("rucht", [Meaning("ceanacea", [("noowe", 1.0)])]),
        Entry("grutz", [Meaning("toleje", [("vodo", 0.75), ("beave", 0.25)])]),
        Entry("wirn", [Meaning("pocafo", [("vealoo", 0.7), ("nifo", 0.3)])]),
        Entry("zatz", [Meaning("goferu", [("lifea", 1.0)])]),
        Entry("nump", [Meaning("nooheane", [("geme", 0.6), ("pejo", 0.25), ("vepea", 0.15)])]),
        Entry("pucht", [Meaning("geavitoo", [("goojo", 1.0)])]),
        Entry("gromp", [Meaning("ducopa", [("toome", 0.75), ("piva", 0.25)])]),
        Entry("must", [Meaning("degeafa", [("miwe", 0.7), ("dade", 0.3)])]),
        Entry("trold", [Meaning("voopeabea", [("cigea", 1.0)])]),
    ],
    "adjective": [
        Entry("lerk", [Meaning("roworea", [("fuge", 0.7), ("bodi", 0.3)])]),
        Entry("kocht", [Meaning("tumeare", [("maga", 1.0)])]),
        Entry("perk", [Meaning("pumeba", [("boobi", 0.6), ("fivo", 0.25), ("hogi", 0.15)])]),
        Entry("micht", [Meaning("cumife", [("boofu", 1.0)])]),
        Entry("ramp", [Meaning("jeboojoo", [("mume", 0.75), ("dare", 0.25)])]),
        Entry("brark", [Meaning("rijujo", [("goomi", 0.7), ("galea", 0.3)])]),
        Entry("kift", [Meaning("hacotea", [("mavo", 1.0)])]),
        Entry("zitz", [Meaning("fiwoote", [("fedoo", 0.6), ("lumu", 0.25), ("coogi", 0.15)])]),
    ],
    "time": [
        Entry("fuld", [Meaning("bonedo", [("fe toota", 1.0)])]),
        Entry("grork", [Meaning("niheamu", [("ra wano", 1.0)])]),
        Entry("fift", [Meaning("ceamago", [("fe buvi", 1.0)])]),
        Entry("rald", [Meaning("webeace", [("ra jofi", 1.0)])]),
        Entry("pond", [Meaning("loovopo", [("fe heamoo", 1.0)])]),
        Entry("birn", [Meaning("locagea", [("ra feca", 1.0)])]),
    ],
    "place": [
        Entry("guft", [Meaning("teavadi", [("fearea", 0.7), ("faje", 0.3)])]),
        Entry("knecht", [Meaning("liwira", [("lola", 1.0)])]),
        Entry("sald", [Meaning("cedoogu", [("ninea", 0.6), ("joodi", 0.25), ("tabi", 0.15)])]),
        Entry("drimp", [Meaning("dinufoo", [("gova", 1.0)])]),
        Entry("bind", [Meaning("peamowe", [("jeajea", 0.75), ("topa", 0.25)])]),
        Entry("lund", [Meaning("moojoola", [("hoovoo", 0.7), ("begoo", 0.3)])]),
    ],
    "manner": [
        Entry("schlist", [Meaning("gohoopo", [("gana", 1.0)])]),
        Entry("klark", [Meaning("heapeara", [("nehi", 1.0)])]),
        Entry("trimp", [Meaning("gohoofoo", [("loodoo", 1.0)])]),
        Entry("rust", [Meaning("rerocea", [("huwea", 1.0)])]),
    ],
}
