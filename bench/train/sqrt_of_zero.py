#!/usr/bin/env python3
"""Times LibTorch's elementwise operations of Adam on one core for numbers of one value, while
denormals are flushed: its square root of zero takes several times as long as of other numbers.

    python bench/train/sqrt_of_zero.py        with PyTorch installed
"""

import time

import torch

NUMBERS = 256 * 784
VALUES = (1.0, 1e-10, 1e-30, 0.0)


def least_us(operation, turns=300):
    times = []
    for _ in range(turns):
        begin = time.perf_counter()
        operation()
        times.append(time.perf_counter() - begin)
    return 1e6 * min(times)


def main():
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    print("| value | µs: a * a | average of squares | square root |\n|---|---|---|---|")
    average, result = torch.zeros(NUMBERS), torch.zeros(NUMBERS)
    for value in VALUES:
        numbers = torch.full((NUMBERS,), value)
        times = (least_us(lambda a=numbers: torch.mul(a, a, out=result)),
                 least_us(lambda a=numbers: average.mul_(0.95).addcmul_(a, a, value=0.05)),
                 least_us(lambda a=numbers: torch.sqrt(a, out=result)))
        print(f"| {value} | " + " | ".join(f"{took:.0f}" for took in times) + " |")


if __name__ == "__main__":
    main()
