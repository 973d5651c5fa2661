"""Multi-token prediction (MTP): further decoder layers that predict the tokens after the next one. Evaluation does not run
them, and generation only the first one, as the drafter of speculative decoding.

Depth n combines the embedding of token t + n + 1 with the hidden states of the previous depth (depth 0: the main model's,
before its final norm): z = W [RMS_emb(e) ; RMS_hid(h)], h' = block(z). The final norm and the head are the main model's.
Source: arXiv:2412.19437, section 2.2. The sequence is not lengthened for this: the last n + 1 positions of every packed
sample have no such token. They read whatever token is there; no later position of their sample with a label attends to
them, and their labels are IGNORE.
Letters: B batch, S positions, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable

import paddle  # noqa: TID253
from erniecore_ernie45.context import Context
from erniecore_ernie45.layers import DecoderLayer, RMSNorm, linear
from erniecore_ernie45.model import Decoder, run_layer
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ops
from erniecore_ernie45_moe.architecture import MoeArchitecture
from erniecore_ernie45_moe.config import RouterSection
from erniecore_ernie45_moe.layers import make_layer


class MoeDecoder(Decoder):
    """The stack of dense and mixture-of-experts layers, and the MTP layers if the architecture has them."""

    def __init__(
        self,
        arch: MoeArchitecture,
        config: RouterSection,
        make_layer: Callable[..., DecoderLayer] = make_layer,
    ) -> None:
        super().__init__(arch, lambda index: make_layer(arch, config, index))
        depths = range(arch.num_mtp_layers)
        size, epsilon, first = arch.hidden_size, arch.rms_norm_eps, arch.num_hidden_layers
        # An MTP layer is made like layer 0: dense, unless experts start there.
        self.mtp_block = nn.LayerList([make_layer(arch, config, first + n, like=0) for n in depths])
        self.mtp_emb_norm = nn.LayerList([RMSNorm(size, epsilon) for _ in depths])
        self.mtp_hidden_norm = nn.LayerList([RMSNorm(size, epsilon) for _ in depths])
        self.mtp_linear_proj = nn.LayerList([linear(arch, 2 * size, size, arch.use_bias) for _ in depths])

    def multi_token_prediction(
        self, hidden_BSH: Tensor, input_ids: Tensor, context: Context
    ) -> tuple[tuple[Tensor, ...], list[tuple[Tensor, ...]]]:
        """Hidden states [B, S, H] of every depth after the final norm, and what their layers measured."""
        hidden, measured = [], []
        for depth, block in enumerate(self.mtp_block):
            joined_BSH = self.joined(depth, hidden_BSH, ops.shifted(input_ids, depth + 1))
            hidden_BSH, *rest = run_layer(block, joined_BSH, context)
            measured.append(tuple(rest))
            hidden.append(self.norm(hidden_BSH))
        return tuple(hidden), measured

    def joined(self, depth: int, hidden_BSH: Tensor, next_ids: Tensor) -> Tensor:
        """Input of the MTP layer of a depth: hidden states of the depth before, and embeddings of later tokens [B, S]."""
        parts = [self.mtp_emb_norm[depth](self.embed_tokens(next_ids)), self.mtp_hidden_norm[depth](hidden_BSH)]
        return self.mtp_linear_proj[depth](paddle.concat(parts, axis=-1))
