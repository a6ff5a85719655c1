/* Programs that read from a connection, in different ways. */
#include "sockets.h"

/* Each way of peeking leaves the data in the queue. */
static void peek(struct context *context)
{
	int s = accepted(context);
	char bytes[16] = "";
	CHECK(recv(s, bytes, 3, MSG_PEEK | MSG_WAITALL) == 3);
	printf("%.3s\n", bytes);
	send_byte(s, 'g');
	CHECK(recv(s, bytes, 8, MSG_PEEK | MSG_WAITALL) == 8);
	printf("%.8s\n", bytes);
	struct iovec part = {.iov_base = bytes, .iov_len = 4};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	memset(bytes, 0, sizeof bytes);
	CHECK(recvmsg(s, &message, MSG_PEEK) == 4);
	printf("%.4s\n", bytes);
	CHECK(recv(s, bytes, 8, MSG_WAITALL) == 8);
	printf("%.8s\n", bytes);
	show("peek of nothing", recv(s, bytes, 1, MSG_PEEK | MSG_DONTWAIT));
	send_byte(s, 'g');
	show("peek of the end", recv(s, bytes, 1, MSG_PEEK));
	expect_end(s);
	close(s);
}

static void peek_client(struct context *context)
{
	int s = connected(context);
	write_all(s, "abc", 3);
	expect(s, 'g');
	write_all(s, "defgh", 5);
	expect(s, 'g');
	CHECK(shutdown(s, SHUT_WR) == 0);
	expect_end(s);
}

/* With MSG_WAITALL, recv returns all requested bytes, even if the bytes arrive in parts. Only at the end
   of the stream, recv returns fewer bytes. */
static void wait_all(struct context *context)
{
	int s = accepted(context);
	static uint8_t bytes[300000];
	uint64_t at = 0;
	for (int i = 0; i < 5; i++) {
		ssize_t got = recv(s, bytes, 50000, MSG_WAITALL);
		show("got", got);
		verify(bytes, 50000, at);
		at += 50000;
	}
	struct iovec parts[3] = {{bytes, 7}, {bytes + 7, 20000}, {bytes + 20007, 279993}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
	ssize_t got = recvmsg(s, &message, MSG_WAITALL);
	show("got at the end", got);
	verify(bytes, (size_t)got, at);
	expect_end(s);
	close(s);
}

static void wait_all_client(struct context *context)
{
	int s = connected(context);
	static uint8_t bytes[350000];
	fill(bytes, sizeof bytes, 0);
	for (size_t at = 0; at < sizeof bytes;) {
		size_t part = at % 7919 + 1;
		part = part < sizeof bytes - at ? part : sizeof bytes - at;
		write_all(s, bytes + at, part);
		at += part;
	}
	close(s);
}

/* Reads that do not block, and reads that time out. */
static void limits(struct context *context)
{
	int s = accepted(context);
	send_byte(s, 's');
	char byte = 0;
	show("MSG_DONTWAIT", recv(s, &byte, 1, MSG_DONTWAIT));
	set_blocking(s, false);
	show("O_NONBLOCK", read(s, &byte, 1));
	set_blocking(s, true);
	int on = 1;
	CHECK(ioctl(s, FIONBIO, &on) == 0);
	show("FIONBIO", read(s, &byte, 1));
	printf("%s\n", fcntl(s, F_GETFL) & O_NONBLOCK ? "not blocking" : "blocking");
	on = 0;
	CHECK(ioctl(s, FIONBIO, &on) == 0);
	struct timeval limit = {.tv_usec = 60000};
	CHECK(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
	int64_t before = now_ms();
	show("SO_RCVTIMEO", read(s, &byte, 1));
	printf("%s\n", now_ms() - before >= 55 ? "waited" : "did not wait");
	send_byte(s, 'g');
	limit = (struct timeval){.tv_sec = 10};
	CHECK(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
	socklen_t length = sizeof limit;
	CHECK(getsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, &length) == 0);
	show("seconds", limit.tv_sec);
	expect(s, 'x');
	show("nothing asked for", recv(s, &byte, 0, MSG_DONTWAIT));
	close(s);
}

static void limits_client(struct context *context)
{
	int s = connected(context);
	expect(s, 's');
	expect(s, 'g');
	send_byte(s, 'x');
	expect_end(s);
}

/* The number of readable bytes, and the number of bytes not sent yet. */
static void counted(struct context *context)
{
	int s = accepted(context);
	int count = -1;
	CHECK(ioctl(s, FIONREAD, &count) == 0);
	show("before", count);
	send_byte(s, 'g');
	static uint8_t bytes[20000];
	/* The last byte has arrived, so all bytes have arrived. */
	CHECK(recv(s, bytes, sizeof bytes, MSG_PEEK | MSG_WAITALL) == sizeof bytes);
	CHECK(ioctl(s, FIONREAD, &count) == 0);
	show("there", count);
	CHECK(ioctl(s, SIOCINQ, &count) == 0);
	show("there", count);
	read_all(s, bytes, 5000);
	CHECK(ioctl(s, FIONREAD, &count) == 0);
	show("left", count);
	read_all(s, bytes, 15000);
	CHECK(ioctl(s, FIONREAD, &count) == 0);
	show("after", count);
	send_byte(s, 'x');
	/* The peer has read all bytes, so all bytes are acknowledged. */
	expect(s, 'y');
	for (int i = 0; i < 2000; i++) {
		CHECK(ioctl(s, SIOCOUTQ, &count) == 0);
		if (count == 0)
			break;
		usleep(1000);
	}
	show("unsent", count);
	struct tcp_info info;
	socklen_t length = sizeof info;
	CHECK(getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
	printf("%s\n", info.tcpi_state == TCP_ESTABLISHED ? "established" : "not established");
	printf("%s\n", info.tcpi_snd_mss > 0 && info.tcpi_rtt > 0 ? "measured" : "not measured");
	send_byte(s, 'z');
	close(s);
}

static void counted_client(struct context *context)
{
	int s = connected(context);
	expect(s, 'g');
	static uint8_t bytes[20000];
	write_all(s, bytes, sizeof bytes);
	expect(s, 'x');
	send_byte(s, 'y');
	expect(s, 'z');
	expect_end(s);
}

/* Reads into several buffers, some of them empty. */
static void scattered(struct context *context)
{
	int s = accepted(context);
	enum { TOTAL = 1 << 20 };
	static uint8_t bytes[TOTAL];
	uint64_t at = 0;
	for (int turn = 0; at < TOTAL; turn++) {
		uint8_t *place = bytes + at;
		size_t left = TOTAL - (size_t)at;
		struct iovec parts[4] = {{place, left < 3 ? left : 3}, {NULL, 0}, {place + 3, 0}, {NULL, 0}};
		if (left > 3) {
			parts[2].iov_len = left - 3 < 1000 ? left - 3 : 1000;
			parts[3] = (struct iovec){place + 3 + parts[2].iov_len, left - 3 - parts[2].iov_len};
		}
		struct msghdr message = {.msg_iov = parts, .msg_iovlen = 4};
		ssize_t got = turn % 2 == 0 ? readv(s, parts, 4) : recvmsg(s, &message, 0);
		CHECK(got > 0);
		at += (uint64_t)got;
	}
	verify(bytes, TOTAL, 0);
	struct sockaddr_storage from;
	socklen_t length = sizeof from;
	char byte;
	show("recvfrom", recvfrom(s, &byte, 1, 0, (struct sockaddr *)&from, &length));
	show("length of address", length == sizeof from ? 0 : length);
	show("sum", (long)at);
	send_byte(s, 'x');
	close(s);
}

static void scattered_client(struct context *context)
{
	int s = connected(context);
	enum { TOTAL = 1 << 20 };
	static uint8_t bytes[TOTAL];
	fill(bytes, TOTAL, 0);
	write_all(s, bytes, TOTAL);
	send_byte(s, '.');
	expect(s, 'x');
	expect_end(s);
}

/* Calls with invalid arguments. */
static void nonsense(struct context *context)
{
	int s = accepted(context);
	char byte;
	expect(s, 'x');
	show("accept", accept(s, NULL, NULL));
	show("connect", connect(s, (struct sockaddr *)&context->address, context->length));
	show("bad descriptor", read(1000, &byte, 1));
	show("bad option", setsockopt(s, IPPROTO_TCP, 9999, &byte, 1));
	show("seek", lseek(s, 0, SEEK_SET));
	show("pread", pread(s, &byte, 1, 0));
	send_byte(s, 'x');
	close(s);
	show("closed", read(s, &byte, 1));
	show("closed twice", close(s));
}

static void nonsense_client(struct context *context)
{
	int s = connected(context);
	send_byte(s, 'x');
	expect(s, 'x');
	expect_end(s);
}

SUBJECTS({"peek", peek, peek_client}, {"wait_all", wait_all, wait_all_client}, {"limits", limits, limits_client},
		 {"counted", counted, counted_client}, {"scattered", scattered, scattered_client},
		 {"nonsense", nonsense, nonsense_client});
