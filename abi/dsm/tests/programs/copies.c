/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes to the memory of another process of this host over shared memory, and prints the speed in MiB/s.
 *
 *     copies serve [LIBRARY]              prints its address, and serves one client
 *     copies ADDRESS COUNT [LIBRARY]      writes COUNT times 1 MiB
 *
 * With LIBRARY, the path of libethernot-dsm.so, the process joins a shared memory of one rank first, so that two
 * libraries handle page faults in it. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <ethernot.h>
#include <ethernot_dsm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PIECE (1u << 20)
#define REGION (8u * PIECE)
#define IN_FLIGHT 4u
#define LIMIT_MS 20000

static ethernot_endpoint *endpoint;
static ethernot_connection *connection;

static void check(ethernot_result result, const char *what)
{
    if (result != ETHERNOT_RESULT_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, ethernot_result_name(result), ethernot_last_error());
        exit(1);
    }
}

static void expect(int is_right, const char *what)
{
    if (!is_right) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

/* A function of a loaded library. POSIX requires that this conversion works. */
static void find(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);
    expect(found != NULL, name);
    memcpy(function, &found, sizeof found);
}

/* Joins a shared memory of one rank, and has a write to it found. */
static void join(const char *path)
{
    ethernot_dsm_options options = {.size = sizeof options, .region_bytes = PIECE};
    ethernot_dsm_result (*init)(const ethernot_dsm_options *);
    ethernot_dsm_result (*alloc)(size_t, uint32_t, size_t, void **);
    ethernot_dsm_result (*barrier)(void);
    void *memory = NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    expect(library != NULL, "dlopen");
    find(library, "ethernot_dsm_init", &init);
    find(library, "ethernot_dsm_alloc", &alloc);
    find(library, "ethernot_dsm_barrier", &barrier);
    expect(init(&options) == ETHERNOT_DSM_RESULT_OK, "join");
    expect(alloc(4096, 0, 0, &memory) == ETHERNOT_DSM_RESULT_OK, "allocate");
    *(volatile int *)memory = 1;
    expect(barrier() == ETHERNOT_DSM_RESULT_OK, "barrier");
}

static void serve(void)
{
    ethernot_listener *listener = NULL;
    ethernot_request *request = NULL;
    ethernot_memory *memory = NULL;
    ethernot_remote remote;
    uint8_t described[ETHERNOT_REMOTE_BYTES];
    char address[64];
    ethernot_connect_options options = {
        .size = sizeof options, .private_data = described, .private_data_length = sizeof described};
    check(ethernot_memory_allocate(endpoint, REGION, ETHERNOT_REMOTE_READ | ETHERNOT_REMOTE_WRITE, &memory), "memory");
    check(ethernot_memory_remote(memory, &remote), "region");
    check(ethernot_remote_to_bytes(&remote, described), "region");
    check(ethernot_listen(endpoint, 0, &listener), "listen");
    check(ethernot_endpoint_address(endpoint, 0, address, sizeof address), "address");
    printf("%s\n", address);
    fflush(stdout);
    check(ethernot_accept(listener, LIMIT_MS, &request), "accept");
    check(ethernot_request_accept(request, &options, &connection), "accept");
    expect(ethernot_connection_wait_closed(connection, -1) == ETHERNOT_RESULT_CLOSED, "the peer closes the connection");
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void end(ethernot_operation *operation)
{
    check(ethernot_operation_wait(operation, LIMIT_MS, NULL), "wait");
    check(ethernot_operation_free(operation), "free");
}

static void copy(const char *address, unsigned count)
{
    ethernot_memory *memory = NULL;
    ethernot_operation *writes[IN_FLIGHT] = {NULL}, *read = NULL;
    ethernot_remote remote;
    uint8_t described[ETHERNOT_REMOTE_BYTES];
    size_t length = 0;
    void *data = NULL;
    check(ethernot_memory_allocate(endpoint, REGION, ETHERNOT_LOCAL_WRITE, &memory), "memory");
    check(ethernot_memory_data(memory, &data, NULL), "memory");
    check(ethernot_connect(endpoint, address, NULL, &connection), "connect");
    check(ethernot_connection_data(connection, described, sizeof described, &length), "region");
    check(ethernot_remote_from_bytes(described, length, &remote), "region");
    for (unsigned char *byte = data; byte < (unsigned char *)data + PIECE; byte++)
        *byte = (unsigned char)((byte - (unsigned char *)data) % 251);
    double began = seconds();
    for (unsigned at = 0; at < count + IN_FLIGHT; at++) {
        ethernot_operation **write = &writes[at % IN_FLIGHT];
        if (at >= IN_FLIGHT)
            end(*write);
        if (at < count)
            check(ethernot_write(connection, memory, 0, &remote, at % 8 * PIECE, PIECE, NULL, write), "write");
    }
    printf("%.1f\n", count / (seconds() - began));
    check(ethernot_read(connection, memory, PIECE, &remote, (count - 1) % 8 * PIECE, PIECE, NULL, &read), "read");
    end(read);
    expect(memcmp(data, (unsigned char *)data + PIECE, PIECE) == 0, "the peer's memory has other bytes");
    check(ethernot_connection_close(connection, NULL, 0), "close");
}

int main(int argc, char **argv)
{
    ethernot_endpoint_options options = {.size = sizeof options, .links = "shm", .address = "127.0.0.1:0"};
    int serves = argc > 1 && strcmp(argv[1], "serve") == 0;
    int given = serves ? 2 : 3;
    expect(argc == given || argc == given + 1, "usage: copies serve [LIBRARY] | copies ADDRESS COUNT [LIBRARY]");
    if (argc > given)
        join(argv[given]);
    check(ethernot_endpoint_open(&options, &endpoint), "endpoint");
    if (serves)
        serve();
    else
        copy(argv[1], (unsigned)strtoul(argv[2], NULL, 10));
    check(ethernot_endpoint_free(endpoint), "free");
    return 0;
}
