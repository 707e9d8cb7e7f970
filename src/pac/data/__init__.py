"""Data: from episodes on disk to the batches a model learns from."""
