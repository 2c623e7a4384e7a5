"""The same training as train.c, in Python: ctypes, and no other module.

    lockstep run -n 2 python3 train.py liblockstep_c.so parameters.bin
"""

import ctypes
import sys

INPUTS, HIDDEN, SAMPLES, STEPS, LEARNING_RATE = 8, 16, 32, 50, 0.05
FLOAT64, AVG = 1, 1

lockstep = ctypes.CDLL(sys.argv[1])
lockstep.lockstep_error_text.restype = ctypes.c_char_p
lockstep.lockstep_init.argtypes = [ctypes.c_char_p, ctypes.c_double, ctypes.POINTER(ctypes.c_void_p)]
lockstep.lockstep_rank.argtypes = lockstep.lockstep_size.argtypes = [ctypes.c_void_p]
lockstep.lockstep_all_reduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_int32,
                                         ctypes.c_void_p]
lockstep.lockstep_averager_create.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.c_size_t, ctypes.c_int32,
                                              ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
lockstep.lockstep_average.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
lockstep.lockstep_averager_free.argtypes = lockstep.lockstep_group_free.argtypes = [ctypes.c_void_p]


def check(status):
    """Ends the program with the error of the last call."""
    if status != 0:
        sys.exit("train: " + lockstep.lockstep_error_text().decode())


def numbers(seed):
    """A linear congruential generator of numbers in -0.5 … 0.5."""
    while True:
        seed = (seed * 1664525 + 1013904223) % 2**32
        yield (seed >> 8) / 16777216.0 - 0.5


def backward(parameters, gradients, x, y):
    """Sets the gradients of the mean squared error over this rank's samples, and returns the error."""
    w1, b1, w2, b2 = parameters
    gw1, gb1, gw2, gb2 = gradients
    for gradient in gradients:
        ctypes.memset(gradient, 0, ctypes.sizeof(gradient))
    loss = 0.0
    for inputs, target in zip(x, y):
        a = []
        for h in range(HIDDEN):
            z = b1[h]
            for i in range(INPUTS):
                z += w1[h * INPUTS + i] * inputs[i]
            a.append(max(z, 0.0))
        output = b2[0]
        for h in range(HIDDEN):
            output += w2[h] * a[h]
        error = output - target
        g = error * (2.0 / SAMPLES)
        loss += error * error
        gb2[0] += g
        for h in range(HIDDEN):
            gw2[h] += g * a[h]
            gz = g * w2[h] if a[h] > 0 else 0.0
            gb1[h] += gz
            for i in range(INPUTS):
                gw1[h * INPUTS + i] += gz * inputs[i]
    return loss / SAMPLES


def main():
    world = ctypes.c_void_p()
    check(lockstep.lockstep_init(None, 0, world))
    rank, size = lockstep.lockstep_rank(world), lockstep.lockstep_size(world)
    counts = (ctypes.c_size_t * 4)(HIDDEN * INPUTS, HIDDEN, HIDDEN, 1)
    number = numbers(1)
    parameters = [(ctypes.c_double * count)(*(next(number) for _ in range(count))) for count in counts]
    gradients = [(ctypes.c_double * count)() for count in counts]
    number = numbers(1000 + rank)
    x, y = [], []
    for _ in range(SAMPLES):
        x.append([next(number) for _ in range(INPUTS)])
        total = 0.0
        for one, other in zip(x[-1], x[-1][1:]):
            total += one * other
        y.append(total)

    averager = ctypes.c_void_p()
    check(lockstep.lockstep_averager_create(world, counts, 4, FLOAT64, None, averager))
    addresses = (ctypes.c_void_p * 4)(*(ctypes.addressof(gradient) for gradient in gradients))
    for _ in range(STEPS):
        loss = ctypes.c_double(backward(parameters, gradients, x, y))
        check(lockstep.lockstep_average(averager, addresses))
        for parameter, gradient in zip(parameters, gradients):
            for i, slope in enumerate(gradient):
                parameter[i] -= LEARNING_RATE * slope
    check(lockstep.lockstep_all_reduce(world, ctypes.addressof(loss), 1, FLOAT64, AVG, None))
    if rank == 0:
        if len(sys.argv) > 2:
            with open(sys.argv[2], "wb") as file:
                for parameter in parameters:
                    file.write(bytes(parameter))
        print(f"loss {loss.value:.6f} after {STEPS} steps on {size} ranks")
    lockstep.lockstep_averager_free(averager)
    lockstep.lockstep_group_free(world)


if __name__ == "__main__":
    main()
