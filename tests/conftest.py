"""One torch thread in every test: results are compared bit for bit, and tests run side by side."""

import torch

torch.set_num_threads(1)
