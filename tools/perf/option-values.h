/*
 * Parses values of options and reports errors in them. A program that includes this file defines
 * `PROGRAM`, its name.
 */
#ifndef OPTION_VALUES_H
#define OPTION_VALUES_H

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 1, 2))) static bool failed(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fputs(PROGRAM ": ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	return false;
}

__attribute__((unused)) static bool read_number(const char *option, const char *text, uint64_t limit, uint64_t *number)
{
	char *end;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	unsigned shift = *end == 'K' || *end == 'k' ? 10 : *end == 'M' || *end == 'm' ? 20 : *end == 'G' || *end == 'g' ? 30 : 0;
	if (end != text && shift)
		end++;
	bool is_number = end != text && *end == '\0' && errno == 0 && text[0] >= '0' && text[0] <= '9';
	if (!is_number || value == 0 || value > limit >> shift)
		return failed("%s %s: a whole number from 1 to %" PRIu64 " is needed, K, M and G for powers of 1024", option, text,
			      limit);
	*number = (uint64_t)value << shift;
	return true;
}

__attribute__((unused)) static bool read_list(const char *option, char *text, uint64_t limit, uint64_t *numbers, int count_max, int *count)
{
	*count = 0;
	for (char *rest = text, *word; (word = strsep(&rest, ",")) != NULL;) {
		if (*count == count_max)
			return failed("%s: at most %d values are possible", option, count_max);
		if (!read_number(option, word, limit, &numbers[(*count)++]))
			return false;
	}
	return true;
}

__attribute__((unused)) static bool read_name(const char *option, const char *text, const char *const *names, int *chosen)
{
	for (*chosen = 0; names[*chosen]; ++*chosen)
		if (strcmp(text, names[*chosen]) == 0)
			return true;
	fprintf(stderr, PROGRAM ": %s %s: one of", option, text);
	for (int i = 0; names[i]; i++)
		fprintf(stderr, "%s %s", i ? "," : "", names[i]);
	fputs(" is needed\n", stderr);
	return false;
}

__attribute__((unused)) static bool read_seconds(const char *text, double *seconds)
{
	char *end;
	*seconds = strtod(text, &end);
	return (end != text && *end == '\0' && *seconds >= 0.001 && *seconds <= 600) ||
	       failed("--seconds %s: a number from 0.001 to 600 is needed", text);
}

#endif
