/* The name of an MPI library. */
#ifndef LIBRARY_NAME_H
#define LIBRARY_NAME_H

#include <mpi.h>
#include <stdbool.h>

/* Stores the library's name in `text`: the beginning of its version text. `text` has
   MPI_MAX_LIBRARY_VERSION_STRING bytes. */
static void name_library(char *text)
{
	char *to = text;
	int length;
	MPI_Get_library_version(text, &length);
	for (const char *from = text; *from && *from != '\n' && *from != ','; from++) {
		bool is_space = *from == ' ' || *from == '\t';
		if (*from != '"' && *from != '\\' && *from != '\r' && !(is_space && to > text && to[-1] == ' '))
			*to++ = is_space ? ' ' : *from;
	}
	*to = '\0';
}

#endif
