"""Train, run and look into neural translation models with sparse attention."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nmt.decoding.translator import Translation, Translator

__all__ = ["Translation", "Translator", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the public classes only when they are asked for: torch takes seconds to import."""
    if name in ("Translation", "Translator"):
        from nmt.decoding import translator

        return getattr(translator, name)
    raise AttributeError(f"module 'nmt' has no attribute '{name}'")
