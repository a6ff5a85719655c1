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
 Reads, results of atomics, and messages may be placed in the memory.
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
 Length in bytes of an encoded region description, to be sent in private data or a message.
 */
#define ETHERNOT_REMOTE_BYTES 20

/*
 Performs the operation only after all earlier operations of the connection.
 */
#define ETHERNOT_FENCE_BEFORE 1

/*
 Performs all later operations of the connection only after this one.
 */
#define ETHERNOT_FENCE_AFTER 2

/*
 Strict order, as on a reliable connection of verbs.
 */
#define ETHERNOT_STRICT 4

/*
 Queues a completion at this endpoint when the operation succeeds.
 */
#define ETHERNOT_SIGNALLED 8

/*
 Notifies the peer of a write.
 */
#define ETHERNOT_NOTIFY 16

/*
 Sends `immediate` to the peer.
 */
#define ETHERNOT_IMMEDIATE 32

/*
 Allows the operation to wait until the next operation without this flag, the next poll or the
 next wait.
 */
#define ETHERNOT_MORE 64

/*
 The version of this header: major, minor and patch level, as `major * 1000000 + minor * 1000 + patch`.
 */
#define ETHERNOT_VERSION 1000

/*
 The result of a call. `ethernot_last_error` returns the text for all results except the first.
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
   The handle is null, of another kind, or freed.
   */
  ETHERNOT_RESULT_BAD_HANDLE = 2,
  /*
   The limit of a wait has expired; the awaited operation continues. Remedy: wait again.
   */
  ETHERNOT_RESULT_TIMED_OUT = 3,
  /*
   There is no event or no room at the moment. Remedy: poll, let operations end, and retry.
   */
  ETHERNOT_RESULT_AGAIN = 4,
  /*
   The connection or the endpoint has ended. Remedy: make another.
   */
  ETHERNOT_RESULT_CLOSED = 5,
  /*
   The peer is reachable and refused the connection. Remedy: check the service number.
   */
  ETHERNOT_RESULT_REFUSED = 6,
  /*
   No route leads to the peer, or no process answers there. Remedy: check that the peer's
   process runs.
   */
  ETHERNOT_RESULT_UNREACHABLE = 7,
  /*
   The name or number is in use already. Remedy: choose another.
   */
  ETHERNOT_RESULT_IN_USE = 8,
  /*
   An operation failed. The text says whether the peer refused it, was lost, or had no room.
   */
  ETHERNOT_RESULT_FAILED = 9,
  /*
   The operating system refused a request. The text names the request.
   */
  ETHERNOT_RESULT_SYSTEM = 10,
  /*
   The process is a forked child. Remedy: make a new endpoint in the child.
   */
  ETHERNOT_RESULT_FORKED = 11,
  /*
   A bug in the library. The endpoint may be in any state.
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
   A message sent by this side has arrived at the peer.
   */
  ETHERNOT_COMPLETION_KIND_SEND = 4,
  /*
   A posted receive contains a message.
   */
  ETHERNOT_COMPLETION_KIND_RECEIVE = 5,
  /*
   The peer has written to this side with a notification.
   */
  ETHERNOT_COMPLETION_KIND_NOTIFICATION = 6,
  /*
   Any other kind.
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
 The kind of an event for `ethernot_wait_any`.
 */
enum ethernot_awaited_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   A connection request. The handle is a listener.
   */
  ETHERNOT_AWAITED_KIND_REQUEST = 1,
  /*
   A completion. The handle is a connection.
   */
  ETHERNOT_AWAITED_KIND_COMPLETION = 2,
  /*
   The end of a connection, which is the handle. A connection that has ended is always ready.
   */
  ETHERNOT_AWAITED_KIND_END = 3,
  /*
   The end of an operation, which is the handle.
   */
  ETHERNOT_AWAITED_KIND_OPERATION = 4,
  /*
   A message. The handle is a receive.
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
 How the library's threads that serve peers wait while the program does other work.
 */
enum ethernot_waiting
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   The threads spin as long as spinning costs less than the sleeps that it saves.
   */
  ETHERNOT_WAITING_ADAPTIVE = 0,
  /*
   The threads sleep at once.
   */
  ETHERNOT_WAITING_SLEEP = 1,
  /*
   The threads spin for `spin_us` of the options after the last work.
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
 One side of remote memory access: links, memory and connections of a process.
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
 Options of a connection. All zeros are the defaults.
 */
typedef struct ethernot_connect_options {
  /*
   `sizeof` the structure when the program was compiled; 0 means the size in the first version
   of the library.
   */
  size_t size;
  /*
   Private data for the peer, sent with the request or its acceptance, at most 512 bytes.
   */
  const void *private_data;
  /*
   The length of `private_data` in bytes.
   */
  size_t private_data_length;
  /*
   Limit of the attempt in milliseconds. 0 means 30 s. Negative means as long as the peer's
   host reports that its program has not decided. The attempt ends earlier if that host is
   silent for 5 s.
   */
  int64_t timeout_ms;
  /*
   Number of the peer's listener; for `ethernot_connect` only.
   */
  uint32_t service;
  /*
   Number of completions, notifications and receives that may wait to be polled; 0 means 256.
   */
  uint32_t completions;
} ethernot_connect_options;

/*
 Options of an endpoint. All zeros are the defaults: UDP on every usable interface, on free
 ports.
 */
typedef struct ethernot_endpoint_options {
  /*
   `sizeof` the structure when the program was compiled; 0 means the size in the first version
   of the library.
   */
  size_t size;
  /*
   Links by name, such as "eth0,packet:eth1". Null means the default links, or only the link of
   `address`.
   */
  const char *links;
  /*
   Address of a UDP link in addition to those of `links`, such as "127.0.0.1:0"; null for none.
   */
  const char *address;
  /*
   Port of links that do not name one; 0 for a free port.
   */
  uint16_t port;
  /*
   If not 0, the library has no thread that serves the endpoint; only calls serve it.
   */
  uint8_t without_progress_thread;
  /*
   If not 0, that thread runs on `progress_processor` only.
   */
  uint8_t is_pinned;
  /*
   One of `ethernot_waiting`.
   */
  int32_t waiting;
  /*
   Spin time in microseconds, for `ETHERNOT_WAITING_SPIN_FOR`.
   */
  uint32_t spin_us;
  /*
   The processor on which that thread runs if `is_pinned` is not 0, numbered as in the kernel.
   */
  uint32_t progress_processor;
} ethernot_endpoint_options;

/*
 A region of a peer: its address, length and key.
 */
typedef struct ethernot_remote {
  /*
   Address of the first byte, as the peer addresses it.
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
 Ordering, notification and completion of an operation. All zeros are the defaults: relaxed
 order, and only the handle reports the end.
 */
typedef struct ethernot_operation_options {
  /*
   `sizeof` the structure when the program was compiled; 0 means the size in the first version
   of the library.
   */
  size_t size;
  /*
   Returned in the completion.
   */
  uint64_t context;
  /*
   Sum of `ETHERNOT_FENCE_BEFORE` and the other flags.
   */
  uint32_t flags;
  /*
   The 32-bit value for the peer, with `ETHERNOT_IMMEDIATE`.
   */
  uint32_t immediate;
} ethernot_operation_options;

/*
 The result of an operation or a receive, or a notification.
 */
typedef struct ethernot_completion {
  /*
   The context with which the program posted; 0 for a notification.
   */
  uint64_t context;
  /*
   For an atomic, the old value. For a notification, the address that was written.
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
   The number of transferred bytes.
   */
  uint32_t bytes;
  /*
   The immediate of a message or notification.
   */
  uint32_t immediate;
  /*
   Not 0 if there is an immediate.
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
   Not 0 if there is an immediate.
   */
  uint32_t has_immediate;
} ethernot_message;

/*
 An event that `ethernot_wait_any` waits for.
 */
typedef struct ethernot_awaited {
  /*
   A handle of the type that `kind` requires.
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
 The event that `ethernot_wait_any` returns.
 */
typedef struct ethernot_found {
  /*
   Index of the event in the awaited ones.
   */
  size_t index;
  /*
   For `ETHERNOT_AWAITED_KIND_REQUEST`, the request, as from `ethernot_accept`. Otherwise null.
   */
  struct ethernot_request *request;
  /*
   For `ETHERNOT_AWAITED_KIND_COMPLETION`, the completion. Otherwise all zeros except its kind.
   */
  struct ethernot_completion completion;
  /*
   For `ETHERNOT_AWAITED_KIND_OPERATION`, the old value of an atomic. Otherwise 0.
   */
  uint64_t value;
  /*
   `ETHERNOT_RESULT_FAILED` for a failed operation or message, `ETHERNOT_RESULT_CLOSED` for the
   end of a connection, otherwise `ETHERNOT_RESULT_OK`.
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
 Requests a connection as `ethernot_connect` does, but returns before the peer has answered.
 `ethernot_attempt_wait` or `ethernot_attempt_test` returns the connection. `timeout_ms` of the
 options limits only the search for MAC addresses. If the peer is given by a host name, this call
 resolves the name and may block. Free the attempt by `ethernot_attempt_free`.
 */
ethernot_result ethernot_connect_start(struct ethernot_endpoint *endpoint,
                                       const char *peer,
                                       const struct ethernot_connect_options *options,
                                       struct ethernot_attempt **attempt);

/*
 Accepts a request as `ethernot_request_accept` does, but returns before the peer has confirmed
 the acceptance. Frees the request. `timeout_ms` of the options is ignored. Free the attempt by
 `ethernot_attempt_free`.
 */
ethernot_result ethernot_request_accept_start(struct ethernot_request *request,
                                              const struct ethernot_connect_options *options,
                                              struct ethernot_attempt **attempt);

/*
 Waits for the connection. The call may be repeated after `ETHERNOT_RESULT_TIMED_OUT`. The
 outcome is returned once; later calls return `ETHERNOT_RESULT_INVALID` or
 `ETHERNOT_RESULT_CLOSED`.
 */
ethernot_result ethernot_attempt_wait(struct ethernot_attempt *attempt,
                                      int64_t timeout_ms,
                                      struct ethernot_connection **connection);

/*
 Returns the connection, if it is established. Returns `ETHERNOT_RESULT_AGAIN` while it is
 pending, or while another thread waits for it. Otherwise returns the result of
 `ethernot_attempt_wait`.
 */
ethernot_result ethernot_attempt_test(struct ethernot_attempt *attempt,
                                      struct ethernot_connection **connection);

/*
 Frees an attempt. Cancels it if its outcome has not been returned.
 */
ethernot_result ethernot_attempt_free(struct ethernot_attempt *attempt);

/*
 Listens for connection requests to `service`, a number that both sides agree on. Free the
 listener by `ethernot_listener_free`.
 */
ethernot_result ethernot_listen(struct ethernot_endpoint *endpoint,
                                uint32_t service,
                                struct ethernot_listener **listener);

/*
 Stops listening, and rejects the pending requests.
 */
ethernot_result ethernot_listener_free(struct ethernot_listener *listener);

/*
 Waits for the next request. Accepting or rejecting the request frees it.
 */
ethernot_result ethernot_accept(struct ethernot_listener *listener,
                                int64_t timeout_ms,
                                struct ethernot_request **request);

/*
 Copies the private data of the peer's request, at most `capacity` bytes. Writes the full length
 to `length`, unless `length` is null.
 */
ethernot_result ethernot_request_data(struct ethernot_request *request, void *data, size_t capacity, size_t *length);

/*
 Accepts a request, waits until the peer has confirmed the acceptance, and frees the request.
 `options` may be null.
 */
ethernot_result ethernot_request_accept(struct ethernot_request *request,
                                        const struct ethernot_connect_options *options,
                                        struct ethernot_connection **connection);

/*
 Rejects a request, sends the peer up to 512 bytes of private data, and frees the request.
 */
ethernot_result ethernot_request_reject(struct ethernot_request *request, const void *data, size_t length);

/*
 Connects to a listening peer at an address such as "10.0.0.2:7000". `options` may be null. Free
 the connection by `ethernot_connection_free`.
 */
ethernot_result ethernot_connect(struct ethernot_endpoint *endpoint,
                                 const char *peer,
                                 const struct ethernot_connect_options *options,
                                 struct ethernot_connection **connection);

/*
 Copies the private data of the peer's request or acceptance, at most `capacity` bytes. Writes
 the full length to `length`, unless `length` is null.
 */
ethernot_result ethernot_connection_data(struct ethernot_connection *connection,
                                         void *data,
                                         size_t capacity,
                                         size_t *length);

/*
 Closes a connection and sends the peer up to 128 bytes of private data. Pending operations and
 receives fail. The handle stays valid.
 */
ethernot_result ethernot_connection_close(struct ethernot_connection *connection, const void *data, size_t length);

/*
 Waits until a connection has ended. Then returns `ETHERNOT_RESULT_CLOSED`, and
 `ethernot_last_error` returns the reason.
 */
ethernot_result ethernot_connection_wait_closed(struct ethernot_connection *connection, int64_t timeout_ms);

/*
 Frees a connection. The connection is closed once the handles of its operations are freed, too.
 */
ethernot_result ethernot_connection_free(struct ethernot_connection *connection);

/*
 Makes an endpoint. `options` may be null. Free the endpoint by `ethernot_endpoint_free`.
 */
ethernot_result ethernot_endpoint_open(const struct ethernot_endpoint_options *options,
                                       struct ethernot_endpoint **endpoint);

/*
 Frees an endpoint. It stays open while its connections, listeners or operations exist; freeing
 the last of them closes its connections. That call waits at most one millisecond for peers to
 confirm. If peers are silent, a thread of the library waits for them, for at most one second.
 */
ethernot_result ethernot_endpoint_free(struct ethernot_endpoint *endpoint);

/*
 Waits until the operations of all connections are complete, closes the connections, and waits
 until the peers have confirmed that.
 */
ethernot_result ethernot_endpoint_shutdown(struct ethernot_endpoint *endpoint, int64_t timeout_ms);

/*
 Makes progress, unless another thread does. For endpoints without a progress thread.
 */
ethernot_result ethernot_endpoint_drive(struct ethernot_endpoint *endpoint);

/*
 Returns a descriptor for event loops. After `ethernot_endpoint_arm`, it becomes readable at the
 next event. It belongs to the endpoint: the program must neither read nor close it.
 */
ethernot_result ethernot_endpoint_descriptor(struct ethernot_endpoint *endpoint, int32_t *descriptor);

/*
 Arms the descriptor: it becomes readable at the next completion, end of an operation, request,
 or end of a connection. Returns `ETHERNOT_RESULT_AGAIN` if an event has occurred since the last
 call: check for events before sleeping. Without a progress thread, always returns
 `ETHERNOT_RESULT_AGAIN`.
 */
ethernot_result ethernot_endpoint_arm(struct ethernot_endpoint *endpoint);

/*
 Makes the descriptor unreadable. `ethernot_endpoint_arm` does this, too.
 */
ethernot_result ethernot_endpoint_drain(struct ethernot_endpoint *endpoint);

/*
 Writes the address at which peers reach the UDP link with this number, as a string that ends
 with a zero byte: "127.0.0.1:7000". Returns `ETHERNOT_RESULT_INVALID` if there is no such link
 or not enough room; 64 bytes are always enough.
 */
ethernot_result ethernot_endpoint_address(struct ethernot_endpoint *endpoint,
                                          uint32_t link,
                                          char *text,
                                          size_t capacity);

/*
 Returns the text of the last error of a call by this thread, or an empty string. The text is
 valid until the next call by this thread, and must not be freed.
 */
const char *ethernot_last_error(void);

/*
 Returns the name of a result, such as "timed out". Returns "unknown" for any other number.
 */
const char *ethernot_result_name(int32_t result);

/*
 Allocates zeroed memory and registers it. Free it by `ethernot_memory_free`.
 */
ethernot_result ethernot_memory_allocate(struct ethernot_endpoint *endpoint,
                                         uint64_t length,
                                         uint32_t rights,
                                         struct ethernot_memory **memory);

/*
 Registers memory of the program, which must stay mapped until `ethernot_memory_free` has
 returned.
 */
ethernot_result ethernot_memory_register(struct ethernot_endpoint *endpoint,
                                         void *start,
                                         uint64_t length,
                                         uint32_t rights,
                                         struct ethernot_memory **memory);

/*
 Returns the address of the memory, and its length in bytes. Peers write to it at any time. Read
 their data by atomics or volatile accesses, after a completion reports its arrival.
 */
ethernot_result ethernot_memory_data(struct ethernot_memory *memory, void **data, uint64_t *length);

/*
 Returns the description with which peers can reach the memory.
 */
ethernot_result ethernot_memory_remote(struct ethernot_memory *memory, struct ethernot_remote *remote);

/*
 Deregisters memory. Peers cannot reach it once this call has returned.

 Memory that the library allocated must not be touched by the program afterwards. Pending
 operations that use it continue, and the library frees it when the last of them has ended.
 Memory of the program is no longer touched by the library once this call has returned. Pending
 operations that still need it end their connection.
 */
ethernot_result ethernot_memory_free(struct ethernot_memory *memory);

/*
 Encodes the description of a region in `ETHERNOT_REMOTE_BYTES` bytes.
 */
ethernot_result ethernot_remote_to_bytes(const struct ethernot_remote *remote, uint8_t *bytes);

/*
 Decodes the description of a region.
 */
ethernot_result ethernot_remote_from_bytes(const void *bytes, size_t length, struct ethernot_remote *remote);

/*
 Copies bytes of local memory to the peer's memory. They must not change until the operation is
 complete.

 For every call that posts an operation: `options` may be null. Free the handle by
 `ethernot_operation_free`. If `operation` is null, the operation has no handle, and its result
 is not available.
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
 Writes up to 64 bytes. They are copied during the call.
 */
ethernot_result ethernot_write_bytes(struct ethernot_connection *connection,
                                     const void *bytes,
                                     size_t length,
                                     const struct ethernot_remote *remote,
                                     uint64_t remote_offset,
                                     const struct ethernot_operation_options *options,
                                     struct ethernot_operation **operation);

/*
 Copies bytes of the peer's memory to local memory, which needs the right `ETHERNOT_LOCAL_WRITE`.
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
 Stores `swap` in a 64-bit word of the peer's memory if the word equals `compare`.
 `ethernot_operation_wait` returns the old value.
 */
ethernot_result ethernot_compare_swap(struct ethernot_connection *connection,
                                      const struct ethernot_remote *remote,
                                      uint64_t remote_offset,
                                      uint64_t compare,
                                      uint64_t swap,
                                      const struct ethernot_operation_options *options,
                                      struct ethernot_operation **operation);

/*
 Sends a message. It consumes a receive of the peer, posted before or after.
 */
ethernot_result ethernot_send(struct ethernot_connection *connection,
                              struct ethernot_memory *memory,
                              uint64_t offset,
                              uint64_t length,
                              const struct ethernot_operation_options *options,
                              struct ethernot_operation **operation);

/*
 Sends a message of up to 64 bytes. They are copied during the call.
 */
ethernot_result ethernot_send_bytes(struct ethernot_connection *connection,
                                    const void *bytes,
                                    size_t length,
                                    const struct ethernot_operation_options *options,
                                    struct ethernot_operation **operation);

/*
 Posts a receive without a handle for one message. The memory needs the right
 `ETHERNOT_LOCAL_WRITE`. A completion of the connection reports the message, with `context` and
 the kind `ETHERNOT_COMPLETION_KIND_RECEIVE`. This suits programs in which one thread polls all
 completions (`ethernot_poll`, `ethernot_wait_completion`). `ethernot_receive_post` makes a
 receive with a handle instead.
 */
ethernot_result ethernot_post_receive(struct ethernot_connection *connection,
                                      struct ethernot_memory *memory,
                                      uint64_t offset,
                                      uint32_t length,
                                      uint64_t context);

/*
 Waits until an operation is complete. Writes the old value of an atomic to `value`, unless
 `value` is null. The call may be repeated after `ETHERNOT_RESULT_TIMED_OUT`.
 */
ethernot_result ethernot_operation_wait(struct ethernot_operation *operation, int64_t timeout_ms, uint64_t *value);

/*
 Returns the state of an operation: `ETHERNOT_RESULT_OK` if it is complete,
 `ETHERNOT_RESULT_FAILED` if it has failed, `ETHERNOT_RESULT_AGAIN` if it is pending. Does not
 make progress.
 */
ethernot_result ethernot_operation_test(struct ethernot_operation *operation);

/*
 Frees the handle of an operation. The operation continues.
 */
ethernot_result ethernot_operation_free(struct ethernot_operation *operation);

/*
 Returns the oldest completion of a connection, after making progress if necessary. Returns
 `ETHERNOT_RESULT_AGAIN` if there is none.
 */
ethernot_result ethernot_poll(struct ethernot_connection *connection, struct ethernot_completion *completion);

/*
 Waits for a completion of a connection. Returns `ETHERNOT_RESULT_CLOSED` if the connection has
 ended and no completion is left.
 */
ethernot_result ethernot_wait_completion(struct ethernot_connection *connection,
                                         int64_t timeout_ms,
                                         struct ethernot_completion *completion);

/*
 Posts a receive with a handle for one message of at most `length` bytes. The memory needs the
 right `ETHERNOT_LOCAL_WRITE`. `ethernot_receive_wait` returns the message; no completion reports
 it. This suits programs whose threads share a connection. `ethernot_post_receive` makes a
 receive without a handle instead. Messages consume the receives of a connection, of both kinds,
 in the order of their posts.

 For every call that makes a receive: free it by `ethernot_receive_free`. If a receive is freed
 before its message was read, the next `ethernot_receive_post` takes it over, including its
 buffer. So read the bytes by `ethernot_receive_wait`.
 */
ethernot_result ethernot_receive_post(struct ethernot_connection *connection,
                                      struct ethernot_memory *memory,
                                      uint64_t offset,
                                      uint32_t length,
                                      struct ethernot_receive **receive);

/*
 Sends a question and posts a buffer for the answer, in one step. The question's bytes must not
 change until the answer has arrived. If several threads ask and the peer answers in order, each
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
 Sends a question as `ethernot_call` does, of up to 64 bytes. They are copied during the call.
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
 Waits for the message of a receive, and copies at most `capacity` bytes of it to `bytes`, which
 may be null. The call may be repeated after `ETHERNOT_RESULT_TIMED_OUT`. After the message has
 arrived, each call returns the message again.
 */
ethernot_result ethernot_receive_wait(struct ethernot_receive *receive,
                                      int64_t timeout_ms,
                                      void *bytes,
                                      size_t capacity,
                                      struct ethernot_message *message);

/*
 Returns `ETHERNOT_RESULT_OK` if the message has arrived or the receive has failed, and
 `ETHERNOT_RESULT_AGAIN` otherwise. Does not make progress.
 */
ethernot_result ethernot_receive_test(struct ethernot_receive *receive);

/*
 Frees the handle of a receive. If its message was not read, the next `ethernot_receive_post` of
 the connection returns it.
 */
ethernot_result ethernot_receive_free(struct ethernot_receive *receive);

/*
 Returns the version of the library that the program is running with, in the form of
 `ETHERNOT_VERSION`.
 */
uint32_t ethernot_version(void);

/*
 Waits until one of `count` events of one endpoint has occurred. The events are checked in their
 order, so an earlier one has priority. The call removes a returned request or completion from
 its queue. A message stays in its receive, for `ethernot_receive_wait`.
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
