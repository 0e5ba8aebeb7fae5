"""The numbers of the papers' Tables 5 and 6, by kind of attention.

Tables 1 and 3 and those of the second paper are in the `paper.tsv` of the recipes, Tables 2 and 4
in `nmt.bench.paper`. All are for Transformer-base models on WMT data.
"""

# Percent: (step, mean over layers) of Table 5.
ALIGNMENT_ERROR = {
    "softmax": {"normal": (75.95, 67.51), "shifted": (79.38, 54.31)},
    "sparsemax": {"normal": (78.17, 67.88), "shifted": (82.32, 54.95)},
    "entmax15": {"normal": (78.82, 67.69), "shifted": (79.84, 58.98)},
    "rela-g": {"normal": (64.46, 61.64), "shifted": (59.24, 52.41)},
}

# Nats of encoder, decoder and cross-attention in Table 6, by temperature ("plain": sums to 1).
HEAD_DIVERSITY = {
    "softmax": {"plain": (0.56, 0.31, 0.45)},
    "entmax15": {"plain": (0.84, 0.39, 0.52)},
    "rela-g": {
        "1.0": (1.26, 0.81, 0.78),
        "0.5": (0.97, 0.65, 0.69),
        "0.25": (0.92, 0.65, 0.71),
        "0.1": (0.92, 0.66, 0.72),
    },
}
