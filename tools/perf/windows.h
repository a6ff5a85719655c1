/* Places of the messages of a window in memory, and their content. */
#ifndef WINDOWS_H
#define WINDOWS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Memory for the messages of a window, in bytes. If they need more, all messages but the last share
 * places: programs reuse their buffers, so the measurement should show the device and not memory
 * outside the caches.
 */
#define SHARED_BYTES (2ull << 20)
/* Memory for the messages of a window when bytes are compared. */
#define REGION_BYTES (64ull << 20)

struct run {
	uint64_t size, window, iterations;
	bool check;
};

/* Returns the number of message places in a window. The last message always has its own place; the
   others do as far as memory allows. */
static uint64_t places(const struct run *run)
{
	uint64_t fit = (run->check ? REGION_BYTES : SHARED_BYTES) / run->size;
	if (run->window == 1 || fit < 2)
		return run->window == 1 ? 1 : 2;
	return run->window < fit ? run->window : fit;
}

static uint64_t place(const struct run *run, uint64_t message)
{
	uint64_t count = places(run);
	return (message + 1 == run->window ? count - 1 : message % (count - 1)) * run->size;
}

static uint64_t region_bytes(uint64_t size_max, uint64_t window_max)
{
	uint64_t whole = window_max * size_max < REGION_BYTES ? window_max * size_max : REGION_BYTES;
	uint64_t least = (window_max > 1 ? 2 : 1) * size_max;
	return whole > least ? whole : least;
}

/* Returns the last byte of window number `window`: never 0, because 0 is its value before the run. */
static inline unsigned char mark(uint64_t window)
{
	return (unsigned char)(window % 255 + 1);
}

static unsigned char pattern(uint64_t window, uint64_t message, uint64_t offset)
{
	return (unsigned char)(offset * 31 + (offset >> 8) * 17 + message * 7 + window * 101 + 13);
}

static inline volatile unsigned char *last_byte(unsigned char *region, const struct run *run)
{
	return region + place(run, run->window - 1) + run->size - 1;
}

#endif
