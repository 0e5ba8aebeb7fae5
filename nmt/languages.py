"""Codes of languages, and how the words of a language are told apart.

A code is that of ISO 639 with two or three letters, perhaps with a script or a region: `pt-BR`.
"""

import re


def codes(text: str) -> frozenset[str]:
    """The codes that spaces separate."""
    return frozenset(text.split())


CHINESE = codes("zh zhs zht zho chi cmn yue wuu lzh")
# Japanese, Thai, Lao, Khmer, Burmese, Tibetan and Dzongkha, which have no spaces between words.
WITHOUT_SPACES = codes("ja jpn th tha lo lao km khm my mya bur bo bod tib dz dzo")
OF_COUNTRIES = {"cn": "zh", "jp": "ja"}  # which are mistaken for codes of languages
# All languages with a code of two letters (ISO 639-1).
TWO_LETTERS = codes(
    """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de
dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id
ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu
lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu
rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to
tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
)
# Other codes of languages with rules of their own in Moses, and of Norwegian.
MOSES_CODES = {
    "cat": "ca", "ces": "cs", "cze": "cs", "deu": "de", "ger": "de", "ell": "el", "gre": "el",
    "eng": "en", "spa": "es", "est": "et", "fin": "fi", "fra": "fr", "fre": "fr", "gle": "ga",
    "hun": "hu", "isl": "is", "ice": "is", "ita": "it", "lit": "lt", "lav": "lv", "nld": "nl",
    "dut": "nl", "pol": "pl", "por": "pt", "ron": "ro", "rum": "ro", "rus": "ru", "slk": "sk",
    "slo": "sk", "slv": "sl", "swe": "sv", "tam": "ta", "kor": "ko",
    "nb": "no", "nn": "no", "nor": "no",
}  # fmt: skip


def base_language(code: str) -> str:
    """The language of a code without its script and region: pt of pt-BR, in lower case."""
    return re.split("[-_]", code.lower())[0]


def moses_language(code: str) -> str:
    """The code by which Moses knows a language: `pt` for `pt-BR`, `por` or `PT`."""
    language = base_language(code)
    return MOSES_CODES.get(language, language)


def bleu_tokenizer(code: str) -> str:
    """SacreBLEU's tokenizer for translations into a language.

    It is `zh` for Chinese, `char` where no spaces separate words (SacreBLEU's own for Japanese
    needs MeCab), and `13a` for all others.
    """
    language = base_language(code)
    if language in CHINESE:
        return "zh"
    return "char" if language in WITHOUT_SPACES else "13a"
