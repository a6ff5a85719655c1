/* SPDX-License-Identifier: Apache-2.0
 *
 * Patches and swaps at a server in Rust. The server announces a region of REGION bytes. With the argument "refused",
 * the server does not offer these operations. */
#include <ethernot.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AREA 4096u
#define RECORDS_MAX (AREA / 128u * 136u)
#define SWAPPED AREA
#define REGION (AREA + 8u)
#define LIMIT_MS 20000

/* The words that the patch changes: first and last of a block, first of the next block, last of the area. */
static const size_t CHANGED[] = {0, 31, 32, 1023};
/* Two records of one word, and one record of two words. */
#define RECORDS_BYTES (3u * 8u + 4u * 4u)

static ethernot_connection *connection;
static ethernot_memory *memory;
static ethernot_remote remote;
static unsigned char *records;

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
        fprintf(stderr, "%s: not as expected; last error: %s\n", what, ethernot_last_error());
        exit(1);
    }
}

static uint64_t end(ethernot_operation *operation, const char *what)
{
    uint64_t value = 0;
    check(ethernot_operation_wait(operation, LIMIT_MS, &value), what);
    check(ethernot_operation_free(operation), what);
    return value;
}

/* Posts a patch that must be rejected at once, and returns the result. */
static ethernot_result posted(uint64_t remote_offset, uint64_t length, uint32_t flags)
{
    ethernot_operation *operation = NULL;
    ethernot_operation_options options = {.size = sizeof options, .flags = flags};
    ethernot_result result =
        ethernot_patch(connection, memory, 0, &remote, remote_offset, length, &options, &operation);
    expect(operation == NULL, "a rejected patch has no handle");
    return result;
}

/* Changes words of `after`, and encodes them. Checks that the function rejects wrong sizes without effect. */
static void encode(const unsigned char *before, unsigned char *after)
{
    size_t used = 77;
    memcpy(after, before, AREA);
    for (size_t at = 0; at < sizeof CHANGED / sizeof *CHANGED; at++)
        after[4 * CHANGED[at] + at % 4] ^= 0xff;
    memset(records, 0xaa, RECORDS_MAX);
    expect(ethernot_patch_encode(before, after, AREA, records, RECORDS_BYTES - 1, &used) == ETHERNOT_RESULT_INVALID,
           "too little room");
    expect(ethernot_patch_encode(before, after, 6, records, RECORDS_MAX, &used) == ETHERNOT_RESULT_INVALID,
           "an area that ends in the middle of a word");
    expect(ethernot_patch_encode(before, NULL, AREA, records, RECORDS_MAX, &used) == ETHERNOT_RESULT_INVALID,
           "no new content");
    expect(ethernot_patch_encode(before, after, AREA, NULL, 0, &used) == ETHERNOT_RESULT_INVALID, "no room");
    expect(ethernot_patch_encode(before, after, AREA, records, RECORDS_MAX, NULL) == ETHERNOT_RESULT_INVALID,
           "no place for the length");
    expect(used == 77 && records[0] == 0xaa, "a rejected call changes nothing");
    check(ethernot_patch_encode(before, before, AREA, records, RECORDS_MAX, &used), "encode equal areas");
    expect(used == 0 && records[0] == 0xaa, "equal areas have no records");
    check(ethernot_patch_encode(before, after, AREA, records, RECORDS_BYTES, &used), "encode");
    expect(used == RECORDS_BYTES && records[used] == 0xaa, "the room is exactly enough");
}

static void patch(void)
{
    ethernot_operation *patch = NULL;
    ethernot_completion completion;
    ethernot_operation_options options = {.size = sizeof options, .context = 9, .immediate = 5};
    expect(posted(0, RECORDS_BYTES, ETHERNOT_STRICT) == ETHERNOT_RESULT_INVALID, "a strict patch");
    expect(posted(2, RECORDS_BYTES, 0) == ETHERNOT_RESULT_INVALID, "an area that is not aligned");
    expect(posted(0, RECORDS_BYTES - 1, 0) == ETHERNOT_RESULT_INVALID, "records that are not whole");
    options.flags = ETHERNOT_SIGNALLED | ETHERNOT_NOTIFY | ETHERNOT_IMMEDIATE;
    check(ethernot_patch(connection, memory, 0, &remote, 0, RECORDS_BYTES, &options, &patch), "patch");
    expect(end(patch, "patch") == 0, "a patch returns no value");
    check(ethernot_wait_completion(connection, LIMIT_MS, &completion), "wait for the completion");
    expect(completion.kind == ETHERNOT_COMPLETION_KIND_PATCH && completion.context == 9, "the completion of the patch");
    expect(completion.result == ETHERNOT_RESULT_OK && completion.bytes == RECORDS_BYTES, "the result of the patch");
}

static void swap(void)
{
    ethernot_operation *swap = NULL;
    expect(ethernot_swap(connection, &remote, REGION - 4, 1, NULL, &swap) == ETHERNOT_RESULT_INVALID && swap == NULL,
           "a swap that leaves the region");
    for (uint64_t value = 41; value < 43; value++) {
        check(ethernot_swap(connection, &remote, SWAPPED, value, NULL, &swap), "swap");
        printf("%" PRIu64 "\n", end(swap, "swap"));
    }
}

static void refused(void)
{
    ethernot_operation *swap = NULL;
    expect(ethernot_swap(connection, &remote, SWAPPED, 1, NULL, &swap) == ETHERNOT_RESULT_INVALID && swap == NULL,
           "a swap without the feature");
    printf("%s\n", ethernot_last_error());
    expect(posted(0, RECORDS_BYTES, 0) == ETHERNOT_RESULT_INVALID, "a patch without the feature");
    printf("%s\n", ethernot_last_error());
}

int main(int argc, char **argv)
{
    static unsigned char before[AREA], after[AREA];
    ethernot_endpoint *endpoint = NULL;
    ethernot_operation *read = NULL;
    unsigned char described[ETHERNOT_REMOTE_BYTES];
    size_t length = 0;
    void *data = NULL;
    if (argc < 2)
        return 2;
    check(ethernot_endpoint_open(NULL, &endpoint), "endpoint");
    check(ethernot_memory_allocate(endpoint, RECORDS_MAX, ETHERNOT_LOCAL_WRITE, &memory), "memory");
    check(ethernot_memory_data(memory, &data, NULL), "memory");
    records = data;
    check(ethernot_connect(endpoint, argv[1], NULL, &connection), "connect");
    check(ethernot_connection_data(connection, described, sizeof described, &length), "region");
    check(ethernot_remote_from_bytes(described, length, &remote), "region");
    expect(remote.length == REGION, "the region of the server");
    check(ethernot_read(connection, memory, 0, &remote, 0, AREA, NULL, &read), "read");
    end(read, "read");
    memcpy(before, records, AREA);
    encode(before, after);
    if (argc > 2 && strcmp(argv[2], "refused") == 0) {
        refused();
    } else {
        patch();
        swap();
        check(ethernot_read(connection, memory, 0, &remote, 0, AREA, NULL, &read), "read");
        end(read, "read");
        expect(memcmp(records, after, AREA) == 0, "the area after the patch");
    }
    check(ethernot_connection_free(connection), "free");
    check(ethernot_memory_free(memory), "free");
    check(ethernot_endpoint_free(endpoint), "free");
    return 0;
}
