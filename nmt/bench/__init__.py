"""Speed and memory of training, decoding and attention."""
