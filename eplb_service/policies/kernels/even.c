/* Loops over layers whose shares are given: see docs/placement.md, "even mode".

   One layer is N ranks and E experts, an expert at most once on a rank. The nth of the c replicas
   of an expert, in the order of their ranks, costs its rank a given part of the expert's tokens, and
   a fixed cost beside them; ranks may be slower or faster. No function keeps anything between
   calls, none allocates. Ties go to the lower number. */

#include <stdint.h>

typedef int64_t num;

typedef struct {
    num ranks, experts, turn;
    double fixed;
    const double *heat, *table, *slowness; /* [E]; [N + 1, N] shares of c replicas; [N] */
} Terms;

/* What the nth of c replicas costs a rank of mean speed. */
static double cost_of(const Terms *t, num expert, num nth, num count) {
    if (t->heat[expert] <= 0.0) return 0.0;
    num at = t->turn ? (nth - t->turn * expert) % count : nth;
    return t->heat[expert] * t->table[count * t->ranks + (at < 0 ? at + count : at)] + t->fixed;
}

/* --- all placements of a tiny layer -------------------------------------------------------- */

typedef struct {
    Terms terms;
    const num *subsets, *first; /* sets of experts as bits that each rank may hold; [N + 1] */
    const num *moves;           /* moves that each of them costs */
    num most, wanted;           /* moves that count; experts that must be held, as bits */
    num *chosen, *counts;       /* [N] sets; [E] replicas in them */
    num *rows;                  /* [most + 1, N] best sets by moves */
    double *peaks;              /* [most + 1] their peaks, never rising */
    double *least;              /* [E, N + 1] lowest cost of a replica of up to so many */
} Search;

static double peak_of(const Search *s) {
    const Terms *t = &s->terms;
    double peak = 0.0;
    for (num r = 0; r < t->ranks; r++) {
        double load = 0.0;
        for (num e = 0; e < t->experts; e++) {
            num nth = 0;
            if (!(s->chosen[r] >> e & 1)) continue;
            for (num before = 0; before < r; before++) nth += s->chosen[before] >> e & 1;
            load += cost_of(t, e, nth, s->counts[e]) * t->slowness[r];
        }
        if (load > peak) peak = load;
    }
    return peak;
}

/* A peak that no choice of the ranks from `next` on can avoid. */
static double unavoidable(const Search *s, num next) {
    const Terms *t = &s->terms;
    double peak = 0.0;
    for (num r = 0; r < next; r++) {
        double load = 0.0;
        for (num e = 0; e < t->experts; e++)
            if (s->chosen[r] >> e & 1)
                load += s->least[e * (t->ranks + 1) + s->counts[e] + t->ranks - next];
        load *= t->slowness[r];
        if (load > peak) peak = load;
    }
    return peak;
}

static void try_all(Search *s, num rank, num used, num held) {
    const Terms *t = &s->terms;
    if (rank == t->ranks) {
        if ((held & s->wanted) != s->wanted) return;
        double peak = peak_of(s);
        for (num k = used; k <= s->most && peak < s->peaks[k]; k++) {
            s->peaks[k] = peak;
            for (num r = 0; r < t->ranks; r++) s->rows[k * t->ranks + r] = s->chosen[r];
        }
        return;
    }
    for (num n = s->first[rank]; n < s->first[rank + 1]; n++) {
        num set = s->subsets[n], then = used + s->moves[n];
        if (then > s->most) continue;
        s->chosen[rank] = set;
        for (num e = 0; e < t->experts; e++) s->counts[e] += set >> e & 1;
        if (unavoidable(s, rank + 1) < s->peaks[then] * (1.0 - 1e-12))
            try_all(s, rank + 1, then, held | set);
        for (num e = 0; e < t->experts; e++) s->counts[e] -= set >> e & 1;
    }
}

/* For each number of moves up to most: the lowest peak [most + 1] and its sets [most + 1, N].
   peaks come in as what is to be beaten. Work space: N + E numbers, E (N + 1) reals. */
void eplb_try_all(num ranks, num experts, num most, num turn, num wanted,
                  const double *heat, const double *table, const double *slowness, const double *fixed,
                  const num *subsets, const num *moves, const num *first, num *rows, double *peaks,
                  num *ints, double *reals) {
    Search s = {{ranks, experts, turn, *fixed, heat, table, slowness}, subsets, first, moves, most,
                wanted, ints, ints + ranks, rows, peaks, reals};
    for (num e = 0; e < experts; e++) {
        s.counts[e] = 0;
        reals[e * (ranks + 1)] = 0.0;
        for (num c = 1; c <= ranks; c++) {
            double least = cost_of(&s.terms, e, 0, c);
            for (num nth = 1; nth < c; nth++) {
                double cost = cost_of(&s.terms, e, nth, c);
                if (cost < least) least = cost;
            }
            double before = reals[e * (ranks + 1) + c - 1];
            reals[e * (ranks + 1) + c] = c > 1 && before < least ? before : least;
        }
    }
    try_all(&s, 0, 0, 0);
}
