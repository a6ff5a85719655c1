/* iwarp-perf, whose client stays connected after the measurement. */
#include "lingering.h"
#include "../../../tools/perf/iwarp-perf.c"
