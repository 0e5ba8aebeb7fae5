"""Models from and for other programs: CTranslate2, Hugging Face, Marian, ONNX."""
