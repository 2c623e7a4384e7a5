/* The C interface of Lockstep: worlds of ranks and collectives between arrays in memory, for C and
   for every language that calls C. It needs no LibTorch. docs/guides/c.md has examples in C,
   Fortran and Python.

   Functions that can fail return a lockstep_status. After any other than LOCKSTEP_OK, the
   lockstep_error_... functions describe the error of the calling thread, and handles that the
   function returns by pointer are NULL. One thread at a time may use the groups of a rank. Every
   rank of a group calls the same collectives in the same order. */
#ifndef LOCKSTEP_C_H
#define LOCKSTEP_C_H

#include <stddef.h>
#include <stdint.h>

/* The version of this interface. Functions are added; none is changed or removed while the number
 * stays. */
#define LOCKSTEP_C_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t lockstep_status;
enum {
  LOCKSTEP_OK = 0,
  LOCKSTEP_ERROR = 1,            /* another error than those below */
  LOCKSTEP_INVALID_ARGUMENT = 2, /* nothing was sent; the group stays usable */
  LOCKSTEP_COMMUNICATION_ERROR =
      3,                /* the world has failed; all later calls fail with the same cause */
  LOCKSTEP_TIMEOUT = 4, /* the same; a rank did not take part in an operation in time */
  LOCKSTEP_BACKEND_UNAVAILABLE =
      5 /* the backend is not part of this build, or does not work here */
};

typedef int32_t lockstep_dtype;
enum {
  LOCKSTEP_FLOAT32 = 0,
  LOCKSTEP_FLOAT64 = 1,
  LOCKSTEP_FLOAT16 = 2,  /* IEEE binary16 */
  LOCKSTEP_BFLOAT16 = 3, /* the upper 16 bits of a float32 */
  LOCKSTEP_INT8 = 4,
  LOCKSTEP_UINT8 = 5,
  LOCKSTEP_INT32 = 6,
  LOCKSTEP_INT64 = 7,
  LOCKSTEP_INT16 = 8,
  LOCKSTEP_BOOL = 9 /* one byte, 0 or 1 */
};

typedef int32_t lockstep_op;
enum {
  LOCKSTEP_SUM = 0,
  /* The sum divided by the number of ranks. Integers are rounded toward zero; their sums and
     products are modulo 2^bits, so the AVG of three int8 of 100 is 14. */
  LOCKSTEP_AVG = 1,
  LOCKSTEP_MIN = 2, /* NaN if an input is NaN, as is MAX */
  LOCKSTEP_MAX = 3,
  LOCKSTEP_PRODUCT = 4,
  LOCKSTEP_BAND = 5, /* bitwise and; this and the next two are of integers and LOCKSTEP_BOOL */
  LOCKSTEP_BOR = 6,
  LOCKSTEP_BXOR = 7
};
/* Of LOCKSTEP_BOOL, SUM and MAX are the logical or, PRODUCT and MIN the logical and; it has no AVG.
 */

typedef struct lockstep_group lockstep_group;
typedef struct lockstep_work lockstep_work;
typedef struct lockstep_averager lockstep_averager;

/* LOCKSTEP_C_VERSION of the library. */
int32_t lockstep_c_version(void);
/* The version of the library, such as "0.2.0". */
const char* lockstep_version(void);
/* Bytes of one element; 0 for an unknown dtype. */
size_t lockstep_dtype_size(lockstep_dtype dtype);

/* The error of the calling thread's last function that failed. Texts are valid until its next call
 * that fails. */
const char* lockstep_error_text(
    void); /* what happened, where, and what to do; "" before the first error */
const char* lockstep_error_operation(void); /* "all_reduce #17"; "" if no operation raised it */
const char* lockstep_error_cause(void); /* the first failure of the world; "" if this error is it */
int32_t lockstep_error_rank(void); /* the world rank at fault; -1 if none is, or it is not known */

/* Joins the world that this process belongs to: of `lockstep run`, mpirun, srun or torchrun. A
   process that was started alone is a world of one rank. Returns when all ranks have called it.
   backend: "auto", "host", "mpi", "hierarchical" or "tcp"; NULL for LOCKSTEP_BACKEND, else auto.
   timeout_seconds: longest wait for other ranks; 0 for LOCKSTEP_TIMEOUT, else 600.
   Ranks: all, once in each process. */
lockstep_status lockstep_init(const char* backend, double timeout_seconds, lockstep_group** world);

/* Sets *part to the new group of the ranks that pass the same color, ordered by key and rank; to
   NULL for a negative color. Ranks: all of the group. */
lockstep_status lockstep_split(lockstep_group* group, int32_t color, int32_t key,
                               lockstep_group** part);

/* Frees the group. A rank leaves its world when it has freed the last group and averager of it.
   NULL is allowed. */
void lockstep_group_free(lockstep_group* group);

/* This rank of the group, and the number of ranks; -1 for NULL. */
int32_t lockstep_rank(const lockstep_group* group);
int32_t lockstep_size(const lockstep_group* group);
/* "host", "mpi", "hierarchical", "tcp" or "ucx"; "" for NULL. */
const char* lockstep_backend(const lockstep_group* group);
/* The index of the host of a rank; -1 for an unknown rank, and for NULL. */
int32_t lockstep_host_of(const lockstep_group* group, int32_t rank);

/* Ends the world for all ranks with this rank's error. Call it when the program fails, also by the
 * failure of the world: the first failure stays the cause. */
void lockstep_fail(lockstep_group* group, const char* error);

/* Returns LOCKSTEP_OK on all ranks if every rank passes NULL, else LOCKSTEP_ERROR on all ranks with
   the error of the first rank that passes one. The world goes on. For a decision that all ranks
   share, as whether a checkpoint was written. Ranks: all of the group. */
lockstep_status lockstep_all_or_none(lockstep_group* group, const char* error);

/* The collectives. Counts are in elements. Arrays without elements may be NULL.
   work: NULL to return when the operation is complete. Else *work is set to an operation that goes
   on: leave the arrays alone until lockstep_wait() has returned. Ranks: all of the group;
   lockstep_send(), lockstep_recv() and lockstep_recv_any(): the two ranks. */

/* data[i] = the reduction over ranks of data[i]. count: the same on all ranks. */
lockstep_status lockstep_all_reduce(lockstep_group* group, void* data, size_t count,
                                    lockstep_dtype dtype, lockstep_op op, lockstep_work** work);
/* root's data[i] = the reduction over ranks of data[i]; other ranks' data stay as they are. count:
 * the same on all ranks. */
lockstep_status lockstep_reduce(lockstep_group* group, void* data, size_t count,
                                lockstep_dtype dtype, lockstep_op op, int32_t root,
                                lockstep_work** work);
/* data = root's data. */
lockstep_status lockstep_broadcast(lockstep_group* group, void* data, size_t count,
                                   lockstep_dtype dtype, int32_t root, lockstep_work** work);
/* output = the inputs in rank order. input: counts[rank] elements; output: the sum of counts, an
   array of size elements that is the same on all ranks. */
lockstep_status lockstep_all_gather(lockstep_group* group, const void* input, void* output,
                                    const size_t* counts, lockstep_dtype dtype,
                                    lockstep_work** work);
/* output = this rank's part of the reduction of input over ranks. input: the sum of counts; output:
 * counts[rank] elements. */
lockstep_status lockstep_reduce_scatter(lockstep_group* group, const void* input, void* output,
                                        const size_t* counts, lockstep_dtype dtype, lockstep_op op,
                                        lockstep_work** work);
/* root's output = the inputs in rank order. input: count elements; output: size * count elements on
 * root, unused elsewhere. */
lockstep_status lockstep_gather(lockstep_group* group, const void* input, void* output,
                                size_t count, lockstep_dtype dtype, int32_t root,
                                lockstep_work** work);
/* The same with parts of different lengths. input: counts[rank] elements; output: the sum of counts
 * on root, unused elsewhere. counts: as of lockstep_all_gather(). */
lockstep_status lockstep_gather_counts(lockstep_group* group, const void* input, void* output,
                                       const size_t* counts, lockstep_dtype dtype, int32_t root,
                                       lockstep_work** work);
/* output = this rank's part of root's input. input: size * count elements on root, unused
 * elsewhere; output: count elements. */
lockstep_status lockstep_scatter(lockstep_group* group, const void* input, void* output,
                                 size_t count, lockstep_dtype dtype, int32_t root,
                                 lockstep_work** work);
/* The same with parts of different lengths. input: the sum of counts on root, unused elsewhere;
 * output: counts[rank] elements. counts: as of lockstep_all_gather(). */
lockstep_status lockstep_scatter_counts(lockstep_group* group, const void* input, void* output,
                                        const size_t* counts, lockstep_dtype dtype, int32_t root,
                                        lockstep_work** work);
/* Part r of output = the part of rank r's input for this rank. Both: size * count elements, not the
 * same memory. */
lockstep_status lockstep_all_to_all(lockstep_group* group, const void* input, void* output,
                                    size_t count, lockstep_dtype dtype, lockstep_work** work);
/* The same with parts of different lengths: input_counts[r] elements for rank r, output_counts[r]
 * elements from rank r. If two ranks disagree about a part, both fail, and the world with them. */
lockstep_status lockstep_all_to_all_counts(lockstep_group* group, const void* input, void* output,
                                           const size_t* input_counts, const size_t* output_counts,
                                           lockstep_dtype dtype, lockstep_work** work);
/* Both sides pass the same count, dtype and tag. A message completes the first receive of its
 * source and tag. Messages of the same two ranks and tag do not overtake one another. A send of any
 * size may wait until the receiver is in a call of Lockstep. */
lockstep_status lockstep_send(lockstep_group* group, const void* input, size_t count,
                              lockstep_dtype dtype, int32_t to, uint32_t tag, lockstep_work** work);
lockstep_status lockstep_recv(lockstep_group* group, void* output, size_t count,
                              lockstep_dtype dtype, int32_t from, uint32_t tag,
                              lockstep_work** work);
/* The same from any rank. *from is the rank of the message when the operation is complete: on
 * return, or after lockstep_wait(). */
lockstep_status lockstep_recv_any(lockstep_group* group, void* output, size_t count,
                                  lockstep_dtype dtype, int32_t* from, uint32_t tag,
                                  lockstep_work** work);
lockstep_status lockstep_barrier(lockstep_group* group, lockstep_work** work);

/* Waits until the operation is complete, frees it and sets *work to NULL, also after an error. Only
 * LOCKSTEP_INVALID_ARGUMENT leaves *work as it was: another thread uses the group. *work may be
 * NULL. */
lockstep_status lockstep_wait(lockstep_work** work);
/* Sets *complete to 1 if lockstep_wait() would return at once, else to 0. Does not wait. */
lockstep_status lockstep_test(lockstep_work* work, int32_t* complete);

/* Memory that the collectives of the group exchange without a copy, 64-byte aligned. If there is
 * not enough, returns LOCKSTEP_COMMUNICATION_ERROR, and the world goes on. */
lockstep_status lockstep_allocate(lockstep_group* group, size_t bytes, void** memory);
/* Frees memory of lockstep_allocate(). NULL is allowed. */
void lockstep_free(void* memory);

/* Averages lists of arrays over ranks, as the gradients of a model, in buckets of at most 25 MiB.
   counts: elements of each of the n arrays.
   dtype: LOCKSTEP_FLOAT32 or LOCKSTEP_FLOAT64.
   strategy: the text of a strategy, such as "topk:0.01,feedback=off"; NULL for "fp32".
     "fp32" sends the elements as they are. "fp16" and "bf16" send half the bytes, and the averages
     are rounded to that. "int8" sends codes of 8 bits. "topk" and "threshold" send the largest
     elements of a bucket, and keep the others for later steps. int8, fp16 and bf16 average float32
     arrays only. docs/strategies.md has options, formulas and sources.
   The first average compares counts, dtype and strategy of all ranks. If they differ, every rank
   returns LOCKSTEP_INVALID_ARGUMENT.
   On several hosts, every rank takes part in the exchange between hosts. */
lockstep_status lockstep_averager_create(lockstep_group* group, const size_t* counts, size_t n,
                                         lockstep_dtype dtype, const char* strategy,
                                         lockstep_averager** averager);
/* arrays[i][j] = the average over ranks of arrays[i][j]. The same bits on all ranks.
   int8, topk and threshold refuse NaN and Inf: every rank returns the same
   LOCKSTEP_INVALID_ARGUMENT, and the arrays are as before. Error feedback may send their finite
   elements in later calls: do not average these arrays again. Ranks: all of the group. */
lockstep_status lockstep_average(lockstep_averager* averager, void* const* arrays);
/* Copies what this rank's error feedback has not sent yet, for a checkpoint; zeros for a strategy
   without error feedback. Each rank has its own.
   residuals: arrays of counts and dtype. *steps: the number of averages so far. */
lockstep_status lockstep_averager_save(const lockstep_averager* averager, void* const* residuals,
                                       int64_t* steps);
/* Continues as the averager that lockstep_averager_save() has copied. */
lockstep_status lockstep_averager_load(lockstep_averager* averager, void* const* residuals,
                                       int64_t steps);
/* Frees it. NULL is allowed. */
void lockstep_averager_free(lockstep_averager* averager);

#ifdef __cplusplus
}
#endif

#endif
