"""Train, run and look into neural translation models with sparse attention."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nmt.decoding.translator import Translation, Translator

    __version__: str

__all__ = ["Translation", "Translator", "__version__"]


def __getattr__(name: str) -> object:
    """Import what is public only when it is asked for: torch takes seconds to import."""
    if name in ("Translation", "Translator"):
        from nmt.decoding import translator

        return getattr(translator, name)
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("nmt")  # of the installation: pyproject.toml states it
        except PackageNotFoundError:  # the source alone, in PYTHONPATH
            return "unknown"
    raise AttributeError(f"module 'nmt' has no attribute '{name}'")
