"""Ranks run on virtual GPUs, which stay in this process."""

import torch

from harness.sanitizer.device import installation

installation.install_device("H100")
torch.set_num_threads(1)  # ranks are forks, and OpenMP's threads do not come along
