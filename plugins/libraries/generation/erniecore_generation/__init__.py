"""Text generation: sampling, KV cache, continuous batching, speculative decoding, rollouts."""
