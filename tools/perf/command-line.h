/* The command line options shared by the programs. */
#ifndef COMMAND_LINE_H
#define COMMAND_LINE_H

#include <getopt.h>

#include "option-values.h"

enum {
	SIZES_MAX = 32,
	WINDOWS_MAX = 32,
	RUNS_MAX = 1000,
	WINDOW_MAX = 1 << 16,
};

#define SIZE_MAX_BYTES (1ull << 30)

enum test { BANDWIDTH, BOTH_WAYS, LATENCY };
enum operation { WRITE, SEND, READ };

static const char *const TESTS[] = { "bandwidth", "both-ways", "latency", NULL };
static const char *const OPERATIONS[] = { "write", "send", "read", NULL };

struct options {
	const char *address; /* of the server; without it, this process is the server */
	const char *bind;
	const char *port;
	const char *client_only; /* an option that only a client has */
	enum test test;
	enum operation operation;
	bool events, check, json, keep;
	uint64_t sizes[SIZES_MAX];
	uint64_t windows[WINDOWS_MAX];
	int size_count, window_count;
	uint64_t iterations; /* 0: as many as fit into `seconds` */
	double seconds;
	unsigned runs;
};

static const char HELP[] =
	"Measures the bandwidth or the latency of " MEASURED ".\n"
	"\n"
#ifdef HAS_RANKS
	"  mpirun -n 2 " PROGRAM " [OPTION...]    rank 0 measures, rank 1 answers\n"
#else
	"  " PROGRAM " [--port P] [--bind ADDRESS] [--keep]    serves one client, with --keep one after the other\n"
	"  " PROGRAM " SERVER [OPTION...]                      measures against the server at this address\n"
#endif
	"\n"
	"  --test T         bandwidth (windows one way), both-ways (the sum), latency (half a round trip) [bandwidth]\n"
#ifdef HAS_OPERATIONS
	"  --operation O    write, send or read [write]\n"
#endif

#ifndef HAS_RANKS
	"  --events         " EVENTS_HELP "\n"
#endif
	"  --sizes LIST     bytes of a message, such as 8,64K,1M [bandwidth: 1K,64K,1M; latency: 8,1K,64K]\n"
	"  --window LIST    messages of a window [1,16,64; latency has windows of 1]\n"
	"  --iterations N   windows or rounds of a run\n"
	"  --seconds S      or how long a run takes [0.5]\n"
	"  --runs N         runs of each point; the mean is without the highest and the lowest [10]\n"
	"  --check          compares all bytes, in a pass of its own before the runs\n"
	"  --json           prints a JSON document instead of a table\n"
#ifndef HAS_RANKS
	"  --port P         of the server [" PORT "]\n"
	"  --bind ADDRESS   own address\n"
	"  --keep           serves on when a client has ended\n"
#endif
	"  --help           prints this\n"
	"\n"
#ifdef HAS_RANKS
	"Example: `mpirun -n 2 " PROGRAM " --test latency --sizes 8`\n";
#else
	"Example: `" PROGRAM "` on one host, then on another `" PROGRAM " 192.0.2.1 --test latency --sizes 8`\n";
#endif

static bool set_default_lists(struct options *options)
{
	static const uint64_t BANDWIDTH_SIZES[] = { 1 << 10, 64 << 10, 1 << 20 }, LATENCY_SIZES[] = { 8, 1 << 10, 64 << 10 };
	static const uint64_t WINDOWS[] = { 1, 16, 64 };
	bool is_latency = options->test == LATENCY;
	if (options->size_count == 0) {
		memcpy(options->sizes, is_latency ? LATENCY_SIZES : BANDWIDTH_SIZES, sizeof(LATENCY_SIZES));
		options->size_count = 3;
	}
	if (options->window_count == 0) {
		memcpy(options->windows, WINDOWS, sizeof(WINDOWS));
		options->window_count = is_latency ? 1 : 3;
	}
	for (int i = 0; is_latency && i < options->window_count; i++)
		if (options->windows[i] != 1)
			return failed("--window %" PRIu64 ": latency has windows of 1; leave --window out", options->windows[i]);
	return true;
}

enum option_code { TEST = 1, OPERATION, EVENTS, SIZES, WINDOW, ITERATIONS, SECONDS, RUNS, CHECK, JSON, PORT_NUMBER, BIND, KEEP, HELP_TEXT };

static const struct option LONG_OPTIONS[] = {
	{ "test", required_argument, NULL, TEST },
#ifdef HAS_OPERATIONS
	{ "operation", required_argument, NULL, OPERATION },
#endif
#ifndef HAS_RANKS
	{ "events", no_argument, NULL, EVENTS },
#endif
	{ "sizes", required_argument, NULL, SIZES },
	{ "window", required_argument, NULL, WINDOW },
	{ "iterations", required_argument, NULL, ITERATIONS },
	{ "seconds", required_argument, NULL, SECONDS },
	{ "runs", required_argument, NULL, RUNS },
	{ "check", no_argument, NULL, CHECK },
	{ "json", no_argument, NULL, JSON },
#ifndef HAS_RANKS
	{ "port", required_argument, NULL, PORT_NUMBER },
	{ "bind", required_argument, NULL, BIND },
	{ "keep", no_argument, NULL, KEEP },
#endif
	{ "help", no_argument, NULL, HELP_TEXT },
	{ NULL, 0, NULL, 0 },
};

static bool take_option(struct options *options, int code)
{
	int chosen = 0;
	uint64_t number = 0;
	bool is_good = true;
	switch (code) {
	case TEST:
		is_good = read_name("--test", optarg, TESTS, &chosen);
		options->test = (enum test)chosen;
		break;
	case OPERATION:
		is_good = read_name("--operation", optarg, OPERATIONS, &chosen);
		options->operation = (enum operation)chosen;
		break;
	case EVENTS:
		options->events = true;
		break;
	case SIZES:
		is_good = read_list("--sizes", optarg, SIZE_MAX_BYTES, options->sizes, SIZES_MAX, &options->size_count);
		break;
	case WINDOW:
		is_good = read_list("--window", optarg, WINDOW_MAX, options->windows, WINDOWS_MAX, &options->window_count);
		break;
	case ITERATIONS:
		is_good = read_number("--iterations", optarg, 1ull << 40, &options->iterations);
		break;
	case SECONDS:
		is_good = read_seconds(optarg, &options->seconds);
		break;
	case RUNS:
		is_good = read_number("--runs", optarg, RUNS_MAX, &number);
		options->runs = (unsigned)number;
		break;
	case CHECK:
		options->check = true;
		break;
	case JSON:
		options->json = true;
		break;
	case PORT_NUMBER:
		is_good = read_number("--port", optarg, 65535, &number);
		options->port = optarg;
		break;
	case BIND:
		options->bind = optarg;
		break;
	case KEEP:
		options->keep = true;
		break;
	case HELP_TEXT:
		fputs(HELP, stdout);
		exit(fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS);
	default:
		return failed("see " PROGRAM " --help");
	}
	return is_good;
}

static bool read_options(int count, char **words, struct options *options)
{
	int index = 0;
	for (int code; (code = getopt_long(count, words, "", LONG_OPTIONS, &index)) != -1;) {
		if (!take_option(options, code))
			return false;
		if (code != PORT_NUMBER && code != BIND && code != KEEP)
			options->client_only = LONG_OPTIONS[index].name;
	}
#ifdef HAS_RANKS
	if (optind < count)
		return failed("%s: no more arguments are needed; see " PROGRAM " --help", words[optind]);
#else
	if (optind < count)
		options->address = words[optind++];
	if (optind < count)
		return failed("%s: one address is enough; see " PROGRAM " --help", words[optind]);
	if (!options->address && options->client_only)
		return failed("--%s is an option of the client: put the server's address before it", options->client_only);
	if (options->address && options->keep)
		return failed("--keep is an option of the server: leave out the address %s, or --keep", options->address);
#endif
	for (int i = 0; i < options->size_count; i++)
		if (options->test == BOTH_WAYS && options->operation == SEND && options->sizes[i] == 1)
			return failed("--sizes 1: messages sent both ways have 2 bytes or more, as answers have 1");
	return set_default_lists(options);
}

#endif
