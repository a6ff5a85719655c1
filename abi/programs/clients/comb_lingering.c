/* comb, whose client stays connected after the measurement. */
#include "lingering.h"
#include "../../../tools/perf/comb.c"
