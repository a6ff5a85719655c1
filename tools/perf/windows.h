/* Where the messages of a window are in memory, and what is in them. */
#ifndef WINDOWS_H
#define WINDOWS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Messages before the last one share places in memory if a window has more bytes: as programs use their buffers again
 * and again, a measurement is of the device and not of memory that is in no cache.
 */
#define SHARED_BYTES (2ull << 20)
/* When bytes are compared, so many are kept. */
#define REGION_BYTES (64ull << 20)

struct run {
	uint64_t size, window, iterations;
	bool check;
};

/* Messages of a window have places of their own, as far as the memory goes; the last one always has. */
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

/* What the last byte of window number `window` is: never 0, which it is before the run. */
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
