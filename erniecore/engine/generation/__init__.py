"""From prompts to answers: cache, sampling, decoding alone or many at once, guesses ahead, rollouts."""
