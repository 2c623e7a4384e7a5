/* Trains a small network on several ranks over the C interface of Lockstep.

       cc -std=c99 -O2 -ffp-contract=off train.c -llockstep_c -o train
       lockstep run -n 2 ./train parameters.bin

   The network has 8 inputs, 16 hidden units (ReLU) and one output. Each rank has 32 samples of its
   own. train.f90 and train.py do the same computation in the same order, so all three programs end
   with the same bits of the parameters. */
#include <lockstep_c.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { inputs = 8, hidden = 16, samples = 32, steps = 50 };
static const double learning_rate = 0.05;

static double w1[hidden][inputs], b1[hidden], w2[hidden], b2[1];
static double gw1[hidden][inputs], gb1[hidden], gw2[hidden], gb2[1];
static double x[samples][inputs], y[samples];

/* Ends the program with the error of the last call, on every rank. */
static void check(lockstep_status status) {
  if (status == LOCKSTEP_OK) return;
  fprintf(stderr, "train: %s\n", lockstep_error_text());
  exit(1);
}

/* The next number of a linear congruential generator, in -0.5 … 0.5. */
static double next(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return (double)(*state >> 8) / 16777216.0 - 0.5;
}

static void make_parameters(void) {
  uint32_t state = 1;
  for (int h = 0; h < hidden; ++h) {
    for (int i = 0; i < inputs; ++i) w1[h][i] = next(&state);
  }
  for (int h = 0; h < hidden; ++h) b1[h] = next(&state);
  for (int h = 0; h < hidden; ++h) w2[h] = next(&state);
  b2[0] = next(&state);
}

/* The output to learn is a sum of products of neighbouring inputs. */
static void make_samples(int rank) {
  uint32_t state = 1000u + (uint32_t)rank;
  for (int s = 0; s < samples; ++s) {
    for (int i = 0; i < inputs; ++i) x[s][i] = next(&state);
    y[s] = 0;
    for (int i = 0; i + 1 < inputs; ++i) y[s] += x[s][i] * x[s][i + 1];
  }
}

/* The gradients of the mean squared error over this rank's samples; returns the error. */
static double backward(void) {
  double loss = 0;
  for (int h = 0; h < hidden; ++h) {
    for (int i = 0; i < inputs; ++i) gw1[h][i] = 0;
    gb1[h] = 0;
    gw2[h] = 0;
  }
  gb2[0] = 0;
  for (int s = 0; s < samples; ++s) {
    double a[hidden], out = b2[0];
    for (int h = 0; h < hidden; ++h) {
      double z = b1[h];
      for (int i = 0; i < inputs; ++i) z += w1[h][i] * x[s][i];
      a[h] = z > 0 ? z : 0;
    }
    for (int h = 0; h < hidden; ++h) out += w2[h] * a[h];
    const double error = out - y[s];
    const double g = error * (2.0 / samples);
    loss += error * error;
    gb2[0] += g;
    for (int h = 0; h < hidden; ++h) {
      gw2[h] += g * a[h];
      const double gz = a[h] > 0 ? g * w2[h] : 0;
      gb1[h] += gz;
      for (int i = 0; i < inputs; ++i) gw1[h][i] += gz * x[s][i];
    }
  }
  return loss / samples;
}

static void step(double* parameter, const double* gradient, size_t count) {
  for (size_t i = 0; i < count; ++i) parameter[i] -= learning_rate * gradient[i];
}

int main(int argc, char** argv) {
  lockstep_group* world = NULL;
  check(lockstep_init(NULL, 0, &world));
  make_parameters();
  make_samples(lockstep_rank(world));

  const size_t counts[] = {hidden * inputs, hidden, hidden, 1};
  void* const gradients[] = {gw1, gb1, gw2, gb2};
  lockstep_averager* averager = NULL;
  check(lockstep_averager_create(world, counts, 4, LOCKSTEP_FLOAT64, NULL, &averager));
  double loss = 0;
  for (int i = 0; i < steps; ++i) {
    loss = backward();
    check(lockstep_average(averager, gradients));
    step(&w1[0][0], &gw1[0][0], hidden * inputs);
    step(b1, gb1, hidden);
    step(w2, gw2, hidden);
    step(b2, gb2, 1);
  }
  check(lockstep_all_reduce(world, &loss, 1, LOCKSTEP_FLOAT64, LOCKSTEP_AVG, NULL));

  /* Rank 0 writes the parameters, and all ranks learn whether it could. */
  const char* error = NULL;
  if (lockstep_rank(world) == 0 && argc > 1) {
    FILE* file = fopen(argv[1], "wb");
    size_t written = 0;
    if (file != NULL) {
      written += fwrite(w1, sizeof(double), hidden * inputs, file) +
                 fwrite(b1, sizeof(double), hidden, file);
      written += fwrite(w2, sizeof(double), hidden, file) + fwrite(b2, sizeof(double), 1, file);
      if (fclose(file) != 0) written = 0;
    }
    if (written != hidden * inputs + hidden + hidden + 1) error = "cannot write the parameters";
  }
  check(lockstep_all_or_none(world, error));
  if (lockstep_rank(world) == 0)
    printf("loss %.6f after %d steps on %d ranks\n", loss, steps, lockstep_size(world));
  lockstep_averager_free(averager);
  lockstep_group_free(world);
  return 0;
}
