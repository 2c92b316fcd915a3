"""Accelerate trains a network on handwritten digits; its gradients go by hpcomm.

    torchrun --nproc-per-node 2 examples/train_accelerate.py
    torchrun --nproc-per-node 2 examples/train_accelerate.py --backend gloo     # the same by Gloo

Two lines are for hpcomm. The last line is the test loss and accuracy.
"""

import argparse
import json

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hpcomm.torch  # noqa: F401  # <----------------------------------------------------------- 1, makes the backend


def data() -> tuple[TensorDataset, TensorDataset]:
    """Returns 1440 digits to train on, and the 357 others to test with."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return TensorDataset(x[:1440], y[:1440]), TensorDataset(x[1440:], y[1440:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="hpcomm")
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()
    dist.init_process_group(given.backend)  # <------------------------------------------------- 2, before Accelerator
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    net: nn.Module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    train, test = data()
    net, optimizer, batches, tests = accelerator.prepare(
        net,
        torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        DataLoader(train, batch_size=32, shuffle=True),
        DataLoader(test, batch_size=64),
    )
    for _ in range(given.epochs):
        for x, y in batches:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(net(x), y))
            optimizer.step()
    outs, answers = [], []
    with torch.no_grad():
        for x, y in tests:
            out, answer = accelerator.gather_for_metrics((net(x), y))
            outs.append(out)
            answers.append(answer)
    out, answer = torch.cat(outs), torch.cat(answers)
    if accelerator.is_main_process:
        loss, right = nn.functional.cross_entropy(out, answer), (out.argmax(1) == answer).float().mean()
        print(json.dumps({"loss": float(loss), "accuracy": float(right)}))
    accelerator.end_training()


if __name__ == "__main__":
    main()
