"""English names of languages, by the codes that configs use."""

from collections.abc import Iterable
from typing import Any

from nmt.serving.messages import ServedModel

NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech",
    "cy": "Welsh", "da": "Danish", "de": "German", "el": "Greek", "en": "English",
    "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian",
    "fi": "Finnish", "fr": "French", "ga": "Irish", "gl": "Galician", "gu": "Gujarati",
    "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian",
    "is": "Icelandic", "it": "Italian", "ja": "Japanese", "kk": "Kazakh", "ko": "Korean",
    "lt": "Lithuanian", "lv": "Latvian", "ms": "Malay", "nb": "Norwegian Bokmål", "nl": "Dutch",
    "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian",
    "sk": "Slovak", "sl": "Slovenian", "sq": "Albanian", "sr": "Serbian", "sv": "Swedish",
    "sw": "Swahili", "ta": "Tamil", "th": "Thai", "tl": "Tagalog", "tr": "Turkish",
    "uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip


def language_name(code: str) -> str:
    """The English name of a language, or its code."""
    base, *region = code.replace("_", "-").split("-", 1)
    name = NAMES.get(base.lower())
    if name is None:
        return code
    return f"{name} ({region[0]})" if region else name


def list_languages(models: Iterable[ServedModel]) -> list[dict[str, Any]]:
    """The languages of all models, and those that each can be translated into."""
    targets: dict[str, list[str]] = {}
    for model in models:
        found = targets.setdefault(model.source, [])
        targets.setdefault(model.target, [])
        if model.target not in found:
            found.append(model.target)
    return [
        {"code": code, "name": language_name(code), "targets": found}
        for code, found in targets.items()
    ]
