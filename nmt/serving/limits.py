"""The limits of the server, which are options of its command."""

from dataclasses import dataclass, field

from nmt.config.limits import Positive, PositiveFloat
from nmt.config.search_options import shown

BODIES = 25  # of the largest size, which all requests together may hold


@dataclass(frozen=True)
class ServerLimits:
    """How much one request may ask for, and how many may wait."""

    max_body: Positive = field(
        default=2_000_000,
        metadata=shown(
            f"bytes of the body of a request; all that are being answered may have {BODIES} times "
            "as many (default: 2,000,000)"
        ),
    )
    max_characters: Positive = field(
        default=100_000, metadata=shown("characters of the texts of a request (default: 100,000)")
    )
    max_lines: Positive = field(
        default=2_000,
        metadata=shown("lines of a request; /translate/stream takes any number (default: 2,000)"),
    )
    max_queue: Positive = field(
        default=10_000,
        metadata=shown("most lines that wait; beyond, requests are refused (default: 10,000)"),
    )
    max_seconds: PositiveFloat = field(
        default=60.0,
        metadata=shown("time to answer a request, or to read it (default: 60)", "SECONDS"),
    )
    max_connections: Positive = field(
        default=1_000, metadata=shown("connections at a time (default: 1,000)")
    )
