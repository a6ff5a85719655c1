/*
 * Mapped memory of rsockets: both ends are threads of this program. Usage: socket_mappings ADDRESS
 * Data written to mapped memory must be visible when a message sent later arrives. Writes that are impossible must
 * fail with an error.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

#define ROUNDS 300
#define BYTES 200000

static struct sockaddr_in address;
static int listener;

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

#define check(is_so) do { if (!(is_so)) fail(#is_so); } while (0)

static int fresh(int maps)
{
	int at = rsocket(AF_INET, SOCK_STREAM, 0);
	check(at >= 0);
	if (maps)
		check(!rsetsockopt(at, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof maps));
	return at;
}

/* Receives a number and compares it. */
static void expect(int at, uint32_t number)
{
	uint32_t came = ~number;
	check(rrecv(at, &came, sizeof came, MSG_WAITALL) == sizeof came);
	check(came == number);
}

static void say(int at, uint32_t number)
{
	check(rsend(at, &number, sizeof number, 0) == sizeof number);
}

/* Maps memory, and compares its content whenever the peer sends a number. */
static void *serve(void *unused)
{
	int at = raccept(listener, NULL, NULL);
	unsigned char *memory = calloc(1, BYTES);

	check(at >= 0 && memory);
	check(riomap(at, memory, BYTES, PROT_WRITE, 0, 4096) == 4096);
	say(at, 1);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		expect(at, round);
		for (int i = 0; i < BYTES; i++)
			if (memory[i] != (unsigned char)(round + i / 1000)) {
				fprintf(stderr, "round %u: byte %d is not there\n", round, i);
				exit(1);
			}
		say(at, round);
	}
	check(!riounmap(at, memory, BYTES));
	check(riounmap(at, memory, BYTES) == -1 && errno == EINVAL);
	say(at, 2);
	/* The end of the stream arrives after all data. */
	check(rrecv(at, memory, 1, 0) == 0);
	rclose(at);
	return unused;
}

/* Requests the connection that carries the mapped memory of a socket, and claims that the address of
   this socket is `from`. Returns whether the listener accepts the connection. */
static int is_let_in(const char *from)
{
	struct ibv_qp_init_attr pair = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	unsigned char said[38] = "rio1";
	struct rdma_conn_param asked = {
		.private_data = said, .private_data_len = sizeof said,
		.retry_count = 7, .rnr_retry_count = 7,
	};
	struct rdma_cm_id *id;
	int outcome;

	/* The private data: an IPv4-mapped IPv6 address, a port, and an empty table. */
	said[14] = said[15] = 0xff;
	check(inet_pton(AF_INET, from, said + 16) == 1);
	said[20] = 0x12;
	check(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	check(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	check(!rdma_resolve_route(id, 2000));
	check(!rdma_create_qp(id, NULL, &pair));
	outcome = rdma_connect(id, &asked);
	check(!outcome || errno == ECONNREFUSED);
	rdma_destroy_ep(id);
	return !outcome;
}

int main(int argc, char **argv)
{
	unsigned char *bytes = malloc(BYTES);
	int at, maps = 0, one = 1;
	socklen_t len = sizeof maps;
	pthread_t server;

	if (argc != 2)
		return 2;
	address.sin_family = AF_INET;
	check(inet_pton(AF_INET, argv[1], &address.sin_addr) == 1);
	listener = fresh(4);
	check(!rbind(listener, (struct sockaddr *)&address, sizeof address));
	len = sizeof address;
	check(!rgetsockname(listener, (struct sockaddr *)&address, &len));
	check(!rlisten(listener, 4));
	len = sizeof maps;
	check(!rgetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &maps, &len) && maps == 4);
	check(!pthread_create(&server, NULL, serve, NULL));

	at = fresh(2);
	check(!rconnect(at, (struct sockaddr *)&address, sizeof address));
	/* The size cannot be changed after connecting. */
	check(rsetsockopt(at, SOL_RDMA, RDMA_IOMAPSIZE, &one, sizeof one) == -1 && errno == EINVAL);
	expect(at, 1);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < BYTES; i++)
			bytes[i] = (unsigned char)(round + i / 1000);
		check(riowrite(at, bytes, BYTES / 2, 4096, 0) == BYTES / 2);
		/* After riowrite has returned, the program may change the memory. */
		memset(bytes, 0, BYTES / 2);
		check(riowrite(at, bytes + BYTES / 2, BYTES, 4096 + BYTES / 2, 0) == BYTES / 2);
		say(at, round);
		expect(at, round);
	}
	check(riowrite(at, bytes, 1, 4095, 0) == 0);
	expect(at, 2);
	/* The peer has unmapped the memory, so this write must transfer no byte. */
	check(riowrite(at, bytes, 1, 4096, 0) == 0);
	check(riomap(at, bytes, BYTES, PROT_READ, 0, 0) == -1 && errno == EINVAL);
	check(riomap(at, bytes, BYTES, PROT_NONE, 0, -1) == (off_t)(uintptr_t)bytes);
	check(!rclose(at));
	check(!pthread_join(server, NULL));

	/* A peer without room for mappings can still use streams. */
	at = fresh(0);
	check(!rconnect(at, (struct sockaddr *)&address, sizeof address));
	maps = raccept(listener, NULL, NULL);
	say(at, 7);
	expect(maps, 7);
	check(riomap(at, bytes, BYTES, PROT_WRITE, 0, 0) == -1 && errno == EINVAL);
	check(riomap(maps, bytes, BYTES, PROT_WRITE, 0, 0) == -1 && errno == ENOMEM);
	say(maps, 8);
	expect(at, 8);
	check(!rclose(at) && !rclose(maps));

	/* A peer must not claim the sockets of another host. Otherwise the peer could write to memory
	   that was mapped for the other host. */
	check(is_let_in(argv[1]));
	check(!is_let_in("203.0.113.9"));
	check(!rclose(listener));
	puts("done");
	return 0;
}
