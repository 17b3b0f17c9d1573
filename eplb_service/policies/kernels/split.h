/* The lowest peak of one layer, for the other loops: see split.c. */

#ifndef EPLB_SPLIT_H
#define EPLB_SPLIT_H

#include <stdint.h>

typedef int64_t num;

#define TINY 1e-11 /* tokens that are none */

/* What a split is worked out of, and where. */
typedef struct {
    num slots, ranks, experts;
    const num *begin;    /* [N + 1] first slot of each rank */
    const double *speed; /* [N] load that a rank bears in the time that counts as 1 */
    num *ints;           /* 3 (P + E) + 4 N + 2 numbers */
    double *reals;       /* P + E + 3 N reals */
} SplitRoom;

/* Lay the tokens [P] of each slot at the lowest peak that a row [P] allows, or at one that is at
   most `enough`; return that peak, in time. An expert with tokens costs its rank `fixed` beside
   them. load [N] becomes what each rank then bears. */
double best_split(const SplitRoom *room, const num *row, const double *heat, double fixed,
                  double enough, double *tokens, double *load);

#endif
