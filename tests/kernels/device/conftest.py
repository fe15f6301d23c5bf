"""These tests run on the virtual GPU, which stays in their process."""

import torch

from harness.device import installation

installation.install_device("H100")
torch.set_num_threads(1)  # some fork, and OpenMP's threads do not come along
