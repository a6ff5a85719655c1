/* SPDX-License-Identifier: Apache-2.0
 *
 * Ethernot: shared memory over Ethernet. Processes, on one host or several, share a region of memory by ordinary loads
 * and stores. Each process is a rank of the program, and the region has the same address in all ranks.
 *
 * Memory. The memory is release consistent. A rank sees what another rank wrote before it released a lock or entered a
 * barrier, if the rank itself has acquired the lock or left the barrier after that. A program without data races sees
 * one memory. The grain is a word of four bytes: two ranks that write different bytes of one word, without an order
 * between them, have a race. A system call does not fetch memory: read(2) and write(2) of memory of the region that is
 * not present fail with EFAULT. Pin the memory first, or copy the bytes to memory of the process.
 *
 * Results. Every call returns a result, except those that return a number or a text. A call writes its outputs only if
 * the result is ETHERNOT_DSM_RESULT_OK. If the pointer for an output is NULL, the call returns
 * ETHERNOT_DSM_RESULT_INVALID, unless its description allows NULL. Outputs may be in the region.
 *
 * Failures. If a rank fails, each other rank prints its rank, process and host, and ends with status 70. The option
 * on_failure replaces this.
 *
 * Threads. Any thread of a rank may make any call. The option threads limits how many threads of a rank use the memory.
 * Each thread has its own last error.
 *
 * Locks and other objects are named by addresses. An object needs no initialization, and the library neither reads nor
 * writes the memory at its address.
 *
 * A process joins once, and must not fork afterwards. A handler of signals must make no call. */


#ifndef ETHERNOT_DSM_H
#define ETHERNOT_DSM_H

/* Made by cbindgen of the crate ethernot-dsm-c. */

#include <stddef.h>
#include <stdint.h>

/*
 The allocation begins at a page and shares no page with others, whatever its size.
 */
#define ETHERNOT_DSM_OWN_PAGES 1

/*
 The pages of the allocation belong to the ranks in turn. Accesses of a rank to its pages cost
 nothing. All ranks wait for each other in such an allocation.
 */
#define ETHERNOT_DSM_INTERLEAVED 2

/*
 The allocation is split into equal blocks, one for each rank. As with `ETHERNOT_DSM_INTERLEAVED`,
 all ranks wait for each other.
 */
#define ETHERNOT_DSM_BLOCKS 4

/*
 The version of this header, as `major * 1000000 + minor * 1000 + patch`.
 */
#define ETHERNOT_DSM_VERSION 1000

/*
 The result of a call. For each result except `ETHERNOT_DSM_RESULT_OK`,
 `ethernot_dsm_last_error` returns a text.
 */
enum ethernot_dsm_result
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   Success.
   */
  ETHERNOT_DSM_RESULT_OK = 0,
  /*
   The request is impossible, a pointer is null, or a variable of the environment has no
   meaning. Remedy: change the request.
   */
  ETHERNOT_DSM_RESULT_INVALID = 1,
  /*
   The process has not joined, or has left. Remedy: call `ethernot_dsm_init` first.
   */
  ETHERNOT_DSM_RESULT_NOT_JOINED = 2,
  /*
   The process has joined before. A process can join once.
   */
  ETHERNOT_DSM_RESULT_ALREADY_JOINED = 3,
  /*
   The region has no room. Remedy: raise `region_bytes` on all ranks.
   */
  ETHERNOT_DSM_RESULT_NO_ROOM = 4,
  /*
   The object is not in a state that permits the call: for example, this thread does not hold
   the lock that it releases. The call has had no effect.
   */
  ETHERNOT_DSM_RESULT_MISUSE = 5,
  /*
   A rank did not come in time. The text names it.
   */
  ETHERNOT_DSM_RESULT_MISSING = 6,
  /*
   A rank refused this rank, because their settings differ. The text names the setting.
   */
  ETHERNOT_DSM_RESULT_REFUSED = 7,
  /*
   The network does not work. The text names the step.
   */
  ETHERNOT_DSM_RESULT_NETWORK = 8,
  /*
   The operating system rejected a request. The text names the request.
   */
  ETHERNOT_DSM_RESULT_SYSTEM = 9,
  /*
   A rank has failed. The text names its rank, process and host. All later calls return this.
   */
  ETHERNOT_DSM_RESULT_FAILED = 10,
  /*
   The library has a bug. The rank may be in any state.
   */
  ETHERNOT_DSM_RESULT_FAULT = 11,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ethernot_dsm_result ethernot_dsm_result;
#else
typedef int32_t ethernot_dsm_result;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 How writes to the memory are found.
 */
enum ethernot_dsm_method
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   What the environment variable `ETHERNOT_DSM_METHOD` names, or else the first of the others
   that works on this host.
   */
  ETHERNOT_DSM_METHOD_DEFAULT = 0,
  /*
   userfaultfd with asynchronous write protection (Linux 6.7 and later).
   */
  ETHERNOT_DSM_METHOD_ASYNCHRONOUS = 1,
  /*
   userfaultfd with synchronous write protection (Linux 5.19 and later).
   */
  ETHERNOT_DSM_METHOD_SYNCHRONOUS = 2,
  /*
   `mprotect`.
   */
  ETHERNOT_DSM_METHOD_MPROTECT = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ethernot_dsm_method ethernot_dsm_method;
#else
typedef uint32_t ethernot_dsm_method;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Handles the failure of a rank. `place` is the process and host of the rank. Both strings are
 valid during the call.
 */
typedef void (*ethernot_dsm_on_failure)(uint32_t rank, const char *place, const char *reason, void *context);

/*
 Options of `ethernot_dsm_init`. Fields that are zero have defaults.
 */
typedef struct ethernot_dsm_options {
  /*
   Size of this structure in bytes; 0 means the size in the first version of the library.
   */
  size_t size;
  /*
   Size of the region in bytes, up to 64 GiB; the default is 256 MiB. Only pages that are
   touched use memory. Must be equal on all ranks.
   */
  uint64_t region_bytes;
  /*
   Address at which rank 0 waits for the others, such as "10.0.0.1:7000". The default is the
   environment variable `ETHERNOT_DSM_MEET`.
   */
  const char *meet;
  /*
   Called on a thread of the library if a rank fails; after that, all calls return
   `ETHERNOT_DSM_RESULT_FAILED`, and an access to a page that is not present ends the process.
   If this is NULL, the process prints the failure and ends with status 70.
   */
  ethernot_dsm_on_failure on_failure;
  /*
   Last argument of `on_failure`.
   */
  void *context;
  /*
   Limit of the wait for the other ranks in milliseconds; the default is 30 seconds.
   */
  uint64_t limit_ms;
  /*
   Bytes of each rank for `ethernot_dsm_alloc_local`; the default is none. Must be equal on all
   ranks.
   */
  uint64_t local_bytes;
  /*
   If other threads wait for a thread that has made no call for this long, in milliseconds, its
   rank says so on standard error. The default is 10 seconds; `UINT64_MAX` switches it off.
   */
  uint64_t watchdog_ms;
  /*
   Number of ranks. If this is 0, rank and number come from the environment: from
   `ETHERNOT_DSM_RANK` and `ETHERNOT_DSM_SIZE`, or from the variables of PMI, Open MPI or Slurm.
   */
  uint32_t ranks;
  /*
   Rank of this process, from 0. Used only if `ranks` is not 0.
   */
  uint32_t rank;
  /*
   Number of threads of this process that use the memory; the default is the environment
   variable `ETHERNOT_DSM_THREADS`, or 1. Each of them must enter each barrier. Must be equal on
   all ranks.
   */
  uint32_t threads;
  /*
   How writes are found, an `ethernot_dsm_method`.
   */
  uint32_t method;
  /*
   If this is not 0, races are reported on standard error. Must be equal on all ranks. Needs a
   method other than `ETHERNOT_DSM_METHOD_ASYNCHRONOUS`.
   */
  uint32_t detect_races;
  /*
   If this is not 0, `ethernot_dsm_init` returns on rank 0 only. The other ranks run functions
   that rank 0 starts by `ethernot_dsm_create`, and end when rank 0 calls
   `ethernot_dsm_finalize`. Only rank 0 allocates then. Must be equal on all ranks.
   */
  uint32_t creates;
} ethernot_dsm_options;

/*
 What the library has done on this rank. Counts since the process has joined.
 */
typedef struct ethernot_dsm_counters {
  /*
   Size of this structure in bytes. The program sets it; the library writes only that many
   bytes. 0 means the size in the first version of the library.
   */
  size_t size;
  /*
   Faults of reads and writes.
   */
  uint64_t faults;
  /*
   Pages that were read from other ranks.
   */
  uint64_t fetches;
  /*
   Of these, pages that no thread waited for.
   */
  uint64_t prefetches;
  /*
   Changes of pages that were sent to other ranks.
   */
  uint64_t patches;
  /*
   Pages that became invalid because another rank wrote them.
   */
  uint64_t invalidations;
  /*
   Locks that were passed to other ranks.
   */
  uint64_t handovers;
} ethernot_dsm_counters;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the value of an atomic, a word of 8 bytes of the region at a multiple of 8. Atomics order
 no other accesses. Do not access the word by loads and stores while ranks use it as an atomic.
 */
ethernot_dsm_result ethernot_dsm_atomic_load(const uint64_t *atomic, uint64_t *value);

/*
 Replaces the value of an atomic.
 */
ethernot_dsm_result ethernot_dsm_atomic_store(uint64_t *atomic, uint64_t value);

/*
 Adds to an atomic, wrapping around. Returns the former value; `former` may be NULL.
 */
ethernot_dsm_result ethernot_dsm_atomic_add(uint64_t *atomic, uint64_t operand, uint64_t *former);

/*
 Replaces the value of an atomic by `desired` if it is `expected`. Returns the former value, which
 is `expected` if the value was replaced; `former` may be NULL.
 */
ethernot_dsm_result ethernot_dsm_atomic_compare_swap(uint64_t *atomic,
                                                     uint64_t expected,
                                                     uint64_t desired,
                                                     uint64_t *former);

/*
 Replaces the value of an atomic. Returns the former value; `former` may be NULL.
 */
ethernot_dsm_result ethernot_dsm_atomic_swap(uint64_t *atomic, uint64_t value, uint64_t *former);

/*
 Runs a function on a rank that runs none. With the option `creates`, only rank 0 returns from
 `ethernot_dsm_init`, and all others run the functions of this call. The function finds the global
 variables of the program as they are on rank 0 now. From then on they are its own. What they
 point to must be in the region, or a global variable, or a function. `stdout` and other variables
 of libraries are not copied. Returns as soon as the function begins.

 All ranks must run the same file with its functions at the same addresses. If a program contains
 a call of this function, the library starts it again before `main`, without address
 randomization.
 */
ethernot_dsm_result ethernot_dsm_create(void (*function)(void));

/*
 Waits until all functions that `ethernot_dsm_create` has started have returned. Then rank 0 sees
 what they wrote, and can start others.
 */
ethernot_dsm_result ethernot_dsm_wait_created(void);

/*
 Returns the error text of the last failed call of this thread. Returns an empty string if no
 call has failed. The text is valid until the next call of this thread. The program must not free
 it.
 */
const char *ethernot_dsm_last_error(void);

/*
 Returns the name of a result, such as "not joined". Returns "unknown" for a number that is not a
 result.
 */
const char *ethernot_dsm_result_name(int32_t result);

/*
 Joins the other ranks; returns when all are there. `options` may be NULL. Without options and
 without variables of the environment, the process is the only rank.
 */
ethernot_dsm_result ethernot_dsm_init(const struct ethernot_dsm_options *options);

/*
 Returns the rank of this process, from 0, or -1 if the process has not joined.
 */
int32_t ethernot_dsm_rank(void);

/*
 Returns the number of ranks, or -1 if the process has not joined.
 */
int32_t ethernot_dsm_size(void);

/*
 Returns the method that finds writes, an `ethernot_dsm_method`, or -1 if the process has not
 joined.
 */
int32_t ethernot_dsm_method_in_use(void);

/*
 Waits until all ranks have come here, and leaves. No thread of the process may use the memory
 afterwards. If another thread is inside of a call, returns `ETHERNOT_DSM_RESULT_MISUSE`.

 A rank that ends without this call has failed for the other ranks.
 */
ethernot_dsm_result ethernot_dsm_finalize(void);

/*
 Returns what the library has done on this rank. The program sets the field `size` first.
 */
ethernot_dsm_result ethernot_dsm_read_counters(struct ethernot_dsm_counters *counters);

/*
 Allocates memory of the region, which is zero. All ranks must make the same allocations in the
 same order; each then gets the same address. Allocations of 1 KiB and more begin at a page.
 `alignment` is a power of two up to 1 GiB, or 0. Without a flag, each page belongs to the rank that first
 writes it. There is no call that frees memory: the region returns to the system when the process
 ends.
 */
ethernot_dsm_result ethernot_dsm_alloc(size_t bytes, uint32_t flags, size_t alignment, void **memory);

/*
 Allocates memory on this rank alone, from the memory of the option `local_bytes`. Other ranks can
 use it as soon as they learn the address.
 */
ethernot_dsm_result ethernot_dsm_alloc_local(size_t bytes, void **memory);

/*
 Returns the address and the length in bytes of the region. Each pointer may be NULL.
 */
ethernot_dsm_result ethernot_dsm_region(void **start, uint64_t *bytes);

/*
 Begins to fetch the pages of `bytes` bytes from `start` on, so that later accesses need not wait.
 Does not wait for them. Has no effect on what the program reads.
 */
ethernot_dsm_result ethernot_dsm_prefetch(const void *start, size_t bytes);

/*
 Fetches the pages of `bytes` bytes from `start` on, and keeps them accessible until
 `ethernot_dsm_unpin`, so that system calls may use them: those that read the memory, and if
 `is_written` is not 0, those that write it.
 */
ethernot_dsm_result ethernot_dsm_pin(const void *start, size_t bytes, int32_t is_written);

/*
 Ends a pin of the same bytes, on any thread.
 */
ethernot_dsm_result ethernot_dsm_unpin(const void *start, size_t bytes);

/*
 Acquires the lock that an address names. Afterwards, the thread sees what others wrote before
 they released the lock. Not recursive: if this thread holds the lock already, returns
 `ETHERNOT_DSM_RESULT_MISUSE`.
 */
ethernot_dsm_result ethernot_dsm_lock(const void *lock);

/*
 Releases a lock. If this thread does not hold it, returns `ETHERNOT_DSM_RESULT_MISUSE`.
 */
ethernot_dsm_result ethernot_dsm_unlock(const void *lock);

/*
 Acquires a reader-writer lock together with other readers. Waits behind writers that came before.
 */
ethernot_dsm_result ethernot_dsm_read_lock(const void *lock);

/*
 Acquires a reader-writer lock alone.
 */
ethernot_dsm_result ethernot_dsm_write_lock(const void *lock);

/*
 Releases a reader-writer lock, which this thread has acquired in either way.
 */
ethernot_dsm_result ethernot_dsm_read_write_unlock(const void *lock);

/*
 Waits until all threads of all ranks are at the barrier. Afterwards, each sees what the others
 wrote before it.
 */
ethernot_dsm_result ethernot_dsm_barrier(void);

/*
 Waits until `count` threads are at the barrier that an address names.
 */
ethernot_dsm_result ethernot_dsm_barrier_at(const void *barrier, uint32_t count);

/*
 Releases a lock, waits for a signal of a condition variable, and acquires the lock again. No
 signal is lost between the first two steps. A signal without a waiter has no effect.
 */
ethernot_dsm_result ethernot_dsm_condition_wait(const void *condition, const void *lock);

/*
 Wakes one thread that waits at a condition variable. Does not wait for it.
 */
ethernot_dsm_result ethernot_dsm_condition_signal(const void *condition);

/*
 Wakes all threads that wait at a condition variable. Does not wait for them.
 */
ethernot_dsm_result ethernot_dsm_condition_broadcast(const void *condition);

/*
 Takes one from a semaphore, which begins at 0. Waits until there is one.
 */
ethernot_dsm_result ethernot_dsm_semaphore_take(const void *semaphore);

/*
 Adds to a semaphore. A thread that takes some of it then sees what this thread wrote before.
 */
ethernot_dsm_result ethernot_dsm_semaphore_give(const void *semaphore, uint32_t count);

/*
 Waits until an event is set. Does not clear it.
 */
ethernot_dsm_result ethernot_dsm_event_wait(const void *event);

/*
 Sets an event. A thread that waits for it then sees what this thread wrote before.
 */
ethernot_dsm_result ethernot_dsm_event_set(const void *event);

/*
 Clears an event.
 */
ethernot_dsm_result ethernot_dsm_event_clear(const void *event);

/*
 Sends all that this rank has written to where other ranks find it: they see it after
 `ethernot_dsm_acquire`. Programs that use locks and barriers do not need this.
 */
ethernot_dsm_result ethernot_dsm_release(void);

/*
 Lets this rank see all that other ranks have released.
 */
ethernot_dsm_result ethernot_dsm_acquire(void);

/*
 Returns the version of the library that the program uses at run time. The number has the same
 form as `ETHERNOT_DSM_VERSION`.
 */
uint32_t ethernot_dsm_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ETHERNOT_DSM_H */
