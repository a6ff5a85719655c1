/* SPDX-License-Identifier: Apache-2.0
 *
 * Ethernot: remote direct memory access over ordinary Ethernet, in user space.
 *
 * Handles. Handles are opaque. A call with a handle that is NULL, of another kind or freed returns
 * ETHERNOT_RESULT_BAD_HANDLE. The program frees the handles that calls return. An object exists as long as other
 * objects need it, so handles may be freed in any order.
 *
 * Results. Every call except ethernot_last_error, ethernot_result_name and ethernot_version returns a result. A call
 * writes its outputs only if the result is ETHERNOT_RESULT_OK. If the pointer for an output is NULL, the call returns
 * ETHERNOT_RESULT_INVALID, unless its description allows NULL.
 *
 * Threads. Every call may be made from any thread, concurrently with any other call, with the same handles. Each thread
 * has its own last error.
 *
 * Memory. Peers write to registered memory at any time. Operations read their memory until they are complete.
 *
 * Timeouts are in milliseconds. A negative timeout means no limit.
 *
 * A forked child makes its own endpoints. Calls with handles of its parent return ETHERNOT_RESULT_FORKED. */


#ifndef ETHERNOT_H
#define ETHERNOT_H

/* Made by cbindgen of the crate ethernot-c. */

#include <stddef.h>
#include <stdint.h>

/*
 The library may place messages and the results of reads and atomics in the memory.
 */
#define ETHERNOT_LOCAL_WRITE 1

/*
 Peers may read the memory.
 */
#define ETHERNOT_REMOTE_READ 2

/*
 Peers may write the memory.
 */
#define ETHERNOT_REMOTE_WRITE 4

/*
 Peers may perform atomics on the memory.
 */
#define ETHERNOT_REMOTE_ATOMIC 8

/*
 Length in bytes of an encoded description of a region. Programs send such a description in
 private data or in a message.
 */
#define ETHERNOT_REMOTE_BYTES 20

/*
 The peer performs the operation only after all earlier operations of the connection.
 */
#define ETHERNOT_FENCE_BEFORE 1

/*
 The peer performs all later operations of the connection only after this operation.
 */
#define ETHERNOT_FENCE_AFTER 2

/*
 The operation has strict order, as on a reliable connection of verbs.
 */
#define ETHERNOT_STRICT 4

/*
 If the operation succeeds, it adds a completion at this endpoint.
 */
#define ETHERNOT_SIGNALLED 8

/*
 The write notifies the peer.
 */
#define ETHERNOT_NOTIFY 16

/*
 The operation sends `immediate` to the peer.
 */
#define ETHERNOT_IMMEDIATE 32

/*
 The library may delay the operation until the next operation without this flag, the next poll or
 the next wait.
 */
#define ETHERNOT_MORE 64

/*
 The version of this header, as `major * 1000000 + minor * 1000 + patch`.
 */
#define ETHERNOT_VERSION 1000

/*
 The result of a call. For each result except `ETHERNOT_RESULT_OK`, `ethernot_last_error` returns
 a text.
 */
enum ethernot_result
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   Success.
   */
  ETHERNOT_RESULT_OK = 0,
  /*
   The request is impossible, a pointer is null, or a string is not UTF-8. Remedy: change the
   request.
   */
  ETHERNOT_RESULT_INVALID = 1,
  /*
   The handle is null, belongs to an object of another kind, or has been freed.
   */
  ETHERNOT_RESULT_BAD_HANDLE = 2,
  /*
   The timeout has expired. The operation or event for which the call waited is still pending.
   Remedy: wait again.
   */
  ETHERNOT_RESULT_TIMED_OUT = 3,
  /*
   There is no event now, or there is no room now. Remedy: poll, let operations complete, and
   retry.
   */
  ETHERNOT_RESULT_AGAIN = 4,
  /*
   The connection or the endpoint has ended. Remedy: create a new connection or endpoint.
   */
  ETHERNOT_RESULT_CLOSED = 5,
  /*
   The peer is reachable but has rejected the connection. Remedy: check the service number.
   */
  ETHERNOT_RESULT_REFUSED = 6,
  /*
   There is no route to the peer, or no process answers at its address. Remedy: check that the
   peer's process is running.
   */
  ETHERNOT_RESULT_UNREACHABLE = 7,
  /*
   The name or number is already in use. Remedy: choose another name or number.
   */
  ETHERNOT_RESULT_IN_USE = 8,
  /*
   An operation failed. The text says whether the peer rejected the operation, the peer was
   lost, or the peer had no room.
   */
  ETHERNOT_RESULT_FAILED = 9,
  /*
   The operating system rejected a request. The text names the request.
   */
  ETHERNOT_RESULT_SYSTEM = 10,
  /*
   The process is a forked child. Remedy: create a new endpoint in the child.
   */
  ETHERNOT_RESULT_FORKED = 11,
  /*
   The library has a bug. The endpoint may be in any state.
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
 The kind of a completed operation.
 */
enum ethernot_completion_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   A write by this side.
   */
  ETHERNOT_COMPLETION_KIND_WRITE = 1,
  /*
   A read by this side.
   */
  ETHERNOT_COMPLETION_KIND_READ = 2,
  /*
   An atomic by this side.
   */
  ETHERNOT_COMPLETION_KIND_ATOMIC = 3,
  /*
   A message that this side has sent and that has arrived at the peer.
   */
  ETHERNOT_COMPLETION_KIND_SEND = 4,
  /*
   A message that has arrived in a posted receive.
   */
  ETHERNOT_COMPLETION_KIND_RECEIVE = 5,
  /*
   A write of the peer that notifies this side.
   */
  ETHERNOT_COMPLETION_KIND_NOTIFICATION = 6,
  /*
   Any other kind.
   */
  ETHERNOT_COMPLETION_KIND_OTHER = 7,
  /*
   A patch by this side.
   */
  ETHERNOT_COMPLETION_KIND_PATCH = 8,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ethernot_completion_kind ethernot_completion_kind;
#else
typedef int32_t ethernot_completion_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 The kind of an event for which `ethernot_wait_any` can wait.
 */
enum ethernot_awaited_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   A connection request. `handle` is the handle of a listener.
   */
  ETHERNOT_AWAITED_KIND_REQUEST = 1,
  /*
   A completion. `handle` is the handle of a connection.
   */
  ETHERNOT_AWAITED_KIND_COMPLETION = 2,
  /*
   The end of a connection. `handle` is the handle of the connection. If the connection has
   already ended, the call returns this event at once.
   */
  ETHERNOT_AWAITED_KIND_END = 3,
  /*
   The end of an operation. `handle` is the handle of the operation.
   */
  ETHERNOT_AWAITED_KIND_OPERATION = 4,
  /*
   A message. `handle` is the handle of a receive.
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
 How the library's threads wait for frames if no thread of the program waits.
 */
enum ethernot_waiting
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   Adaptive: the threads spin as long as this costs less than the sleeps that it saves.
   */
  ETHERNOT_WAITING_ADAPTIVE = 0,
  /*
   The threads sleep at once.
   */
  ETHERNOT_WAITING_SLEEP = 1,
  /*
   After the last work, the threads spin for the time in `spin_us` of the options.
   */
  ETHERNOT_WAITING_SPIN_FOR = 2,
  /*
   The threads spin all the time.
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
 An attempt to establish a connection.
 */
typedef struct ethernot_attempt ethernot_attempt;

/*
 A connection to a peer.
 */
typedef struct ethernot_connection ethernot_connection;

/*
 One side of remote memory access: the links, registered memory and connections of a process.
 */
typedef struct ethernot_endpoint ethernot_endpoint;

/*
 Receives the connection requests of peers for one service.
 */
typedef struct ethernot_listener ethernot_listener;

/*
 Registered memory of this process.
 */
typedef struct ethernot_memory ethernot_memory;

/*
 A pending operation.
 */
typedef struct ethernot_operation ethernot_operation;

/*
 A posted receive: a buffer for one message.
 */
typedef struct ethernot_receive ethernot_receive;

/*
 A connection request of a peer.
 */
typedef struct ethernot_request ethernot_request;

/*
 Options of a connection. If all fields are zero, all options have their defaults.
 */
typedef struct ethernot_connect_options {
  /*
   `sizeof` of this structure in the program. The size shows the library which fields the
   program's version of the structure has. 0 means the size in the library's first version.
   */
  size_t size;
  /*
   Private data for the peer, at most 512 bytes. The request or its acceptance carries the
   data.
   */
  const void *private_data;
  /*
   The length of `private_data` in bytes.
   */
  size_t private_data_length;
  /*
   Maximum duration of the attempt in milliseconds.

   0 means 30 s. With a negative value, there is no limit as long as the peer's host reports
   that the peer's program has not decided. If the peer's host is silent for 5 s, the attempt
   ends in any case.
   */
  int64_t timeout_ms;
  /*
   Service number of the peer's listener. Only `ethernot_connect` uses it.
   */
  uint32_t service;
  /*
   Maximum number of completions, notifications and receives that may wait until the program
   polls for them. 0 means 256.
   */
  uint32_t completions;
} ethernot_connect_options;

/*
 Options of an endpoint. If all fields are zero, all options have their defaults: UDP on every
 usable interface, on free ports.
 */
typedef struct ethernot_endpoint_options {
  /*
   `sizeof` of this structure in the program. The size shows the library which fields the
   program's version of the structure has. 0 means the size in the library's first version.
   */
  size_t size;
  /*
   Names of links, such as "eth0,packet:eth1". If `links` is null, the endpoint uses only the
   link in `address`. If `links` and `address` are null, the endpoint uses the default links.
   */
  const char *links;
  /*
   Address of another UDP link, in addition to the links in `links`, such as "127.0.0.1:0".
   Null means no such link.
   */
  const char *address;
  /*
   Port of the links whose name contains no port. 0 means a free port.
   */
  uint16_t port;
  /*
   If not 0, the endpoint has no progress thread. Progress then happens only in calls of the
   program.
   */
  uint8_t without_progress_thread;
  /*
   If not 0, the progress thread runs only on the processor `progress_processor`.
   */
  uint8_t is_pinned;
  /*
   A value of `ethernot_waiting`.
   */
  int32_t waiting;
  /*
   Spin time in microseconds, for `ETHERNOT_WAITING_SPIN_FOR`.
   */
  uint32_t spin_us;
  /*
   If `is_pinned` is not 0, the processor on which the progress thread runs: the number that
   the kernel gives to this processor.
   */
  uint32_t progress_processor;
} ethernot_endpoint_options;

/*
 A region of a peer: its address, length and key.
 */
typedef struct ethernot_remote {
  /*
   Address of the region's first byte, as the peer has announced it.
   */
  uint64_t address;
  /*
   The length of the region in bytes.
   */
  uint64_t length;
  /*
   Key of the region.
   */
  uint32_t key;
  /*
   Reserved, always 0.
   */
  uint32_t reserved;
} ethernot_remote;

/*
 Order, notification and completion of an operation. If all fields are zero, all options have
 their defaults: relaxed order, and no completion. Only the handle then reports the end of the
 operation.
 */
typedef struct ethernot_operation_options {
  /*
   `sizeof` of this structure in the program. The size shows the library which fields the
   program's version of the structure has. 0 means the size in the library's first version.
   */
  size_t size;
  /*
   Value that the completion returns.
   */
  uint64_t context;
  /*
   Sum of the flags, such as `ETHERNOT_FENCE_BEFORE`.
   */
  uint32_t flags;
  /*
   The 32-bit value for the peer. It has an effect only with `ETHERNOT_IMMEDIATE`.
   */
  uint32_t immediate;
} ethernot_operation_options;

/*
 The result of an operation or a receive, or a notification.
 */
typedef struct ethernot_completion {
  /*
   The context that the program passed when it posted the work; 0 for a notification.
   */
  uint64_t context;
  /*
   For an atomic, the old value of the word. For a notification, the address to which the peer
   wrote.
   */
  uint64_t value;
  /*
   The kind of the completed operation.
   */
  ethernot_completion_kind kind;
  /*
   `ETHERNOT_RESULT_OK` or `ETHERNOT_RESULT_FAILED`.
   */
  ethernot_result result;
  /*
   Number of transferred bytes.
   */
  uint32_t bytes;
  /*
   The immediate of a message or notification.
   */
  uint32_t immediate;
  /*
   Not 0 if the message or notification has an immediate.
   */
  uint32_t has_immediate;
  /*
   Reserved, always 0.
   */
  uint32_t reserved;
} ethernot_completion;

/*
 A received message.
 */
typedef struct ethernot_message {
  /*
   The length of the message in bytes.
   */
  uint64_t length;
  /*
   The immediate of the message.
   */
  uint32_t immediate;
  /*
   Not 0 if the message has an immediate.
   */
  uint32_t has_immediate;
} ethernot_message;

/*
 An event for which `ethernot_wait_any` waits.
 */
typedef struct ethernot_awaited {
  /*
   The handle, of the type that `kind` requires.
   */
  const void *handle;
  /*
   A value of `ethernot_awaited_kind`.
   */
  int32_t kind;
  /*
   Reserved, always 0.
   */
  uint32_t reserved;
} ethernot_awaited;

/*
 The event that `ethernot_wait_any` returns.
 */
typedef struct ethernot_found {
  /*
   Index of the event in the array `awaited`.
   */
  size_t index;
  /*
   For `ETHERNOT_AWAITED_KIND_REQUEST`, the request that `ethernot_accept` would return.
   Otherwise null.
   */
  struct ethernot_request *request;
  /*
   For `ETHERNOT_AWAITED_KIND_COMPLETION`, the completion. Otherwise all fields of the
   completion except its kind are zero.
   */
  struct ethernot_completion completion;
  /*
   For `ETHERNOT_AWAITED_KIND_OPERATION`, the old value of the word if the operation was an
   atomic. Otherwise 0.
   */
  uint64_t value;
  /*
   `ETHERNOT_RESULT_FAILED` if an operation or a receive has failed. `ETHERNOT_RESULT_CLOSED`
   if a connection has ended. Otherwise `ETHERNOT_RESULT_OK`.
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
 Requests a connection like `ethernot_connect`, but returns before the peer has answered.
 `ethernot_attempt_wait` or `ethernot_attempt_test` returns the connection.

 `timeout_ms` in `options` limits only the search for MAC addresses. If `peer` contains a host
 name, this call resolves the name, which may block. Free the attempt with
 `ethernot_attempt_free`.
 */
ethernot_result ethernot_connect_start(struct ethernot_endpoint *endpoint,
                                       const char *peer,
                                       const struct ethernot_connect_options *options,
                                       struct ethernot_attempt **attempt);

/*
 Accepts a request like `ethernot_request_accept`, but returns before the peer has confirmed the
 connection. Frees the request. `timeout_ms` in `options` has no effect. Free the attempt with
 `ethernot_attempt_free`.
 */
ethernot_result ethernot_request_accept_start(struct ethernot_request *request,
                                              const struct ethernot_connect_options *options,
                                              struct ethernot_attempt **attempt);

/*
 Waits for the connection. After `ETHERNOT_RESULT_TIMED_OUT`, the program may call this function
 again. Only one call returns the outcome of the attempt. Later calls return
 `ETHERNOT_RESULT_INVALID` or `ETHERNOT_RESULT_CLOSED`.
 */
ethernot_result ethernot_attempt_wait(struct ethernot_attempt *attempt,
                                      int64_t timeout_ms,
                                      struct ethernot_connection **connection);

/*
 Returns the connection if it is established. Returns `ETHERNOT_RESULT_AGAIN` if the attempt is
 pending, or if another thread waits for it. In all other cases, returns the result of
 `ethernot_attempt_wait`.
 */
ethernot_result ethernot_attempt_test(struct ethernot_attempt *attempt, struct ethernot_connection **connection);

/*
 Frees an attempt. If no call has returned the outcome yet, cancels the attempt.
 */
ethernot_result ethernot_attempt_free(struct ethernot_attempt *attempt);

/*
 Listens for connection requests to the service with the number `service`. Programs that connect
 must use the same number. Free the listener with `ethernot_listener_free`.
 */
ethernot_result ethernot_listen(struct ethernot_endpoint *endpoint,
                                uint32_t service,
                                struct ethernot_listener **listener);

/*
 Stops listening and rejects the pending requests.
 */
ethernot_result ethernot_listener_free(struct ethernot_listener *listener);

/*
 Waits for the next request. A call that accepts or rejects the request also frees it.
 */
ethernot_result ethernot_accept(struct ethernot_listener *listener,
                                int64_t timeout_ms,
                                struct ethernot_request **request);

/*
 Copies at most `capacity` bytes of the private data in the peer's request. If `length` is not
 null, writes the full length of the data to `length`.
 */
ethernot_result ethernot_request_data(struct ethernot_request *request, void *data, size_t capacity, size_t *length);

/*
 Accepts a request and waits until the peer has confirmed the connection. Frees the request.
 `options` may be null.
 */
ethernot_result ethernot_request_accept(struct ethernot_request *request,
                                        const struct ethernot_connect_options *options,
                                        struct ethernot_connection **connection);

/*
 Rejects a request and sends up to 512 bytes of private data to the peer. Frees the request.
 */
ethernot_result ethernot_request_reject(struct ethernot_request *request, const void *data, size_t length);

/*
 Connects to a peer that listens at an address such as "10.0.0.2:7000". `options` may be null.
 Free the connection with `ethernot_connection_free`.
 */
ethernot_result ethernot_connect(struct ethernot_endpoint *endpoint,
                                 const char *peer,
                                 const struct ethernot_connect_options *options,
                                 struct ethernot_connection **connection);

/*
 Copies at most `capacity` bytes of the private data in the peer's request or acceptance. If
 `length` is not null, writes the full length of the data to `length`.
 */
ethernot_result ethernot_connection_data(struct ethernot_connection *connection,
                                         void *data,
                                         size_t capacity,
                                         size_t *length);

/*
 Closes a connection and sends up to 128 bytes of private data to the peer. Pending operations
 and receives fail. The handle of the connection stays valid.
 */
ethernot_result ethernot_connection_close(struct ethernot_connection *connection, const void *data, size_t length);

/*
 Waits until a connection has ended, and then returns `ETHERNOT_RESULT_CLOSED`.
 `ethernot_last_error` returns the reason for the end.
 */
ethernot_result ethernot_connection_wait_closed(struct ethernot_connection *connection, int64_t timeout_ms);

/*
 Frees a connection. The connection closes when the program has also freed the handles of its
 operations.
 */
ethernot_result ethernot_connection_free(struct ethernot_connection *connection);

/*
 Creates an endpoint. `options` may be null. Free the endpoint with `ethernot_endpoint_free`.
 */
ethernot_result ethernot_endpoint_open(const struct ethernot_endpoint_options *options,
                                       struct ethernot_endpoint **endpoint);

/*
 Frees an endpoint. The endpoint stays open as long as its connections, listeners or operations
 exist. The call that frees the last of them closes the connections of the endpoint.

 That call waits at most one millisecond for the peers' confirmations. If peers are silent, a
 thread of the library waits for them, for at most one second.
 */
ethernot_result ethernot_endpoint_free(struct ethernot_endpoint *endpoint);

/*
 Waits until the operations of all connections are complete. Then closes the connections, and
 waits until the peers have confirmed that they are closed.
 */
ethernot_result ethernot_endpoint_shutdown(struct ethernot_endpoint *endpoint, int64_t timeout_ms);

/*
 Makes progress. Does nothing if another thread makes progress. A program must call this function
 if its endpoint has no progress thread.
 */
ethernot_result ethernot_endpoint_drive(struct ethernot_endpoint *endpoint);

/*
 Returns a descriptor for event loops. After `ethernot_endpoint_arm`, the next event makes the
 descriptor readable. The endpoint owns the descriptor: the program must not read from it or
 close it.
 */
ethernot_result ethernot_endpoint_descriptor(struct ethernot_endpoint *endpoint, int32_t *descriptor);

/*
 Arms the descriptor. The next of these events makes it readable: a completion, the end of an
 operation, a connection request, or the end of a connection.

 Returns `ETHERNOT_RESULT_AGAIN` if an event has occurred since the last call. The program must
 then check for events before it sleeps. If the endpoint has no progress thread, always returns
 `ETHERNOT_RESULT_AGAIN`.
 */
ethernot_result ethernot_endpoint_arm(struct ethernot_endpoint *endpoint);

/*
 Makes the descriptor unreadable. `ethernot_endpoint_arm` does this too.
 */
ethernot_result ethernot_endpoint_drain(struct ethernot_endpoint *endpoint);

/*
 Writes the address of a UDP link to `text`, such as "127.0.0.1:7000". Peers connect to this
 address. The text ends with a zero byte.

 Returns `ETHERNOT_RESULT_INVALID` if there is no UDP link with the number `link`, or if
 `capacity` is too small. 64 bytes are always enough.
 */
ethernot_result ethernot_endpoint_address(struct ethernot_endpoint *endpoint,
                                          uint32_t link,
                                          char *text,
                                          size_t capacity);

/*
 Returns the error text of the last failed call of this thread. Returns an empty string if no
 call has failed. The text is valid until the next call of this thread. The program must not free
 it.
 */
const char *ethernot_last_error(void);

/*
 Returns the name of a result, such as "timed out". Returns "unknown" for a number that is not a
 result.
 */
const char *ethernot_result_name(int32_t result);

/*
 Allocates memory, fills it with zeros and registers it. Free the memory with
 `ethernot_memory_free`.
 */
ethernot_result ethernot_memory_allocate(struct ethernot_endpoint *endpoint,
                                         uint64_t length,
                                         uint32_t rights,
                                         struct ethernot_memory **memory);

/*
 Registers memory of the program. The memory must stay mapped until `ethernot_memory_free` has
 returned.
 */
ethernot_result ethernot_memory_register(struct ethernot_endpoint *endpoint,
                                         void *start,
                                         uint64_t length,
                                         uint32_t rights,
                                         struct ethernot_memory **memory);

/*
 Returns the address and the length in bytes of the memory. Peers may write to the memory at any
 time. Wait for the completion that reports the arrival of data. Then read the data with atomics
 or volatile accesses.
 */
ethernot_result ethernot_memory_data(struct ethernot_memory *memory, void **data, uint64_t *length);

/*
 Returns the description of the memory. Peers need this description to access the memory.
 */
ethernot_result ethernot_memory_remote(struct ethernot_memory *memory, struct ethernot_remote *remote);

/*
 Deregisters memory. When the call has returned, peers cannot access the memory any more.

 If the library allocated the memory, the program must not access it after this call. Pending
 operations that use the memory continue. When the last of them has ended, the library frees the
 memory.

 If the memory belongs to the program, the library does not access it after this call. If a
 pending operation still needs the memory, the connection of the operation ends.
 */
ethernot_result ethernot_memory_free(struct ethernot_memory *memory);

/*
 Encodes the description of a region into `ETHERNOT_REMOTE_BYTES` bytes.
 */
ethernot_result ethernot_remote_to_bytes(const struct ethernot_remote *remote, uint8_t *bytes);

/*
 Decodes the description of a region.
 */
ethernot_result ethernot_remote_from_bytes(const void *bytes, size_t length, struct ethernot_remote *remote);

/*
 Copies bytes of local memory to the peer's memory. The program must not change the bytes until
 the operation is complete.

 For every call that posts an operation: `options` may be null. Free the handle with
 `ethernot_operation_free`. If `operation` is null, the operation gets no handle, and the program
 cannot read its result.
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
 Writes up to 64 bytes to the peer's memory. The call copies the bytes before it returns.
 */
ethernot_result ethernot_write_bytes(struct ethernot_connection *connection,
                                     const void *bytes,
                                     size_t length,
                                     const struct ethernot_remote *remote,
                                     uint64_t remote_offset,
                                     const struct ethernot_operation_options *options,
                                     struct ethernot_operation **operation);

/*
 Copies bytes of the peer's memory to local memory. The local memory needs the right
 `ETHERNOT_LOCAL_WRITE`.
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
 Adds `operand` to a 64-bit word of the peer's memory. `ethernot_operation_wait` returns the old
 value.
 */
ethernot_result ethernot_fetch_add(struct ethernot_connection *connection,
                                   const struct ethernot_remote *remote,
                                   uint64_t remote_offset,
                                   uint64_t operand,
                                   const struct ethernot_operation_options *options,
                                   struct ethernot_operation **operation);

/*
 Compares a 64-bit word of the peer's memory with `compare`. If they are equal, stores `swap` in
 the word. `ethernot_operation_wait` returns the old value.
 */
ethernot_result ethernot_compare_swap(struct ethernot_connection *connection,
                                      const struct ethernot_remote *remote,
                                      uint64_t remote_offset,
                                      uint64_t compare,
                                      uint64_t swap,
                                      const struct ethernot_operation_options *options,
                                      struct ethernot_operation **operation);

/*
 Stores `value` in a 64-bit word of the peer's memory. `ethernot_operation_wait` returns the old
 value.

 Returns `ETHERNOT_RESULT_INVALID` if the connection has no swaps. Both endpoints must offer
 them; endpoints of libraries without `ethernot_swap` do not.
 */
ethernot_result ethernot_swap(struct ethernot_connection *connection,
                              const struct ethernot_remote *remote,
                              uint64_t remote_offset,
                              uint64_t value,
                              const struct ethernot_operation_options *options,
                              struct ethernot_operation **operation);

/*
 Copies scattered words of four bytes to the peer's memory. The local bytes are records of
 `ethernot_patch_encode`. The program must not change them until the operation is complete.

 The records name words of the area that begins at `remote_offset`. The address of the area must
 be a multiple of 4. A thread of the peer that reads a word sees the old word or the new word.
 The operation cannot have `ETHERNOT_STRICT`.

 Returns `ETHERNOT_RESULT_INVALID` if the connection has no patches, like `ethernot_swap`. Use
 `ethernot_write` then.
 */
ethernot_result ethernot_patch(struct ethernot_connection *connection,
                               struct ethernot_memory *memory,
                               uint64_t offset,
                               const struct ethernot_remote *remote,
                               uint64_t remote_offset,
                               uint64_t length,
                               const struct ethernot_operation_options *options,
                               struct ethernot_operation **operation);

/*
 Writes the words in which `after` differs from `before` as records to `records`, for
 `ethernot_patch`. Writes the number of bytes to `used`.

 `before` and `after` have `length` bytes each: a multiple of 4, at most 8 MiB. `records` has
 room for `capacity` bytes. 136 bytes for each 128 bytes of the area, or part of them, are always
 enough. The three areas must not overlap. Returns `ETHERNOT_RESULT_INVALID` if a size is not
 allowed or the room is too small.
 */
ethernot_result ethernot_patch_encode(const void *before,
                                      const void *after,
                                      size_t length,
                                      void *records,
                                      size_t capacity,
                                      size_t *used);

/*
 Sends a message. The message consumes a receive of the peer. The peer may post the receive
 before or after this call.
 */
ethernot_result ethernot_send(struct ethernot_connection *connection,
                              struct ethernot_memory *memory,
                              uint64_t offset,
                              uint64_t length,
                              const struct ethernot_operation_options *options,
                              struct ethernot_operation **operation);

/*
 Sends a message of up to 64 bytes. The call copies the bytes before it returns.
 */
ethernot_result ethernot_send_bytes(struct ethernot_connection *connection,
                                    const void *bytes,
                                    size_t length,
                                    const struct ethernot_operation_options *options,
                                    struct ethernot_operation **operation);

/*
 Posts a receive for one message. The receive has no handle. The memory needs the right
 `ETHERNOT_LOCAL_WRITE`.

 A completion of the connection reports the message. The completion has the value `context` and
 the kind `ETHERNOT_COMPLETION_KIND_RECEIVE`. Use this function if one thread of the program
 polls all completions (`ethernot_poll`, `ethernot_wait_completion`). If several threads share
 the connection, use `ethernot_receive_post`, which posts a receive with a handle.
 */
ethernot_result ethernot_post_receive(struct ethernot_connection *connection,
                                      struct ethernot_memory *memory,
                                      uint64_t offset,
                                      uint32_t length,
                                      uint64_t context);

/*
 Waits until an operation is complete. If the operation is an atomic and `value` is not null,
 writes the old value of the word to `value`. After `ETHERNOT_RESULT_TIMED_OUT`, the program may
 call this function again.
 */
ethernot_result ethernot_operation_wait(struct ethernot_operation *operation, int64_t timeout_ms, uint64_t *value);

/*
 Returns the state of an operation: `ETHERNOT_RESULT_OK` if it is complete,
 `ETHERNOT_RESULT_FAILED` if it has failed, `ETHERNOT_RESULT_AGAIN` if it is pending. This call
 makes no progress.
 */
ethernot_result ethernot_operation_test(struct ethernot_operation *operation);

/*
 Frees the handle of an operation. The operation continues.
 */
ethernot_result ethernot_operation_free(struct ethernot_operation *operation);

/*
 Returns the oldest completion of a connection. If there is none, makes progress and checks
 again. Returns `ETHERNOT_RESULT_AGAIN` if there is no completion after that.
 */
ethernot_result ethernot_poll(struct ethernot_connection *connection, struct ethernot_completion *completion);

/*
 Waits for a completion of a connection. Returns `ETHERNOT_RESULT_CLOSED` if the connection has
 ended and has no more completions.
 */
ethernot_result ethernot_wait_completion(struct ethernot_connection *connection,
                                         int64_t timeout_ms,
                                         struct ethernot_completion *completion);

/*
 Posts a receive with a handle for one message of at most `length` bytes. The memory needs the
 right `ETHERNOT_LOCAL_WRITE`.

 `ethernot_receive_wait` returns the message; no completion reports the message. Use this
 function if several threads share the connection. `ethernot_post_receive` posts a receive
 without a handle. Messages consume receives of both kinds in the order in which the program
 posted the receives.

 For every call that posts a receive with a handle: free the receive with
 `ethernot_receive_free`. A program may free a receive before it has read the message. The next
 `ethernot_receive_post` then takes over this receive with its buffer. Therefore read messages
 with `ethernot_receive_wait`, and not directly from the buffer that was passed to
 `ethernot_receive_post`.
 */
ethernot_result ethernot_receive_post(struct ethernot_connection *connection,
                                      struct ethernot_memory *memory,
                                      uint64_t offset,
                                      uint32_t length,
                                      struct ethernot_receive **receive);

/*
 Sends a question and posts a receive for the answer, in one step. The program must not change
 the bytes of the question until the answer has arrived.

 Several threads may call this function on one connection. If the peer answers in order, each
 thread gets the answer to its own question. `options` may be null.
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
 Sends a question of up to 64 bytes, like `ethernot_call`. The call copies the bytes before it
 returns.
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
 Waits for the message of a receive. Copies at most `capacity` bytes of the message to `bytes`,
 which may be null.

 After `ETHERNOT_RESULT_TIMED_OUT`, the program may call this function again. After the message
 has arrived, every call returns the message.
 */
ethernot_result ethernot_receive_wait(struct ethernot_receive *receive,
                                      int64_t timeout_ms,
                                      void *bytes,
                                      size_t capacity,
                                      struct ethernot_message *message);

/*
 Returns `ETHERNOT_RESULT_OK` if the message has arrived or the receive has failed. Otherwise
 returns `ETHERNOT_RESULT_AGAIN`. This call makes no progress.
 */
ethernot_result ethernot_receive_test(struct ethernot_receive *receive);

/*
 Frees the handle of a receive. If the program has not read the message, the next
 `ethernot_receive_post` of the connection takes over this receive.
 */
ethernot_result ethernot_receive_free(struct ethernot_receive *receive);

/*
 Returns the version of the library that the program uses at run time. The number has the same
 form as `ETHERNOT_VERSION`.
 */
uint32_t ethernot_version(void);

/*
 Waits until one of the `count` events in `awaited` has occurred. All events must belong to one
 endpoint. The call checks the events in the order of the array. If several events have occurred,
 the call returns the first of these events.

 The call removes a returned request or completion from its queue. A message stays in its
 receive; `ethernot_receive_wait` returns it.
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
