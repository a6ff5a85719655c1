/* SPDX-License-Identifier: Apache-2.0
 *
 * A stencil: each rank smooths its rows of a grid, which needs the nearest row of its neighbours. Rank 0 compares the
 * result with a sequential one.
 *
 *     cc stencil.c -o stencil $(pkg-config --cflags --libs ethernot-dsm)
 *     ethernot dsm run -n 4 -- ./stencil */
#include <ethernot_dsm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 64
#define COLUMNS 128
#define STEPS 8

static int rank, size;

static void check(ethernot_dsm_result result, const char *what)
{
    if (result != ETHERNOT_DSM_RESULT_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, ethernot_dsm_result_name(result), ethernot_dsm_last_error());
        exit(1);
    }
}

static void *shared(size_t bytes)
{
    void *memory = NULL;
    check(ethernot_dsm_alloc(bytes, 0, 0, &memory), "alloc");
    return memory;
}

typedef double grid[ROWS][COLUMNS];

static void smooth(const grid from, grid into, int first, int end)
{
    for (int row = first; row < end; row++)
        for (int column = 0; column < COLUMNS; column++) {
            int is_border = row == 0 || row == ROWS - 1 || column == 0 || column == COLUMNS - 1;
            into[row][column] = is_border ? from[row][column]
                                          : (from[row - 1][column] + from[row][column - 1] + from[row][column] +
                                             from[row][column + 1] + from[row + 1][column]) / 5;
        }
}

static void begin(grid grid, int first, int end)
{
    for (int row = first; row < end; row++)
        for (int column = 0; column < COLUMNS; column++)
            grid[row][column] = row * 31 + column * 17 % 101;
}

static void stencil(void)
{
    grid *grids[2] = {shared(sizeof(grid)), shared(sizeof(grid))};
    int first = ROWS * rank / size, end = ROWS * (rank + 1) / size;
    begin(*grids[0], first, end);
    check(ethernot_dsm_barrier(), "barrier");
    for (int step = 0; step < STEPS; step++) {
        /* The row of the neighbour arrives while this rank computes its first rows. */
        if (end < ROWS)
            check(ethernot_dsm_prefetch((*grids[step % 2])[end], sizeof **grids[0]), "prefetch");
        smooth((const double(*)[COLUMNS])*grids[step % 2], *grids[(step + 1) % 2], first, end);
        check(ethernot_dsm_barrier(), "barrier");
    }
    if (rank == 0) {
        static grid expected[2];
        begin(expected[0], 0, ROWS);
        for (int step = 0; step < STEPS; step++)
            smooth((const double(*)[COLUMNS])expected[step % 2], expected[(step + 1) % 2], 0, ROWS);
        if (memcmp(expected[STEPS % 2], *grids[STEPS % 2], sizeof(grid)) != 0) {
            fprintf(stderr, "the grid is wrong\n");
            exit(1);
        }
        printf("%d steps of a grid by %d ranks are right\n", STEPS, size);
    }
}

int main(void)
{
    check(ethernot_dsm_init(NULL), "join");
    rank = ethernot_dsm_rank();
    size = ethernot_dsm_size();
    stencil();
    check(ethernot_dsm_finalize(), "leave");
    return 0;
}
