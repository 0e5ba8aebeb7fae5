"""Atomic and synced writing of files and directories; manifest, lock, tensors."""
