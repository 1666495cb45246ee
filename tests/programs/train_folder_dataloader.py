"""`examples/train_folder.py` as one writes it with PyTorch's loader: the two are compared."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

parser = argparse.ArgumentParser()
parser.add_argument("root", type=Path)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--workers", type=int, default=4)
options = parser.parse_args()
labels = sorted(folder.name for folder in options.root.glob("train/*"))
# Without a main guard: otherwise begun, as by default since Python 3.14, workers would need one.
how = {"num_workers": options.workers, "multiprocessing_context": "fork"}


class Folder(Dataset):
    """Images and labels of one part of the data."""

    def __init__(self, folder: Path, augment: bool) -> None:
        self.paths = sorted(folder.glob("*/*.jpg"))
        self.augment = augment

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        path = self.paths[index]
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB"))
        if self.augment:
            rng = np.random.default_rng(torch.initial_seed() + index)
            pixels = pixels[:, :: rng.choice([-1, 1])]  # mirrored, or not
            pixels = np.roll(pixels, rng.integers(-3, 4, size=2), axis=(0, 1))
        return pixels, labels.index(path.parent.name)


train = DataLoader(
    Folder(options.root / "train", augment=True),
    options.batch_size,
    shuffle=True,
    drop_last=True,
    generator=torch.Generator().manual_seed(7),
    **how,
)
valid = DataLoader(Folder(options.root / "valid", False), 256, **how)

torch.set_num_threads(max(1, (os.cpu_count() or 1) - options.workers))  # workers have the others
torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU()),
    *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, len(labels))),
)
optimiser = torch.optim.Adam(model.parameters(), lr=0.003)


def scores(images: torch.Tensor) -> torch.Tensor:
    return model(images.permute(0, 3, 1, 2) / 255)


for epoch in range(options.epochs):
    model.train()
    for images, targets in tqdm(train, f"epoch {epoch}"):
        loss = nn.functional.cross_entropy(scores(images), targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        right = [scores(images).argmax(1) == targets for images, targets in valid]
    print(f"epoch {epoch}: right {torch.cat(right).float().mean():.1%}", flush=True)
