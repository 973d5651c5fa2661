"""Log-probabilities of tokens as the serving engine reports them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from erniecore.api import NumericsError
from erniecore_generation.engine.requests import TokenLogprob


def token_logprob(logits: NDArray[np.float32], token: int, most: int) -> TokenLogprob:
    """Of ``token`` under softmax(logits [V]), with the ``most`` likely tokens; float64 inside, rounded to float32.

    Raises:
        NumericsError: logits that are NaN or +inf, or none that is finite.
    """
    wide = logits.astype(np.float64)
    highest = wide.max()
    if not np.isfinite(highest):
        raise NumericsError("the model's logits are not finite", found=str(highest))
    total = highest + np.log(np.exp(wide - highest).sum())
    best: tuple[tuple[int, float], ...] = ()
    if most:
        most = min(most, len(logits))
        edge = np.partition(logits, len(logits) - most)[len(logits) - most]
        places = np.flatnonzero(logits >= edge)
        places = places[np.argsort(-logits[places], kind="stable")][:most]
        best = tuple((int(place), float(np.float32(wide[place] - total))) for place in places)
    return TokenLogprob(token, float(np.float32(wide[token] - total)), best)
