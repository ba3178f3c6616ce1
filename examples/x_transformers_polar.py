"""Five steps with x-transformers 2.31.10, as its users write them. It knows nothing of pseudograd.

python examples/x_transformers_polar.py
pseudograd diagnose examples/x_transformers_polar.py       which parameter does not train, and which line is to blame?
"""

from __future__ import annotations

import torch
from torch.nn import functional
from x_transformers import Decoder, TransformerWrapper


def main() -> None:
    torch.manual_seed(0)
    layers = Decoder(dim=32, depth=1, heads=2, attn_dim_head=16, polar_pos_emb=True)
    model = TransformerWrapper(num_tokens=32, max_seq_len=32, attn_layers=layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(5):
        text = torch.randint(32, (8, 16)).repeat(1, 2)
        loss = functional.cross_entropy(model(text[:, :-1]).transpose(1, 2), text[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
