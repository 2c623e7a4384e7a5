/* A rank that uses each function of lockstep_c.h: rank_program BEHAVIOUR. Prints what was wrong,
 * and exits with 1 then. */
#include <lockstep_c.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong = 0;

static void expect(int right, const char* what, int line) {
  if (right) return;
  wrong = 1;
  fprintf(stderr, "line %d: not %s; last error: %s\n", line, what, lockstep_error_text());
}
#define EXPECT(right) expect((right), #right, __LINE__)
#define OK(call) EXPECT((call) == LOCKSTEP_OK)
#define REFUSED(call) EXPECT((call) == LOCKSTEP_INVALID_ARGUMENT)
#define SAYS(text) EXPECT(strstr(lockstep_error_text(), text) != NULL)

static void collectives(lockstep_group* world) {
  const int rank = lockstep_rank(world), size = lockstep_size(world);
  const int sum = size * (size - 1) / 2;
  EXPECT(lockstep_host_of(world, rank) == 0);
  EXPECT(lockstep_host_of(world, size) == -1);
  EXPECT(strcmp(lockstep_backend(world), "host") == 0);

  float values[3] = {(float)rank, 1, -1};
  OK(lockstep_all_reduce(world, values, 3, LOCKSTEP_FLOAT32, LOCKSTEP_SUM, NULL));
  EXPECT(values[0] == (float)sum && values[1] == (float)size && values[2] == (float)-size);
  OK(lockstep_all_reduce(world, NULL, 0, LOCKSTEP_FLOAT32, LOCKSTEP_SUM, NULL));

  int64_t seed = rank == size - 1 ? 77 : 0;
  OK(lockstep_broadcast(world, &seed, 1, LOCKSTEP_INT64, size - 1, NULL));
  EXPECT(seed == 77);

  /* Rank r has r elements, so that rank 0 has none. */
  size_t* counts = calloc((size_t)size, sizeof(size_t));
  for (int r = 0; r < size; ++r) counts[r] = (size_t)r;
  int32_t own[64], all[64], part[64];
  for (int i = 0; i < 64; ++i) own[i] = rank;
  OK(lockstep_all_gather(world, own, all, counts, LOCKSTEP_INT32, NULL));
  for (int r = 0, at = 0; r < size; ++r) {
    for (int i = 0; i < r; ++i) EXPECT(all[at++] == r);
  }
  for (int i = 0; i < sum; ++i) all[i] = i;
  OK(lockstep_reduce_scatter(world, all, part, counts, LOCKSTEP_INT32, LOCKSTEP_MAX, NULL));
  for (int i = 0; i < rank; ++i) EXPECT(part[i] == rank * (rank - 1) / 2 + i);
  for (int i = 0; i < rank; ++i) own[i] = 10 * rank + i;
  OK(lockstep_gather_counts(world, own, all, counts, LOCKSTEP_INT32, size - 1, NULL));
  for (int r = 0, at = 0; rank == size - 1 && r < size; ++r) {
    for (int i = 0; i < r; ++i) EXPECT(all[at++] == 10 * r + i);
  }
  memset(part, 0, sizeof part);
  OK(lockstep_scatter_counts(world, rank == size - 1 ? all : NULL, part, counts, LOCKSTEP_INT32,
                             size - 1, NULL));
  for (int i = 0; i < rank; ++i) EXPECT(part[i] == 10 * rank + i);
  EXPECT(part[rank] == 0);

  /* Rank r sends r elements to each rank. */
  size_t* equal = calloc((size_t)size, sizeof(size_t));
  for (int r = 0; r < size; ++r) equal[r] = (size_t)rank;
  for (int i = 0; i < size * rank; ++i) own[i] = 100 * rank + i / rank;
  OK(lockstep_all_to_all_counts(world, own, all, equal, counts, LOCKSTEP_INT32, NULL));
  for (int r = 0, at = 0; r < size; ++r) {
    for (int i = 0; i < r; ++i) EXPECT(all[at++] == 100 * r + rank);
  }
  free(equal);
  free(counts);

  int16_t bits[2] = {(int16_t)(1 << rank), (int16_t)-1};
  OK(lockstep_all_reduce(world, bits, 2, LOCKSTEP_INT16, LOCKSTEP_BXOR, NULL));
  EXPECT(bits[0] == (1 << size) - 1 && bits[1] == (size % 2 == 1 ? -1 : 0));
  bits[0] = (int16_t)(1 << rank);
  OK(lockstep_all_reduce(world, bits, 1, LOCKSTEP_INT16, LOCKSTEP_BOR, NULL));
  EXPECT(bits[0] == (1 << size) - 1);
  bits[0] = (int16_t)(7 | 8 << rank);
  OK(lockstep_all_reduce(world, bits, 1, LOCKSTEP_INT16, LOCKSTEP_BAND, NULL));
  EXPECT(bits[0] == (size == 1 ? 15 : 7));
  uint8_t flags[2] = {rank == 0, 1};
  OK(lockstep_all_reduce(world, flags, 2, LOCKSTEP_BOOL, LOCKSTEP_SUM, NULL));
  EXPECT(flags[0] == 1 && flags[1] == 1);
  int64_t number = rank + 1;
  OK(lockstep_reduce(world, &number, 1, LOCKSTEP_INT64, LOCKSTEP_SUM, size - 1, NULL));
  EXPECT(number == (rank == size - 1 ? sum + size : rank + 1));

  OK(lockstep_gather(world, &rank, all, 1, LOCKSTEP_INT32, 0, NULL));
  if (rank == 0) {
    for (int r = 0; r < size; ++r) EXPECT(all[r] == r);
  }
  OK(lockstep_scatter(world, rank == 0 ? all : NULL, part, 1, LOCKSTEP_INT32, 0, NULL));
  EXPECT(part[0] == rank);
  for (int r = 0; r < size; ++r) own[r] = 100 * rank + r;
  OK(lockstep_all_to_all(world, own, all, 1, LOCKSTEP_INT32, NULL));
  for (int r = 0; r < size; ++r) EXPECT(all[r] == 100 * r + rank);

  /* A ring of messages, begun before they are waited for. */
  lockstep_work *sent = NULL, *received = NULL;
  int32_t from_left = -1;
  OK(lockstep_send(world, &rank, 1, LOCKSTEP_INT32, (rank + 1) % size, 5, &sent));
  OK(lockstep_recv(world, &from_left, 1, LOCKSTEP_INT32, (rank + size - 1) % size, 5, &received));
  int32_t complete = -1;
  OK(lockstep_test(received, &complete));
  EXPECT(complete == 0 || complete == 1);
  OK(lockstep_wait(&received));
  OK(lockstep_wait(&sent));
  EXPECT(sent == NULL && received == NULL && from_left == (rank + size - 1) % size);
  OK(lockstep_wait(&sent)); /* nothing is left to wait for */

  /* Rank 0 receives from any rank, by lockstep_wait() and in one call. */
  if (rank > 0) {
    OK(lockstep_send(world, &rank, 1, LOCKSTEP_INT32, 0, 6, NULL));
    OK(lockstep_send(world, &rank, 1, LOCKSTEP_INT32, 0, 7, NULL));
  }
  for (int r = 1; rank == 0 && r < size; ++r) {
    int32_t number = -1, from = -1;
    OK(lockstep_recv_any(world, &number, 1, LOCKSTEP_INT32, &from, 7, NULL));
    EXPECT(number > 0 && number == from);
    OK(lockstep_recv_any(world, &number, 1, LOCKSTEP_INT32, &from, 6, &received));
    OK(lockstep_wait(&received));
    EXPECT(number > 0 && number == from);
  }
  REFUSED(lockstep_recv_any(world, &from_left, 1, LOCKSTEP_INT32, NULL, 7, NULL));
  OK(lockstep_barrier(world, NULL));

  lockstep_group* half = NULL;
  OK(lockstep_split(world, rank % 2, -rank, &half));
  int32_t members = 1;
  OK(lockstep_all_reduce(half, &members, 1, LOCKSTEP_INT32, LOCKSTEP_SUM, NULL));
  EXPECT(members == lockstep_size(half));
  EXPECT(lockstep_rank(half) == (size - 1 - rank) / 2);
  lockstep_group_free(half);
  lockstep_group* none = half;
  OK(lockstep_split(world, -1, 0, &none));
  EXPECT(none == NULL);

  void* memory = NULL;
  OK(lockstep_allocate(world, 4000, &memory));
  double* numbers = memory;
  EXPECT((uintptr_t)memory % 64 == 0);
  for (int i = 0; i < 500; ++i) numbers[i] = rank + i;
  OK(lockstep_all_reduce(world, numbers, 500, LOCKSTEP_FLOAT64, LOCKSTEP_MIN, NULL));
  for (int i = 0; i < 500; ++i) EXPECT(numbers[i] == i);
  lockstep_free(memory);
  lockstep_free(NULL);
}

static void averages(lockstep_group* world) {
  const int rank = lockstep_rank(world), size = lockstep_size(world);
  const float mean = (float)(size - 1) / 2;
  /* An array of so many elements does not fit into a bucket with another one. */
  enum { BUCKET = 25 * 1024 * 1024 / sizeof(float), FEW = 1000 };
  float* large = malloc(BUCKET * sizeof(float));
  float small[8];
  void* const arrays[] = {small, large, NULL, small + 3};
  /* Buckets do not depend on the strategy. int8 has one scale for all elements of a bucket. */
  const char* const strategies[] = {
      NULL,   "int8",   "int8:feedback=off", "fp16", "fp16:clip=100,predivide=off",
      "bf16", "topk:1", "threshold:0"};
  for (size_t s = 0; s < sizeof strategies / sizeof *strategies; ++s) {
    const size_t counts[] = {3, s < 3 ? BUCKET : FEW, 0, 5};
    lockstep_averager* averager = NULL;
    OK(lockstep_averager_create(world, counts, 4, LOCKSTEP_FLOAT32, strategies[s], &averager));
    for (int again = 0; again < 2; ++again) {
      for (size_t i = 0; i < counts[1]; ++i) large[i] = (float)rank;
      for (int i = 0; i < 8; ++i) small[i] = (float)(rank + i);
      OK(lockstep_average(averager, arrays));
      int right = 1;
      for (size_t i = 0; i < counts[1]; ++i) right &= fabsf(large[i] - mean) <= 0.01f * mean;
      for (int i = 0; i < 8; ++i) right &= fabsf(small[i] - mean - (float)i) <= 0.02f * (mean + 8);
      EXPECT(right);
    }
    lockstep_averager_free(averager);
  }
  free(large);
}

/* Averagers that differ between ranks are refused on all of them. */
static void different_averagers(lockstep_group* world) {
  const int last = lockstep_size(world) - 1, is_last = lockstep_rank(world) == last;
  const size_t counts[] = {2, 6}, swapped[] = {6, 2};
  float values[16] = {0};
  void* const arrays[] = {values, values + 8};
  const struct {
    const size_t* counts;
    size_t n;
    const char* strategy;
    const char* expected;
  } of_last[] = {
      {swapped, 2, "topk:0.5", "got 2 elements of array 0 on rank"},
      {counts, 1, "topk:0.5", "; nothing on rank"},
      {counts, 2, "topk:0.5,feedback=off", "; strategy topk:0.5,feedback=off of float32 on rank"},
      {counts, 2, "topk:0.50", NULL}};
  for (size_t i = 0; i < sizeof of_last / sizeof *of_last; ++i) {
    lockstep_averager* averager = NULL;
    OK(lockstep_averager_create(world, is_last ? of_last[i].counts : counts,
                                is_last ? of_last[i].n : 2, LOCKSTEP_FLOAT32,
                                is_last ? of_last[i].strategy : "topk:0.5", &averager));
    for (int again = 0; again < 2; ++again) {
      const int differ = last > 0 && of_last[i].expected != NULL;
      EXPECT(lockstep_average(averager, arrays) ==
             (differ ? LOCKSTEP_INVALID_ARGUMENT : LOCKSTEP_OK));
      if (differ) SAYS(of_last[i].expected);
    }
    lockstep_averager_free(averager);
  }
}

enum { WHOLE = 1000, FIRST = 640 };

/* A gradient with few large elements, other ones on each rank and at each step. */
static void make_gradient(float* values, int rank, int step) {
  uint32_t seed = (uint32_t)(rank * 100 + step + 1);
  for (int i = 0; i < WHOLE; ++i) {
    seed = seed * 1664525u + 1013904223u;
    const float value = (float)(seed >> 8) / 16777216.0f - 0.5f;
    values[i] = value * value * value * 8;
  }
}

/* What has been averaged and the mean of what error feedback keeps are together the mean of all
   gradients. An averager that loads the state of another one continues with the same bits. */
static void error_feedback(lockstep_group* world) {
  const int rank = lockstep_rank(world), size = lockstep_size(world);
  const size_t counts[] = {FIRST, WHOLE - FIRST};
  static float gradient[WHOLE], again[WHOLE], residual[WHOLE];
  static double sent[WHOLE], given[WHOLE];
  void* const arrays[] = {gradient, gradient + FIRST};
  void* const copies[] = {again, again + FIRST};
  void* const residuals[] = {residual, residual + FIRST};
  const char* const strategies[] = {"topk:0.1", "topk:0.05,ramp=4", "threshold:1.5", "int8"};
  for (size_t s = 0; s < sizeof strategies / sizeof *strategies; ++s) {
    lockstep_averager *averager = NULL, *other = NULL;
    OK(lockstep_averager_create(world, counts, 2, LOCKSTEP_FLOAT32, strategies[s], &averager));
    OK(lockstep_averager_create(world, counts, 2, LOCKSTEP_FLOAT32, strategies[s], &other));
    int64_t steps = -1;
    OK(lockstep_averager_save(averager, residuals, &steps));
    EXPECT(steps == 0 && residual[0] == 0 && residual[WHOLE - 1] == 0);
    memset(sent, 0, sizeof sent);
    memset(given, 0, sizeof given);
    for (int step = 0; step < 6; ++step) {
      for (int r = 0; r < size; ++r) {
        make_gradient(again, r, step);
        for (int i = 0; i < WHOLE; ++i) given[i] += again[i] / (double)size;
      }
      make_gradient(gradient, rank, step);
      OK(lockstep_average(averager, arrays));
      for (int i = 0; i < WHOLE; ++i) sent[i] += gradient[i];
    }
    OK(lockstep_averager_save(averager, residuals, &steps));
    EXPECT(steps == 6);
    OK(lockstep_averager_load(other, residuals, steps));
    make_gradient(gradient, rank, 6);
    make_gradient(again, rank, 6);
    OK(lockstep_average(averager, arrays));
    OK(lockstep_average(other, copies));
    EXPECT(memcmp(gradient, again, sizeof again) == 0);
    OK(lockstep_all_reduce(world, residual, WHOLE, LOCKSTEP_FLOAT32, LOCKSTEP_AVG, NULL));
    double largest_error = 0, kept = 0;
    for (int i = 0; i < WHOLE; ++i) {
      kept += fabs((double)residual[i]);
      largest_error = fmax(largest_error, fabs(sent[i] + residual[i] - given[i]));
    }
    /* int8 rounds the mean, too, and feeds that back on no rank. */
    EXPECT(largest_error <= (strcmp(strategies[s], "int8") == 0 ? 6 * 0.5 / 127 : 1e-5));
    EXPECT(kept > 0);

    /* NaN is refused on all ranks, and the next average is one. */
    make_gradient(gradient, rank, 7);
    if (rank == size - 1) gradient[FIRST + 1] = NAN;
    REFUSED(lockstep_average(averager, arrays));
    SAYS("the gradient of array 1 on rank");
    make_gradient(gradient, rank, 7);
    OK(lockstep_average(averager, arrays));
    for (int i = 0; i < WHOLE; ++i) EXPECT(isfinite(gradient[i]));
    lockstep_averager_free(averager);
    lockstep_averager_free(other);
  }
}

static void bad_arguments(lockstep_group* world) {
  float value = 0;
  lockstep_group* other = world;
  lockstep_work* work = (lockstep_work*)&value;
  lockstep_averager* averager = (lockstep_averager*)&value;
  void* memory = &value;
  const size_t one = 1;
  REFUSED(lockstep_all_reduce(NULL, &value, 1, LOCKSTEP_FLOAT32, LOCKSTEP_SUM, NULL));
  SAYS("lockstep_all_reduce: got NULL as group");
  REFUSED(lockstep_all_reduce(world, &value, 1, 99, LOCKSTEP_SUM, NULL));
  SAYS("got the dtype 99");
  REFUSED(lockstep_all_reduce(world, &value, 1, LOCKSTEP_FLOAT32, -1, NULL));
  REFUSED(lockstep_all_reduce(world, &value, 1, LOCKSTEP_FLOAT32, LOCKSTEP_BAND, NULL));
  REFUSED(lockstep_all_reduce(world, &value, 1, LOCKSTEP_BOOL, LOCKSTEP_AVG, NULL));
  REFUSED(lockstep_reduce(world, &value, 1, LOCKSTEP_FLOAT32, LOCKSTEP_SUM, -1, NULL));
  REFUSED(lockstep_gather_counts(world, &value, &value, NULL, LOCKSTEP_FLOAT32, 0, NULL));
  REFUSED(lockstep_all_to_all_counts(world, &value, &value, &one, NULL, LOCKSTEP_FLOAT32, NULL));
  SAYS("output_counts");
  REFUSED(lockstep_all_reduce(world, NULL, 1, LOCKSTEP_FLOAT32, LOCKSTEP_SUM, NULL));
  REFUSED(lockstep_broadcast(world, &value, 1, LOCKSTEP_FLOAT32, 99, &work));
  REFUSED(lockstep_all_gather(world, &value, &value, NULL, LOCKSTEP_FLOAT32, NULL));
  REFUSED(lockstep_send(world, &value, 1, LOCKSTEP_FLOAT32, lockstep_rank(world) + 100, 0, NULL));
  REFUSED(lockstep_init(NULL, 0, &other));
  EXPECT(strstr(lockstep_error_text(), "a second time") != NULL && other == NULL);
  EXPECT(work == NULL);
  EXPECT(strcmp(lockstep_error_operation(), "init") == 0);
  other = world;
  REFUSED(lockstep_split(NULL, 0, 0, &other));
  REFUSED(lockstep_allocate(NULL, 1, &memory));
  REFUSED(lockstep_averager_create(world, NULL, 1, LOCKSTEP_FLOAT32, NULL, &averager));
  EXPECT(other == NULL && memory == NULL && averager == NULL);
  averager = (lockstep_averager*)&value;
  REFUSED(lockstep_averager_create(NULL, &one, 1, LOCKSTEP_FLOAT32, NULL, &averager));
  EXPECT(averager == NULL);
  EXPECT(lockstep_rank(NULL) == -1 && lockstep_size(NULL) == -1 && lockstep_host_of(NULL, 0) == -1);
  EXPECT(strcmp(lockstep_backend(NULL), "") == 0);
  REFUSED(lockstep_averager_create(world, &one, 1, LOCKSTEP_FLOAT64, "fp16", &averager));
  SAYS("got float64 elements of array 0");
  REFUSED(
      lockstep_averager_create(world, &one, 1, LOCKSTEP_FLOAT32, "power_sgd:rank=2", &averager));
  SAYS("expected one of: fp32, fp16, bf16, topk, threshold, int8; the other strategies");
  REFUSED(lockstep_averager_create(world, &one, 1, LOCKSTEP_FLOAT32, "topk:2", &averager));
  SAYS("topk: got a ratio of 2");
  REFUSED(lockstep_averager_create(world, &one, 1, LOCKSTEP_FLOAT32, "", &averager));
  REFUSED(lockstep_averager_create(world, &one, 1, LOCKSTEP_INT32, NULL, &averager));
  EXPECT(averager == NULL && lockstep_error_rank() == -1);
  REFUSED(lockstep_average(NULL, NULL));
  REFUSED(lockstep_averager_load(NULL, NULL, 0));
  OK(lockstep_averager_create(world, &one, 1, LOCKSTEP_FLOAT32, NULL, &averager));
  REFUSED(lockstep_averager_save(averager, NULL, NULL));
  lockstep_averager_free(averager);
  averager = NULL;
  EXPECT(lockstep_dtype_size(99) == 0 && lockstep_dtype_size(LOCKSTEP_BFLOAT16) == 2);
  OK(lockstep_barrier(world, NULL)); /* the group stays usable */
}

static void decisions(lockstep_group* world) {
  const int last = lockstep_size(world) - 1;
  OK(lockstep_all_or_none(world, NULL));
  EXPECT(lockstep_all_or_none(world, lockstep_rank(world) == last ? "disk full" : NULL) ==
         LOCKSTEP_ERROR);
  SAYS(": disk full");
  EXPECT(lockstep_error_rank() == last);
  OK(lockstep_all_or_none(world, NULL));
}

/* Rank 1 does not come; the others report the cause and exit with 0. */
static void failure(lockstep_group* world, const char* how) {
  if (lockstep_rank(world) == 1) {
    if (strcmp(how, "fail") == 0) lockstep_fail(world, "the mesh is empty");
    exit(0);
  }
  const lockstep_status status = lockstep_barrier(world, NULL);
  EXPECT(status == LOCKSTEP_COMMUNICATION_ERROR);
  printf("rank %d: %s\n", (int)lockstep_error_rank(), lockstep_error_text());
}

/* The last rank ends by SIGKILL, or by an error of its own. Every rank calls lockstep_fail(), also
 * with the error that the last rank caused. */
static void all_call_fail(lockstep_group* world, const char* how) {
  char text[4096] = "the mesh is empty";
  if (lockstep_rank(world) == lockstep_size(world) - 1) {
    if (strcmp(how, "killed") == 0) (void)raise(SIGKILL);
  } else {
    while (lockstep_barrier(world, NULL) == LOCKSTEP_OK) continue;
    (void)snprintf(text, sizeof text, "lockstep_barrier: %s", lockstep_error_text());
  }
  fprintf(stderr, "%s\n", text);
  lockstep_fail(world, text);
  exit(lockstep_rank(world) + 1);
}

int main(int argc, char** argv) {
  lockstep_group* world = NULL;
  lockstep_group* none = NULL;
  if (argc != 2) return 2;
  EXPECT(lockstep_c_version() == LOCKSTEP_C_VERSION && strlen(lockstep_version()) >= 5);
  REFUSED(lockstep_init("nosuch", 0, &none));
  REFUSED(lockstep_init(NULL, -1, &none));
  REFUSED(lockstep_init(NULL, 0, NULL));
  OK(lockstep_init(NULL, 20, &world));
  if (world == NULL) return 1;
  if (strcmp(argv[1], "all") == 0) {
    collectives(world);
    averages(world);
    different_averagers(world);
    error_feedback(world);
    bad_arguments(world);
    decisions(world);
  } else if (strcmp(argv[1], "killed") == 0 || strcmp(argv[1], "erred") == 0) {
    all_call_fail(world, argv[1]);
  } else {
    failure(world, argv[1]);
  }
  lockstep_group_free(world);
  lockstep_group_free(NULL);
  return wrong;
}
