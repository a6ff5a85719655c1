/* SPDX-License-Identifier: Apache-2.0
 *
 * Ethernot: remote direct memory access over ordinary Ethernet, in user space.
 *
 * Handles. They are opaque; one that is NULL, of another kind or was freed is ETHERNOT_RESULT_BAD_HANDLE. The program
 * frees those that calls return. Objects live for as long as others need them, so the order of freeing does not matter.
 *
 * Results. Every call but ethernot_last_error, ethernot_result_name and ethernot_version returns one, and writes what else it returns only
 * when it is ETHERNOT_RESULT_OK. A place for that which is NULL is ETHERNOT_RESULT_INVALID, unless the call says that it may be.
 *
 * Threads. Every call may be made from any thread, at the same time as any other, with the same handles. Texts of errors
 * are kept for each thread.
 *
 * Memory. Peers write to it whenever they like, and operations read it until they are complete.
 *
 * Limits are in milliseconds; a negative one is none.
 *
 * Forked children make endpoints of their own: calls with handles of their parent are ETHERNOT_RESULT_FORKED. */


#ifndef ETHERNOT_H
#define ETHERNOT_H

/* Made by cbindgen of the crate ethernot-c. */

#include <stddef.h>
#include <stdint.h>

/*
 Reads and answers of peers may be placed in the memory (as may messages).
 */
#define ETHERNOT_LOCAL_WRITE 1

/*
 Peers may read it.
 */
#define ETHERNOT_REMOTE_READ 2

/*
 Peers may write it.
 */
#define ETHERNOT_REMOTE_WRITE 4

/*
 Peers may do atomics on it.
 */
#define ETHERNOT_REMOTE_ATOMIC 8

/*
 Bytes of the description of a region, in which it travels in private data and messages.
 */
#define ETHERNOT_REMOTE_BYTES 20

/*
 Performed only after all earlier operations of the connection.
 */
#define ETHERNOT_FENCE_BEFORE 1

/*
 All later operations are performed only after this one.
 */
#define ETHERNOT_FENCE_AFTER 2

/*
 In strict order, as on a reliable connection of verbs.
 */
#define ETHERNOT_STRICT 4

/*
 A completion is queued here when it succeeds.
 */
#define ETHERNOT_SIGNALLED 8

/*
 The peer is notified of a write.
 */
#define ETHERNOT_NOTIFY 16

/*
 `immediate` is sent to the peer.
 */
#define ETHERNOT_IMMEDIATE 32

/*
 It need not be sent before the next operation without this mark, the next poll or the next wait.
 */
#define ETHERNOT_MORE 64

/*
 The version of this header: major, minor and patch level, as `major * 1000000 + minor * 1000 + patch`.
 */
#define ETHERNOT_VERSION 1000

/*
 The result of a call. `ethernot_last_error` has the text of all but the first.
 */
enum ethernot_result
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   Done.
   */
  ETHERNOT_RESULT_OK = 0,
  /*
   What was asked for is impossible, a pointer is null or a string is not UTF-8: ask for something else.
   */
  ETHERNOT_RESULT_INVALID = 1,
  /*
   The handle is null, of another kind, or was freed.
   */
  ETHERNOT_RESULT_BAD_HANDLE = 2,
  /*
   The limit of a wait has passed, and what was waited for goes on: wait again.
   */
  ETHERNOT_RESULT_TIMED_OUT = 3,
  /*
   There is nothing, or no room, at the moment: poll, finish something, and try again.
   */
  ETHERNOT_RESULT_AGAIN = 4,
  /*
   The connection or the endpoint has ended: make another.
   */
  ETHERNOT_RESULT_CLOSED = 5,
  /*
   The peer is there and refused the connection: is the service right?
   */
  ETHERNOT_RESULT_REFUSED = 6,
  /*
   No route leads to the peer, or no process answers there: is it running?
   */
  ETHERNOT_RESULT_UNREACHABLE = 7,
  /*
   It is in use already: choose another.
   */
  ETHERNOT_RESULT_IN_USE = 8,
  /*
   An operation failed: the text says whether the peer refused it, went away, or had no room.
   */
  ETHERNOT_RESULT_FAILED = 9,
  /*
   The operating system refused something: the text says what.
   */
  ETHERNOT_RESULT_SYSTEM = 10,
  /*
   In a forked child, which makes endpoints of its own.
   */
  ETHERNOT_RESULT_FORKED = 11,
  /*
   A fault of the library. Nothing is certain of the endpoint any more.
   */
  ETHERNOT_RESULT_FAULT = 12,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ethernot_result ethernot_result;
#else
typedef int32_t ethernot_result;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 What finished.
 */
enum ethernot_completion_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   A write of this side.
   */
  ETHERNOT_COMPLETION_KIND_WRITE = 1,
  /*
   A read of this side.
   */
  ETHERNOT_COMPLETION_KIND_READ = 2,
  /*
   An atomic of this side.
   */
  ETHERNOT_COMPLETION_KIND_ATOMIC = 3,
  /*
   A message of this side: the peer has it.
   */
  ETHERNOT_COMPLETION_KIND_SEND = 4,
  /*
   A posted receive: a message is in it.
   */
  ETHERNOT_COMPLETION_KIND_RECEIVE = 5,
  /*
   The peer has written here, and said so.
   */
  ETHERNOT_COMPLETION_KIND_NOTIFICATION = 6,
  /*
   Something else.
   */
  ETHERNOT_COMPLETION_KIND_OTHER = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ethernot_completion_kind ethernot_completion_kind;
#else
typedef int32_t ethernot_completion_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 What `ethernot_wait_any` waits for.
 */
enum ethernot_awaited_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   A request for a connection; the handle is of a listener.
   */
  ETHERNOT_AWAITED_KIND_REQUEST = 1,
  /*
   A completion; the handle is of a connection.
   */
  ETHERNOT_AWAITED_KIND_COMPLETION = 2,
  /*
   The end of a connection; one that has ended stays so.
   */
  ETHERNOT_AWAITED_KIND_END = 3,
  /*
   The end of an operation.
   */
  ETHERNOT_AWAITED_KIND_OPERATION = 4,
  /*
   A message; the handle is of a receive.
   */
  ETHERNOT_AWAITED_KIND_MESSAGE = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ethernot_awaited_kind ethernot_awaited_kind;
#else
typedef int32_t ethernot_awaited_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 How threads of the library wait that serve peers while the program does something else.
 */
enum ethernot_waiting
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   They spin for as long as that costs less than the sleeps that it saves.
   */
  ETHERNOT_WAITING_ADAPTIVE = 0,
  /*
   They sleep at once.
   */
  ETHERNOT_WAITING_SLEEP = 1,
  /*
   They spin for `spin_us` of the options after the last work.
   */
  ETHERNOT_WAITING_SPIN_FOR = 2,
  /*
   They spin all the time.
   */
  ETHERNOT_WAITING_SPIN_ALWAYS = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ethernot_waiting ethernot_waiting;
#else
typedef int32_t ethernot_waiting;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 A connection that is not there yet.
 */
typedef struct ethernot_attempt ethernot_attempt;

/*
 A connection to a peer.
 */
typedef struct ethernot_connection ethernot_connection;

/*
 One side of remote memory access: links, memory and connections of a process.
 */
typedef struct ethernot_endpoint ethernot_endpoint;

/*
 Takes the requests of peers for connections to one service.
 */
typedef struct ethernot_listener ethernot_listener;

/*
 Memory of this process that is registered.
 */
typedef struct ethernot_memory ethernot_memory;

/*
 One pending operation.
 */
typedef struct ethernot_operation ethernot_operation;

/*
 A buffer that waits for one message.
 */
typedef struct ethernot_receive ethernot_receive;

/*
 A peer asks for a connection.
 */
typedef struct ethernot_request ethernot_request;

/*
 Options of a connection. All zero is the default.
 */
typedef struct ethernot_connect_options {
  /*
   `sizeof` of the structure as the program was compiled; 0 for that of the first version of the library.
   */
  size_t size;
  /*
   Bytes for the peer, sent with the request or its acceptance, at most 512 bytes.
   */
  const void *private_data;
  /*
   The length of `private_data` in bytes.
   */
  size_t private_data_length;
  /*
   How long to try, in milliseconds; 0 for 30 s, negative for as long as the peer's host says that its program has not
   decided. It ends earlier if that host is silent for 5 s.
   */
  int64_t timeout_ms;
  /*
   The service of the listener of the peer; for `ethernot_connect` only.
   */
  uint32_t service;
  /*
   Completions, notifications and receives that may wait to be polled; 0 for 256.
   */
  uint32_t completions;
} ethernot_connect_options;

/*
 Options of an endpoint. All zero is the default: UDP on every usable interface, on free ports.
 */
typedef struct ethernot_endpoint_options {
  /*
   `sizeof` of the structure as the program was compiled; 0 for that of the first version of the library.
   */
  size_t size;
  /*
   Links by name, such as "eth0,packet:eth1"; null for the default, or for what `address` says.
   */
  const char *links;
  /*
   The address of a UDP link, such as "127.0.0.1:0", beside those of `links`; null for none.
   */
  const char *address;
  /*
   The port of links that name none; 0 for any.
   */
  uint16_t port;
  /*
   Not 0: no thread of the library serves the endpoint, only calls do.
   */
  uint8_t without_progress_thread;
  /*
   Not 0: that thread keeps to `progress_processor`.
   */
  uint8_t is_pinned;
  /*
   One of `ethernot_waiting`.
   */
  int32_t waiting;
  /*
   How long they spin, in microseconds; for `ETHERNOT_WAITING_SPIN_FOR`.
   */
  uint32_t spin_us;
  /*
   The processor to which that thread keeps, counted from 0 as the kernel does.
   */
  uint32_t progress_processor;
} ethernot_endpoint_options;

/*
 A region of a peer: the key that opens it, the address of its first byte as the peer counts, and bytes.
 */
typedef struct ethernot_remote {
  /*
   Address of its first byte.
   */
  uint64_t address;
  /*
   The length of the region in bytes.
   */
  uint64_t length;
  /*
   The key that opens the region.
   */
  uint32_t key;
  /*
   Reserved, always 0.
   */
  uint32_t reserved;
} ethernot_remote;

/*
 Order and notification of an operation. All zero is the default: free order, only the handle reports its end.
 */
typedef struct ethernot_operation_options {
  /*
   `sizeof` of the structure as the program was compiled; 0 for that of the first version of the library.
   */
  size_t size;
  /*
   A number that the completion returns.
   */
  uint64_t context;
  /*
   `ETHERNOT_FENCE_BEFORE` and so on, added.
   */
  uint32_t flags;
  /*
   For `ETHERNOT_IMMEDIATE`.
   */
  uint32_t immediate;
} ethernot_operation_options;

/*
 The outcome of an operation or a receive, or a notification.
 */
typedef struct ethernot_completion {
  /*
   What the program gave when it posted; 0 for a notification.
   */
  uint64_t context;
  /*
   Atomics: what was there before. Notification: the address written to.
   */
  uint64_t value;
  /*
   What finished.
   */
  ethernot_completion_kind kind;
  /*
   How it ended: `ETHERNOT_RESULT_OK` or `ETHERNOT_RESULT_FAILED`.
   */
  ethernot_result result;
  /*
   The number of bytes that were moved.
   */
  uint32_t bytes;
  /*
   What came with a message or notification.
   */
  uint32_t immediate;
  /*
   Not 0: there is an immediate.
   */
  uint32_t has_immediate;
  /*
   Reserved, always 0.
   */
  uint32_t reserved;
} ethernot_completion;

/*
 A message that has come.
 */
typedef struct ethernot_message {
  /*
   The length of the message in bytes.
   */
  uint64_t length;
  /*
   What the peer sent along.
   */
  uint32_t immediate;
  /*
   Not 0: there is an immediate.
   */
  uint32_t has_immediate;
} ethernot_message;

/*
 Something that `ethernot_wait_any` waits for.
 */
typedef struct ethernot_awaited {
  /*
   A handle of the kind that `kind` says.
   */
  const void *handle;
  /*
   One of `ethernot_awaited_kind`.
   */
  int32_t kind;
  /*
   Reserved, always 0.
   */
  uint32_t reserved;
} ethernot_awaited;

/*
 What `ethernot_wait_any` has found.
 */
typedef struct ethernot_found {
  /*
   Which of those that were waited for.
   */
  size_t index;
  /*
   Of `ETHERNOT_AWAITED_KIND_REQUEST`: the request, as of `ethernot_accept`. Otherwise null.
   */
  struct ethernot_request *request;
  /*
   Of `ETHERNOT_AWAITED_KIND_COMPLETION`: the completion. Otherwise all zero but its kind.
   */
  struct ethernot_completion completion;
  /*
   Of `ETHERNOT_AWAITED_KIND_OPERATION`: what an atomic found. Otherwise 0.
   */
  uint64_t value;
  /*
   How it ended: `ETHERNOT_RESULT_FAILED` of an operation or a message that failed, `ETHERNOT_RESULT_CLOSED` of an end.
   */
  ethernot_result result;
  /*
   Reserved, always 0.
   */
  uint32_t reserved;
} ethernot_found;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Asks for a connection as `ethernot_connect` does, but returns before the peer has answered:
 `ethernot_attempt_wait` or `ethernot_attempt_test` returns the connection. `timeout_ms` of the options bounds
 only the search for stations. A peer that is named, and not addressed, is looked up in this call. Free the
 attempt by `ethernot_attempt_free`.
 */
ethernot_result ethernot_connect_start(struct ethernot_endpoint *endpoint,
                                       const char *peer,
                                       const struct ethernot_connect_options *options,
                                       struct ethernot_attempt **attempt);

/*
 Accepts a request as `ethernot_request_accept` does, but returns before the peer knows. The request is freed,
 and `timeout_ms` of the options does not count. Free the attempt by `ethernot_attempt_free`.
 */
ethernot_result ethernot_request_accept_start(struct ethernot_request *request,
                                              const struct ethernot_connect_options *options,
                                              struct ethernot_attempt **attempt);

/*
 Waits for the connection. May be called again after `ETHERNOT_RESULT_TIMED_OUT`; the outcome is returned once, and
 `ETHERNOT_RESULT_INVALID` or `ETHERNOT_RESULT_CLOSED` afterwards.
 */
ethernot_result ethernot_attempt_wait(struct ethernot_attempt *attempt,
                                      int64_t timeout_ms,
                                      struct ethernot_connection **connection);

/*
 Returns the connection, if it is there; `ETHERNOT_RESULT_AGAIN` while it is not, or while another thread waits
 for it. Otherwise as `ethernot_attempt_wait`.
 */
ethernot_result ethernot_attempt_test(struct ethernot_attempt *attempt,
                                      struct ethernot_connection **connection);

/*
 Frees an attempt, and gives it up if its outcome was not returned.
 */
ethernot_result ethernot_attempt_free(struct ethernot_attempt *attempt);

/*
 Listens for requests for connections to `service`, a number that both sides agree on. Freed by
 `ethernot_listener_free`.
 */
ethernot_result ethernot_listen(struct ethernot_endpoint *endpoint,
                                uint32_t service,
                                struct ethernot_listener **listener);

/*
 Stops listening, and rejects the requests that wait.
 */
ethernot_result ethernot_listener_free(struct ethernot_listener *listener);

/*
 Waits for the next request, which is freed by being accepted or rejected.
 */
ethernot_result ethernot_accept(struct ethernot_listener *listener,
                                int64_t timeout_ms,
                                struct ethernot_request **request);

/*
 Copies the private data of the peer, as much as fits. `length` gets how much there is, and may be null.
 */
ethernot_result ethernot_request_data(struct ethernot_request *request, void *data, size_t capacity, size_t *length);

/*
 Accepts a request, waits until the peer knows, and frees the request. `options` may be null.
 */
ethernot_result ethernot_request_accept(struct ethernot_request *request,
                                        const struct ethernot_connect_options *options,
                                        struct ethernot_connection **connection);

/*
 Rejects a request, sends the peer up to 512 bytes, and frees the request.
 */
ethernot_result ethernot_request_reject(struct ethernot_request *request, const void *data, size_t length);

/*
 Connects to a peer that listens, at an address such as "10.0.0.2:7000". `options` may be null. Freed by
 `ethernot_connection_free`.
 */
ethernot_result ethernot_connect(struct ethernot_endpoint *endpoint,
                                 const char *peer,
                                 const struct ethernot_connect_options *options,
                                 struct ethernot_connection **connection);

/*
 Copies the private data that the peer sent with its request or acceptance, as much as fits. `length` gets how
 much there is, and may be null.
 */
ethernot_result ethernot_connection_data(struct ethernot_connection *connection,
                                         void *data,
                                         size_t capacity,
                                         size_t *length);

/*
 Closes a connection and sends the peer up to 128 bytes. What is not complete fails. The handle stays.
 */
ethernot_result ethernot_connection_close(struct ethernot_connection *connection, const void *data, size_t length);

/*
 Waits until a connection has ended. `ethernot_last_error` says why, then.
 */
ethernot_result ethernot_connection_wait_closed(struct ethernot_connection *connection, int64_t timeout_ms);

/*
 Frees a connection, which is closed when the handles of its operations are freed, too.
 */
ethernot_result ethernot_connection_free(struct ethernot_connection *connection);

/*
 Makes an endpoint. `options` may be null. It is freed by `ethernot_endpoint_free`.
 */
ethernot_result ethernot_endpoint_open(const struct ethernot_endpoint_options *options,
                                       struct ethernot_endpoint **endpoint);

/*
 Frees an endpoint. It lives on while connections, listeners or operations of it do; the last of them that is freed closes
 what is open. It waits a millisecond at most for peers to hear of it; a thread of the library waits for others, for a second
 at most.
 */
ethernot_result ethernot_endpoint_free(struct ethernot_endpoint *endpoint);

/*
 Waits until the operations of all connections are complete, and closes these.
 */
ethernot_result ethernot_endpoint_shutdown(struct ethernot_endpoint *endpoint, int64_t timeout_ms);

/*
 Makes progress, unless another thread is at it. For endpoints without a progress thread.
 */
ethernot_result ethernot_endpoint_drive(struct ethernot_endpoint *endpoint);

/*
 Returns a descriptor for event loops: it becomes readable, after `ethernot_endpoint_arm`, when something comes.
 It belongs to the endpoint: it must not be read or closed.
 */
ethernot_result ethernot_endpoint_descriptor(struct ethernot_endpoint *endpoint, int32_t *descriptor);

/*
 Makes the descriptor readable when something comes from now on: a completion, the end of an operation, a request,
 an end. `ETHERNOT_RESULT_AGAIN` if something has come since the last call: look at it before sleeping; this is always so
 without a progress thread.
 */
ethernot_result ethernot_endpoint_arm(struct ethernot_endpoint *endpoint);

/*
 Makes the descriptor unreadable again. `ethernot_endpoint_arm` does it as well.
 */
ethernot_result ethernot_endpoint_drain(struct ethernot_endpoint *endpoint);

/*
 Writes the address at which peers can reach the UDP link of this number, as text that ends with a zero:
 "127.0.0.1:7000". `ETHERNOT_RESULT_INVALID` if there is none, or no room for it; 64 bytes are enough.
 */
ethernot_result ethernot_endpoint_address(struct ethernot_endpoint *endpoint,
                                          uint32_t link,
                                          char *text,
                                          size_t capacity);

/*
 Returns the text of the last error of a call of this thread; empty if there was none. It is good until the next
 call of the thread, and must not be freed.
 */
const char *ethernot_last_error(void);

/*
 Returns the name of a result, as in "timed out"; "unknown" of a number that is none.
 */
const char *ethernot_result_name(int32_t result);

/*
 Allocates memory, filled with zeros, and registers it. `ethernot_memory_free` frees it.
 */
ethernot_result ethernot_memory_allocate(struct ethernot_endpoint *endpoint,
                                         uint64_t length,
                                         uint32_t rights,
                                         struct ethernot_memory **memory);

/*
 Registers memory of the program's own, which must stay mapped until `ethernot_memory_free` has returned.
 */
ethernot_result ethernot_memory_register(struct ethernot_endpoint *endpoint,
                                         void *start,
                                         uint64_t length,
                                         uint32_t rights,
                                         struct ethernot_memory **memory);

/*
 Returns the address of the memory, and its length in bytes. Peers write to it at any time: read what they write
 by atomics or volatile accesses, after a completion reports that it is there.
 */
ethernot_result ethernot_memory_data(struct ethernot_memory *memory, void **data, uint64_t *length);

/*
 Returns what peers need to know to reach the memory.
 */
ethernot_result ethernot_memory_remote(struct ethernot_memory *memory, struct ethernot_remote *remote);

/*
 Deregisters memory; peers do not reach it any more when this has returned.

 Memory that the library allocated is freed, and the program must not touch it any more. Operations that use it go on, and
 it is freed when the last of them has ended. Memory of the program's own is not touched any more when this has returned, and
 operations that still need it end their connection.
 */
ethernot_result ethernot_memory_free(struct ethernot_memory *memory);

/*
 Writes the description of a region: `ETHERNOT_REMOTE_BYTES`.
 */
ethernot_result ethernot_remote_to_bytes(const struct ethernot_remote *remote, uint8_t *bytes);

/*
 Reads the description of a region.
 */
ethernot_result ethernot_remote_from_bytes(const void *bytes, size_t length, struct ethernot_remote *remote);

/*
 Copies bytes of this side's memory to the peer's. They must not change until the operation is complete.

 Of all that start an operation: `options` may be null. The handle is freed by `ethernot_operation_free`; with a null
 `operation` there is none, and the operation goes on unobserved.
 */
ethernot_result ethernot_write(struct ethernot_connection *connection,
                               struct ethernot_memory *memory,
                               uint64_t offset,
                               const struct ethernot_remote *remote,
                               uint64_t remote_offset,
                               uint64_t length,
                               const struct ethernot_operation_options *options,
                               struct ethernot_operation **operation);

/*
 Writes up to 64 bytes, which are copied before the call returns.
 */
ethernot_result ethernot_write_bytes(struct ethernot_connection *connection,
                                     const void *bytes,
                                     size_t length,
                                     const struct ethernot_remote *remote,
                                     uint64_t remote_offset,
                                     const struct ethernot_operation_options *options,
                                     struct ethernot_operation **operation);

/*
 Copies bytes of the peer's memory to this side's, which has the right `ETHERNOT_LOCAL_WRITE`.
 */
ethernot_result ethernot_read(struct ethernot_connection *connection,
                              struct ethernot_memory *memory,
                              uint64_t offset,
                              const struct ethernot_remote *remote,
                              uint64_t remote_offset,
                              uint64_t length,
                              const struct ethernot_operation_options *options,
                              struct ethernot_operation **operation);

/*
 Adds to a 64-bit word of the peer's memory. `ethernot_operation_wait` returns the value before.
 */
ethernot_result ethernot_fetch_add(struct ethernot_connection *connection,
                                   const struct ethernot_remote *remote,
                                   uint64_t remote_offset,
                                   uint64_t operand,
                                   const struct ethernot_operation_options *options,
                                   struct ethernot_operation **operation);

/*
 Stores `swap` in a 64-bit word of the peer's memory if it holds `compare`. `ethernot_operation_wait` returns what it
 held.
 */
ethernot_result ethernot_compare_swap(struct ethernot_connection *connection,
                                      const struct ethernot_remote *remote,
                                      uint64_t remote_offset,
                                      uint64_t compare,
                                      uint64_t swap,
                                      const struct ethernot_operation_options *options,
                                      struct ethernot_operation **operation);

/*
 Sends a message into the receive that the peer has posted or will post.
 */
ethernot_result ethernot_send(struct ethernot_connection *connection,
                              struct ethernot_memory *memory,
                              uint64_t offset,
                              uint64_t length,
                              const struct ethernot_operation_options *options,
                              struct ethernot_operation **operation);

/*
 Sends a message of up to 64 bytes, which are copied before the call returns.
 */
ethernot_result ethernot_send_bytes(struct ethernot_connection *connection,
                                    const void *bytes,
                                    size_t length,
                                    const struct ethernot_operation_options *options,
                                    struct ethernot_operation **operation);

/*
 Posts a receive without a handle: memory with the right `ETHERNOT_LOCAL_WRITE` for one message, which a completion of
 the connection reports, of `ETHERNOT_COMPLETION_KIND_RECEIVE` and with `context`. For programs in which one thread takes all
 completions (`ethernot_poll`, `ethernot_wait_completion`); `ethernot_receive_post` makes a receive with a handle instead.
 */
ethernot_result ethernot_post_receive(struct ethernot_connection *connection,
                                      struct ethernot_memory *memory,
                                      uint64_t offset,
                                      uint32_t length,
                                      uint64_t context);

/*
 Waits until an operation is complete. `value` gets what an atomic found, and may be null. May be called again after
 `ETHERNOT_RESULT_TIMED_OUT`.
 */
ethernot_result ethernot_operation_wait(struct ethernot_operation *operation, int64_t timeout_ms, uint64_t *value);

/*
 Whether an operation is complete or has failed: `ETHERNOT_RESULT_OK` or `ETHERNOT_RESULT_FAILED`, or else `ETHERNOT_RESULT_AGAIN`. Makes no
 progress by itself.
 */
ethernot_result ethernot_operation_test(struct ethernot_operation *operation);

/*
 Frees the handle of an operation, which goes on.
 */
ethernot_result ethernot_operation_free(struct ethernot_operation *operation);

/*
 Takes the oldest completion of a connection, and makes progress; `ETHERNOT_RESULT_AGAIN` if there is none.
 */
ethernot_result ethernot_poll(struct ethernot_connection *connection, struct ethernot_completion *completion);

/*
 Waits for a completion of a connection; `ETHERNOT_RESULT_CLOSED` if it has ended and there is none left.
 */
ethernot_result ethernot_wait_completion(struct ethernot_connection *connection,
                                         int64_t timeout_ms,
                                         struct ethernot_completion *completion);

/*
 Posts a receive with a handle: memory with the right `ETHERNOT_LOCAL_WRITE` for one message of at most `length` bytes, which
 `ethernot_receive_wait` of this handle returns, and no completion reports. For programs whose threads share a connection;
 `ethernot_post_receive` makes a receive without a handle instead. Messages go to the receives of a connection, of
 both kinds, in the order in which these were posted.

 Of all that make a receive: it is freed by `ethernot_receive_free`. If one was freed before its message was seen, the
 next `ethernot_receive_post` takes it over, buffer and all: so take the bytes from `ethernot_receive_wait`.
 */
ethernot_result ethernot_receive_post(struct ethernot_connection *connection,
                                      struct ethernot_memory *memory,
                                      uint64_t offset,
                                      uint32_t length,
                                      struct ethernot_receive **receive);

/*
 Sends a question, whose bytes must not change until the answer is here, and posts a buffer for the answer, as one: of the questions of
 several threads the answers come in the order in which they were asked, if the peer answers in order. `options` may be
 null.
 */
ethernot_result ethernot_call(struct ethernot_connection *connection,
                              struct ethernot_memory *question,
                              uint64_t question_offset,
                              uint64_t question_length,
                              struct ethernot_memory *answer,
                              uint64_t offset,
                              uint32_t length,
                              const struct ethernot_operation_options *options,
                              struct ethernot_receive **receive);

/*
 Asks as `ethernot_call` does, with a question of up to 64 bytes, which are copied before the call returns.
 */
ethernot_result ethernot_call_bytes(struct ethernot_connection *connection,
                                    const void *question,
                                    size_t question_length,
                                    struct ethernot_memory *answer,
                                    uint64_t offset,
                                    uint32_t length,
                                    const struct ethernot_operation_options *options,
                                    struct ethernot_receive **receive);

/*
 Waits for the message of a receive, and copies as much of it as there is room for to `bytes`, which may be null. May be called again
 after `ETHERNOT_RESULT_TIMED_OUT`; afterwards it returns the same once more.
 */
ethernot_result ethernot_receive_wait(struct ethernot_receive *receive,
                                      int64_t timeout_ms,
                                      void *bytes,
                                      size_t capacity,
                                      struct ethernot_message *message);

/*
 Whether a message has come, or never will: `ETHERNOT_RESULT_OK`, or else `ETHERNOT_RESULT_AGAIN`. Makes no progress by itself.
 */
ethernot_result ethernot_receive_test(struct ethernot_receive *receive);

/*
 Frees the handle of a receive. A message that was not taken goes to the next `ethernot_receive_post` of the connection.
 */
ethernot_result ethernot_receive_free(struct ethernot_receive *receive);

/*
 Returns the version of the library that the program runs with, in the form of `ETHERNOT_VERSION`.
 */
uint32_t ethernot_version(void);

/*
 Waits until one of `count` things has occurred, of one endpoint. They are looked at from first to last. A request or
 completion is taken with it; a message is in its receive, for `ethernot_receive_wait`.
 */
ethernot_result ethernot_wait_any(struct ethernot_endpoint *endpoint,
                                  const struct ethernot_awaited *awaited,
                                  size_t count,
                                  int64_t timeout_ms,
                                  struct ethernot_found *found);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ETHERNOT_H */
