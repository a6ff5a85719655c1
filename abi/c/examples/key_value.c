/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of the key-value store in crates/ethernot/examples/key_value. That example documents the layout of the
 * server's memory. A get is a single read of that memory, and needs no action of the server's program. A put is either
 * a compare-and-swap followed by writes, or a message to the server's program.
 *
 *     cc $(pkg-config --cflags ethernot) key_value.c -o key_value $(pkg-config --libs ethernot)
 *     ./key_value 127.0.0.1:7000 put 42 "a value"
 *     ./key_value 127.0.0.1:7000 message 42 "another value"
 *     ./key_value 127.0.0.1:7000 get 42
 */
#include <ethernot.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROBES 8u
#define VALUE_MAX 96u
#define LIMIT_MS 20000

/* All numbers are little-endian. This example runs on little-endian processors only. */
struct slot {
    uint64_t version; /* 0: the slot is free. Odd: a client is writing it. */
    uint64_t key;
    uint64_t length;
    unsigned char value[VALUE_MAX];
    uint64_t checksum;
};

enum { READ, WRITTEN, ANSWER, PLACES };

struct client {
    ethernot_connection *connection;
    ethernot_memory *memory;
    ethernot_remote table;
    struct slot *scratch;
};

static void check(ethernot_result result, const char *what)
{
    if (result != ETHERNOT_RESULT_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, ethernot_result_name(result), ethernot_last_error());
        exit(1);
    }
}

static uint64_t sum_of(const struct slot *slot)
{
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t at = 0; at + 8 < sizeof *slot; at += 8) {
        uint64_t word;
        memcpy(&word, (const unsigned char *)slot + at, 8);
        sum = (sum ^ word) * 0x100000001b3u;
        sum = sum << 23 | sum >> 41;
    }
    return sum;
}

static bool is_whole(const struct slot *slot)
{
    return slot->version == 0 || (slot->version % 2 == 0 && slot->checksum == sum_of(slot));
}

/* Finds the slot of a key, or a free slot for the key. Returns false if neither exists. */
static bool find(struct client *client, uint64_t key, uint64_t *at, struct slot *slot)
{
    uint64_t slots = client->table.length / sizeof *slot;
    uint64_t first = (key * 0x9e3779b97f4a7c15u >> 32) * (slots - PROBES + 1) >> 32;
    for (uint64_t index = first; index < first + PROBES; index++) {
        *at = index * sizeof *slot;
        do {
            ethernot_operation *read = NULL;
            check(ethernot_read(client->connection, client->memory, READ * sizeof *slot, &client->table, *at,
                                sizeof *slot, NULL, &read),
                  "read");
            check(ethernot_operation_wait(read, LIMIT_MS, NULL), "read");
            check(ethernot_operation_free(read), "free");
            *slot = client->scratch[READ];
        } while (!is_whole(slot));
        if (slot->version == 0 || slot->key == key)
            return true;
    }
    return false;
}

static struct slot made(uint64_t version, uint64_t key, const char *value)
{
    struct slot slot;
    memset(&slot, 0, sizeof slot);
    slot.version = version;
    slot.key = key;
    slot.length = strlen(value) < VALUE_MAX ? strlen(value) : VALUE_MAX;
    memcpy(slot.value, value, slot.length);
    slot.checksum = sum_of(&slot);
    return slot;
}

static bool put_by_swap(struct client *client, uint64_t key, const char *value)
{
    uint64_t at, seen;
    struct slot slot;
    for (;;) {
        ethernot_operation *swap = NULL, *last = NULL;
        if (!find(client, key, &at, &slot))
            return false;
        check(ethernot_compare_swap(client->connection, &client->table, at, slot.version, slot.version + 1, NULL, &swap),
              "compare and swap");
        check(ethernot_operation_wait(swap, LIMIT_MS, &seen), "compare and swap");
        check(ethernot_operation_free(swap), "free");
        if (seen != slot.version)
            continue; /* Another client has locked the slot. */
        client->scratch[WRITTEN] = made(slot.version + 2, key, value);
        check(ethernot_write(client->connection, client->memory, WRITTEN * sizeof slot + 8, &client->table, at + 8,
                             sizeof slot - 8, NULL, NULL),
              "write");
        /* Write the version last. The fence ensures that the peer places it after the rest of the slot. */
        ethernot_operation_options options = {.size = sizeof options};
        options.flags = ETHERNOT_FENCE_BEFORE;
        check(ethernot_write_bytes(client->connection, &client->scratch[WRITTEN].version, 8, &client->table, at,
                                   &options, &last),
              "write");
        check(ethernot_operation_wait(last, LIMIT_MS, NULL), "write");
        check(ethernot_operation_free(last), "free");
        return true;
    }
}

static bool put_by_message(struct client *client, uint64_t key, const char *value)
{
    ethernot_receive *answer = NULL;
    ethernot_message message;
    unsigned char is_put = 0;
    client->scratch[WRITTEN] = made(0, key, value);
    check(ethernot_call(client->connection, client->memory, WRITTEN * sizeof(struct slot), sizeof(struct slot),
                        client->memory, ANSWER * sizeof(struct slot), 1, NULL, &answer),
          "call");
    check(ethernot_receive_wait(answer, LIMIT_MS, &is_put, 1, &message), "answer");
    check(ethernot_receive_free(answer), "free");
    return message.length == 1 && is_put == 1;
}

int main(int argc, char **argv)
{
    ethernot_endpoint *endpoint = NULL;
    struct client client;
    unsigned char described[ETHERNOT_REMOTE_BYTES];
    size_t length = 0;
    void *data = NULL;
    if (argc < 4) {
        fprintf(stderr, "usage: key_value ADDRESS get KEY | put KEY VALUE | message KEY VALUE\n");
        return 2;
    }
    uint64_t key = strtoull(argv[3], NULL, 10);
    check(ethernot_endpoint_open(NULL, &endpoint), "endpoint");
    check(ethernot_memory_allocate(endpoint, PLACES * sizeof(struct slot), ETHERNOT_LOCAL_WRITE, &client.memory),
          "memory");
    check(ethernot_memory_data(client.memory, &data, NULL), "memory");
    client.scratch = data;
    check(ethernot_connect(endpoint, argv[1], NULL, &client.connection), "connect");
    check(ethernot_connection_data(client.connection, described, sizeof described, &length), "table");
    check(ethernot_remote_from_bytes(described, length, &client.table), "table");
    if (strcmp(argv[2], "get") == 0) {
        uint64_t at;
        struct slot slot;
        if (find(&client, key, &at, &slot) && slot.version != 0)
            printf("%.*s\n", (int)slot.length, (const char *)slot.value);
        else
            printf("none\n");
    } else if (argc > 4 && strcmp(argv[2], "put") == 0) {
        printf("%s\n", put_by_swap(&client, key, argv[4]) ? "true" : "false");
    } else if (argc > 4 && strcmp(argv[2], "message") == 0) {
        printf("%s\n", put_by_message(&client, key, argv[4]) ? "true" : "false");
    } else {
        fprintf(stderr, "%s is unknown, or lacks a value\n", argv[2]);
        return 2;
    }
    check(ethernot_connection_free(client.connection), "free");
    check(ethernot_memory_free(client.memory), "free");
    check(ethernot_endpoint_free(endpoint), "free");
    return 0;
}
