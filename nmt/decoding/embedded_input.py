"""The embeddings and positions that the kernels in C read. Imports no torch."""

import threading

import numpy as np

from nmt.decoding.packed_model import Array, PackedSettings, sinusoids
from nmt.ops.native import interface
from nmt.ops.native.interface import address


class EmbeddedInput:
    """The embeddings of one side, and as many positions as were asked for.

    Several threads may translate with it: a structure never changes once it was given out, and the
    tables that it may point to are kept.
    """

    def __init__(self, embedding: Array, positions: Array, settings: PackedSettings) -> None:
        if embedding.ndim != 2 or embedding.shape[1] != settings.dim:
            raise ValueError(f"expected embeddings {settings.dim} wide, got {embedding.shape}")
        self.settings = settings
        self.embedding = np.ascontiguousarray(embedding)
        self.tables = [positions]
        self.fields = self._fields(positions)
        self.lock = threading.Lock()

    def _fields(self, positions: Array) -> interface.TokenInput:
        return interface.TokenInput(
            vocabulary=len(self.embedding),
            num_positions=len(positions),
            scale=self.settings.embedding_scale,
            embedding=address(self.embedding),
            positions=address(positions, (len(positions), self.settings.dim)),
        )

    def at_least(self, count: int) -> interface.TokenInput:
        """The structure that the kernels read, with at least this many positions."""
        with self.lock:
            known = self.tables[-1]
            if count > len(known):
                more = sinusoids(len(known), 1 << (count - 1).bit_length(), self.settings)
                self.tables.append(np.concatenate([known, more]))
                self.fields = self._fields(self.tables[-1])
            return self.fields
