"""Llama: grouped queries, a large vocabulary, and PyTorch's own norm and activation, as people train."""
