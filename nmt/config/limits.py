"""Limits of the numbers in configs and on command lines.

A model directory is untrusted input, and its numbers decide how much memory is allocated. Each
limit is far above all practical values, so that only mistakes and attacks exceed it, and low enough
that products of a few of them fit into 64 bits.
"""

import re
from typing import Annotated

from nmt.config.scalars import Range

MAX_COUNT = 10**15  # updates, pairs and other counts
MAX_POSITIONS = 65_536  # subwords of a sentence on either side, and keys of attention
MAX_BEAM = 1_000  # hypotheses per sentence
MAX_BATCH_TOKENS = 10_000_000
MAX_PIECES = 1_000_000  # of a vocabulary
MAX_SYMBOL_LENGTH = 100  # characters of a reserved symbol
MAX_PROCESSES = 1_024  # workers, or threads
MAX_SCALE = 3.4e38  # of gains, thresholds, temperatures and rates: the range of float32

LANGUAGE_CODE = re.compile(r"[A-Za-z]+(?:[-_][A-Za-z0-9]+)*")  # such as en or pt-BR

Positive = Annotated[int, Range(1, MAX_COUNT)]
NonNegative = Annotated[int, Range(0, MAX_COUNT)]
Seed = Annotated[int, Range(0)]
Beam = Annotated[int, Range(1, MAX_BEAM)]
Length = Annotated[int, Range(1, MAX_POSITIONS)]
NonNegativeLength = Annotated[int, Range(0, MAX_POSITIONS)]
BatchTokens = Annotated[int, Range(1, MAX_BATCH_TOKENS)]
LineBytes = Annotated[int, Range(1, 100_000_000)]
Width = Annotated[int, Range(1, 65_536)]  # of a hidden state
InnerWidth = Annotated[int, Range(1, 1_048_576)]  # of the feed-forward sublayer
Heads = Annotated[int, Range(1, 1_024)]
Layers = Annotated[int, Range(1, 1_000)]  # of the encoder, and of the decoder
Pieces = Annotated[int, Range(1, MAX_PIECES)]
NonNegativePieces = Annotated[int, Range(0, MAX_PIECES)]
NumProcesses = Annotated[int, Range(1, MAX_PROCESSES)]
Port = Annotated[int, Range(0, 65_535)]
NonNegativeProcesses = Annotated[int, Range(0, MAX_PROCESSES)]

PositiveShare = Annotated[float, Range(0.0, 1.0, open_below=True)]
Probability = Annotated[float, Range(0.0, 1.0, open_above=True)]
PositiveFloat = Annotated[float, Range(0.0, MAX_SCALE, open_below=True)]
NonNegativeFloat = Annotated[float, Range(0.0, MAX_SCALE)]
Scale = Annotated[float, Range(-MAX_SCALE, MAX_SCALE)]
Ratio = Annotated[float, Range(0.0, 1_000.0, open_below=True)]
Power = Annotated[float, Range(-100.0, 100.0)]  # of the length penalty
Seconds = Annotated[float, Range(0.0, 1e9, open_below=True)]
