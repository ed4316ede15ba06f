"""What the fork server loads once for all client apps; nothing else imports it.

Modules of this project are loaded for what they import: a forked process takes them from the
bundle (`fedkd_flwr.bundles.guard`).
"""

import torch

import fedkd_flwr.client_app  # noqa: F401
from strategies.core import flower

flower.flwr_clientapp  # noqa: B018  (loads Flower's client)

if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
    raise RuntimeError("CUDA is initialized in the fork server; no forked process could use it.")
