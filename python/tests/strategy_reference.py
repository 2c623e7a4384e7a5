"""Some of Lockstep's strategies over the gradients of all ranks in one process, in a few lines of numpy each.

A strategy is a function of (step, buckets, gradients) that returns the resulting gradients by rank and name. gradients[rank]
has arrays by names of parameters; buckets has lists of names.
"""

import math

import numpy


def mean(arrays):
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total * numpy.float32(1 / len(arrays))


def flat(bucket, arrays):
    return numpy.concatenate([arrays[name].ravel() for name in bucket])


def split(bucket, like, values):
    result = {}
    for name in bucket:
        result[name], values = values[:like[name].size].reshape(like[name].shape), values[like[name].size:]
    return result


class PerBucket:
    """Exchanges every bucket as one vector for each rank."""

    def __init__(self, feedback=True):
        self.feedback = feedback
        self.residuals = {}

    def __call__(self, step, buckets, gradients):
        results = {}
        for bucket in buckets:
            sums = [flat(bucket, own) for own in gradients]
            if self.feedback:
                for rank, own in enumerate(gradients):
                    kept = [self.residuals.get((rank, name), numpy.zeros_like(own[name])).ravel() for name in bucket]
                    sums[rank] = numpy.concatenate(kept) + sums[rank]
            result, sent = self.exchange(step, sums)
            for rank, own in enumerate(gradients):
                for name, values in split(bucket, own, sums[rank] - sent[rank]).items():
                    self.residuals[rank, name] = values
            results.update(split(bucket, gradients[0], result))
        return [results] * len(gradients)

    def exchange(self, step, vectors):
        """The result, and what each rank sent."""
        raise NotImplementedError


class Fp32(PerBucket):
    def exchange(self, step, vectors):
        return mean(vectors), vectors


class Sparse(PerBucket):
    def __init__(self, picks, feedback=True):
        super().__init__(feedback)
        self.picks = picks

    def exchange(self, step, vectors):
        sent = [numpy.where(self.picks(step, vector), vector, numpy.float32(0)) for vector in vectors]
        result = numpy.zeros_like(sent[0])
        for part in sent:
            result = result + part * numpy.float32(1 / len(vectors))
        return result, sent


def top_k(ratio, feedback=True):
    def picks(step, vector):
        largest = numpy.argsort(-abs(vector), kind="stable")[:max(1, math.ceil(ratio * vector.size - 1e-9))]
        return numpy.isin(numpy.arange(vector.size), largest)
    return Sparse(picks, feedback)


class Threshold(Sparse):
    """All ranks send whole buckets where the picks and their indices would need as many bytes."""

    def __init__(self, value):
        super().__init__(lambda step, vector: abs(vector) >= numpy.float32(value))

    def exchange(self, step, vectors):
        if sum(int(self.picks(step, vector).sum()) for vector in vectors) * 8 >= vectors[0].size * 4:
            return mean(vectors), vectors
        return super().exchange(step, vectors)


class Int8(PerBucket):
    @staticmethod
    def coded(vector, factor=numpy.float32(1)):
        parts = []
        for begin in range(0, vector.size, 512):
            part = vector[begin:begin + 512]
            scale = abs(part).max() / numpy.float32(127)
            parts.append(numpy.rint(part / scale) * (scale * factor) if scale else part * 0)
        return numpy.concatenate(parts)

    def exchange(self, step, vectors):
        total = sum(self.coded(vector, numpy.float32(1 / len(vectors))) for vector in vectors)
        return self.coded(total), [self.coded(vector) for vector in vectors]


class PowerSgd:
    """At double precision. The first Q of every matrix is given."""

    def __init__(self, q):
        self.q = {name: first.astype(float) for name, first in q.items()}
        self.residuals = {}

    def __call__(self, step, buckets, gradients):
        results = {}
        for name, like in gradients[0].items():
            rows = like.shape[0] if name in self.q else 1
            own = [gradient[name].reshape(rows, -1).astype(float) + self.residuals.get((rank, name), 0)
                   for rank, gradient in enumerate(gradients)]
            if name not in self.q:
                results[name] = (sum(own) / len(own)).reshape(like.shape)
                continue
            basis = lambda matrix: numpy.linalg.qr(matrix)[0]
            first = basis(self.q[name])
            p = basis(sum(matrix @ first for matrix in own) / len(own))
            self.q[name] = sum(matrix.T @ p for matrix in own) / len(own)
            product = p @ self.q[name].T
            for rank, matrix in enumerate(own):
                self.residuals[rank, name] = matrix - product
            results[name] = product.reshape(like.shape)
        return [results] * len(gradients)


class Adasum:
    def joined(self, vectors):
        if len(vectors) == 1:
            return vectors[0]
        middle = (len(vectors) + 1) // 2
        a, b = self.joined(vectors[:middle]), self.joined(vectors[middle:])
        of = lambda vector: 1 - (a * b).sum() / (2 * (vector * vector).sum()) if vector.any() else 1
        return of(a) * a + of(b) * b

    def __call__(self, step, buckets, gradients):
        result = {name: self.joined([own[name].astype(float) for own in gradients]) for name in gradients[0]}
        return [result] * len(gradients)


class PartialUpdate:
    def __call__(self, step, buckets, gradients):
        results = [dict(own) for own in gradients]
        for name in buckets[step % len(buckets)]:
            for own in results:
                own[name] = mean([gradient[name] for gradient in gradients])
        return results


class Warmup:
    def __init__(self, steps, then):
        self.steps, self.first, self.then = steps, Fp32(feedback=False), then

    def __call__(self, step, buckets, gradients):
        if step < self.steps:
            return self.first(step, buckets, gradients)
        return self.then(step - self.steps, buckets, gradients)
