/* Loops over layers whose shares are given: see docs/placement.md, "even mode".

   One layer is N ranks and E experts, an expert at most once on a rank. The nth of the c replicas
   of an expert, in the order of their ranks, costs its rank a given part of the expert's tokens, and
   a fixed cost beside them; ranks may be slower or faster. No function keeps anything between
   calls, none allocates. Ties go to what is looked at first, in order of rank and slot. */

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef int64_t num;

#define NOBODY (-1)
#define NUM_TRIED 24      /* promising changes of which the one best for all ranks is made */
#define ROUNDING 1e-12    /* of a load, that a sum in another order may differ by */
#define LEAST_GAIN 1e-9   /* of the mean load of a rank, for each move; less is rounding */

typedef struct {
    num ranks, experts, turn;
    double fixed;
    const double *heat, *table, *slowness; /* [E]; [N + 1, N] shares of c replicas; [N] */
} Terms;

/* What the nth of c replicas costs a rank of mean speed. */
static inline double cost_of(const Terms *t, num expert, num nth, num count) {
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

/* --- changing a layer of any size ---------------------------------------------------------- */

typedef struct {
    Terms terms;
    num slots;
    const num *begin;       /* [N + 1] first slot of each rank */
    num *row;               /* [P] expert of each slot */
    num *holders, *counts;  /* [E, N] ranks of each expert, ascending; [E] how many */
    num *order;             /* [N] ranks, the fullest first */
    num *touched, *is_touched, num_touched; /* [N] ranks whose load a change alters; whether */
    double *load, *shift;   /* [N]; how much it alters */
    double squares, spread; /* sum over all ranks; what their spread counts as beside the peak */
    /* What survey() writes down, for the fullest rank: */
    num *seen, *below, *is_held; /* [E] replicas counted; on ranks before it; whether it has one */
    num *slot_at, *left_on;      /* [P] slot of each replica, by expert; see left */
    num *is_marked;              /* [N] whether a rank has the expert that is looked at */
    double *cost, *into; /* [P] what each slot costs its rank; [E, 2] what a replica costs the
                            fullest rank that comes from a rank before it, or behind it */
    double *left; /* [P] load of the fullest other rank of its expert, were the slot given up */
    double *spared, *gap; /* [N, 2] what its dearest replica costs that can go for an expert that the
                             fullest rank alone has, or any; [N] what a swap leaves the fullest rank
                             and this one with at least, beside the expert that goes */
} Even;

/* A change: expert `one` leaves a rank for another, and `two` the other way; NOBODY is no rank. */
typedef struct {
    num one, one_from, one_to, two, two_from, two_to;
} Change;

static int is_on(const Even *a, num expert, num rank) {
    for (num s = a->begin[rank]; s < a->begin[rank + 1]; s++)
        if (a->row[s] == expert) return 1;
    return 0;
}

static inline double charge(const Even *a, num expert, num nth, num count, num rank) {
    return cost_of(&a->terms, expert, nth, count) * a->terms.slowness[rank];
}

/* Add what an expert costs all its ranks, or take it off. */
static void bear(Even *a, num expert, double sign) {
    const num *held = a->holders + expert * a->terms.ranks, count = a->counts[expert];
    for (num n = 0; n < count; n++) a->load[held[n]] += sign * charge(a, expert, n, count, held[n]);
}

static Even even_in(num ranks, num experts, num slots, num turn, const double *heat,
                    const double *table, const double *slowness, const double *numbers,
                    const num *begin, num *row, num *ints, double *reals) {
    Even a = {.terms = {ranks, experts, turn, numbers[0], heat, table, slowness},
              .slots = slots, .begin = begin, .row = row, .holders = ints,
              .counts = ints + experts * ranks, .load = reals, .shift = reals + ranks,
              .spread = numbers[1]};
    a.order = a.counts + experts, a.touched = a.order + ranks, a.is_touched = a.touched + ranks;
    a.seen = a.is_touched + ranks, a.below = a.seen + experts, a.is_held = a.below + experts;
    a.slot_at = a.is_held + experts, a.left_on = a.slot_at + slots, a.is_marked = a.left_on + slots;
    a.cost = a.shift + ranks, a.into = a.cost + slots, a.left = a.into + 2 * experts;
    a.spared = a.left + slots, a.gap = a.spared + 2 * ranks;
    memset(a.counts, 0, (size_t)experts * sizeof(num));
    memset(a.is_touched, 0, (size_t)ranks * sizeof(num));
    memset(a.is_marked, 0, (size_t)ranks * sizeof(num));
    memset(a.load, 0, 2 * (size_t)ranks * sizeof(double));
    for (num r = 0; r < ranks; r++)
        for (num s = begin[r]; s < begin[r + 1]; s++) {
            num e = row[s];
            a.holders[e * ranks + a.counts[e]++] = r;
        }
    for (num e = 0; e < experts; e++) bear(&a, e, 1.0);
    return a;
}

/* Let an expert take the slot of another on a rank. */
static void put(Even *a, num rank, num out, num into) {
    num *gone = a->holders + out * a->terms.ranks, *come = a->holders + into * a->terms.ranks;
    num at = 0, slot = a->begin[rank];
    bear(a, out, -1.0), bear(a, into, -1.0);
    while (a->row[slot] != out) slot++;
    a->row[slot] = into;
    while (gone[at] != rank) at++;
    for (a->counts[out]--; at < a->counts[out]; at++) gone[at] = gone[at + 1];
    for (at = a->counts[into]++; at > 0 && come[at - 1] > rank; at--) come[at] = come[at - 1];
    come[at] = rank;
    bear(a, out, 1.0), bear(a, into, 1.0);
}

static void alter(Even *a, num rank, double by) {
    if (!a->is_touched[rank]) a->is_touched[rank] = 1, a->touched[a->num_touched++] = rank;
    a->shift[rank] += by;
}

/* How loads alter when an expert leaves one rank and comes to another. */
static void alter_by(Even *a, num expert, num from, num to) {
    const num *held = a->holders + expert * a->terms.ranks, count = a->counts[expert];
    num then = count - (from != NOBODY) + (to != NOBODY), nth = 0, came = to == NOBODY;
    for (num n = 0; n < count; n++) {
        num r = held[n];
        if (!came && to < r) alter(a, to, charge(a, expert, nth++, then, to)), came = 1;
        double was = charge(a, expert, n, count, r);
        alter(a, r, r == from ? -was : charge(a, expert, nth++, then, r) - was);
    }
    if (!came) alter(a, to, charge(a, expert, nth, then, to));
}

typedef struct {
    double reached, peak, squares; /* of the ranks it alters; of all ranks */
} Outcome;

/* What a layer would come to after a change. */
static Outcome outcome_of(Even *a, Change c) {
    Outcome then = {0.0, 0.0, a->squares};
    a->num_touched = 0;
    alter_by(a, c.one, c.one_from, c.one_to);
    alter_by(a, c.two, c.two_from, c.two_to);
    for (num n = 0; n < a->terms.ranks && then.peak == 0.0; n++)
        if (!a->is_touched[a->order[n]]) then.peak = a->load[a->order[n]];
    for (num n = 0; n < a->num_touched; n++) {
        num r = a->touched[n];
        double was = a->load[r], now = was + a->shift[r];
        if (now > then.reached) then.reached = now;
        then.squares += now * now - was * was;
        a->shift[r] = 0.0, a->is_touched[r] = 0;
    }
    if (then.reached > then.peak) then.peak = then.reached;
    return then;
}

/* How bad a layer is: the peak, if above enough, and some of the spread. */
static double badness(const Even *a, double peak, double squares, double enough) {
    double root = squares > 0.0 ? sqrt(squares / (double)a->terms.ranks) : 0.0;
    return (peak > enough ? peak : enough) + a->spread * root;
}

static int is_fuller(const Even *a, num rank, num other) {
    return a->load[rank] > a->load[other] || (a->load[rank] == a->load[other] && rank < other);
}

/* Sort from the order of the step before, which a change of two ranks leaves nearly right. */
static void sort_ranks(Even *a) {
    a->squares = 0.0;
    for (num r = 0; r < a->terms.ranks; r++) a->squares += a->load[r] * a->load[r];
    for (num n = 1; n < a->terms.ranks; n++) {
        num r = a->order[n], at = n;
        for (; at > 0 && is_fuller(a, r, a->order[at - 1]); at--) a->order[at] = a->order[at - 1];
        a->order[at] = r;
    }
}

/* For each slot of an expert the fullest of its other ranks, were that slot given up: replicas before
   it keep their number, and those behind it move up. */
static void survey_leaving(Even *a, num expert, const num *slots) {
    const num *held = a->holders + expert * a->terms.ranks, count = a->counts[expert];
    double top = -INFINITY;
    num on = NOBODY;
    for (num n = 0; n < count; n++) {
        a->left[slots[n]] = top, a->left_on[slots[n]] = on;
        if (n == count - 1) break;
        double now = a->load[held[n]] + (charge(a, expert, n, count - 1, held[n]) - a->cost[slots[n]]);
        if (now > top) top = now, on = held[n];
    }
    top = -INFINITY;
    for (num n = count - 1; n >= 0; n--) {
        if (top > a->left[slots[n]]) a->left[slots[n]] = top, a->left_on[slots[n]] = on;
        if (n == 0) break;
        double now =
            a->load[held[n]] + (charge(a, expert, n - 1, count - 1, held[n]) - a->cost[slots[n]]);
        if (now > top) top = now, on = held[n];
    }
}

/* What replicas cost where they are, and what they would cost the fullest rank in a swap. */
static void survey(Even *a, num hot) {
    const num experts = a->terms.experts;
    for (num e = 0, first = 0; e < experts; first += a->counts[e++]) a->seen[e] = first;
    memset(a->is_held, 0, (size_t)experts * sizeof(num));
    for (num r = 0; r < a->terms.ranks; r++) {
        if (r == hot) memcpy(a->below, a->seen, (size_t)experts * sizeof(num));
        for (num s = a->begin[r]; s < a->begin[r + 1]; s++) {
            num e = a->row[s];
            a->slot_at[a->seen[e]++] = s;
            if (r == hot) a->is_held[e] = 1;
        }
    }
    for (num e = 0; e < experts; e++) {
        num count = a->counts[e], first = a->seen[e] - count, nth = a->below[e] -= first;
        for (num n = 0; n < count; n++)
            a->cost[a->slot_at[first + n]] = charge(a, e, n, count, a->holders[e * a->terms.ranks + n]);
        if (count > 1) survey_leaving(a, e, a->slot_at + first);
        if (nth > 0) a->into[2 * e] = charge(a, e, nth - 1, count, hot);
        if (nth < count) a->into[2 * e + 1] = charge(a, e, nth, count, hot);
    }
    for (num r = 0; r < a->terms.ranks; r++) {
        double *spared = a->spared + 2 * r;
        spared[0] = spared[1] = -INFINITY, a->gap[r] = INFINITY;
        for (num s = a->begin[r]; s < a->begin[r + 1]; s++) {
            num e = a->row[s];
            double gap = a->into[2 * e + (hot < r)] - a->cost[s];
            if (!a->is_held[e] && gap < a->gap[r]) a->gap[r] = gap;
            if (a->counts[e] < 2) continue;
            if (a->cost[s] > spared[1]) spared[1] = a->cost[s];
            if (a->left_on[s] != hot && a->left[s] >= a->load[hot]) continue;
            if (a->cost[s] > spared[0]) spared[0] = a->cost[s];
        }
    }
}

typedef struct {
    Change change;
    num moves;
    double worth, peak, bad; /* by move; of all ranks */
} Tried;

typedef struct {
    Tried best[NUM_TRIED];  /* the most promising changes, the best first */
    double peak, enough, bar; /* bar: what a change has to promise more than to be among them */
    num found, left;        /* left: moves, below 0 where they cost nothing */
} Step;

/* What a change promises that lowers the fullest rank to this load, others left aside. */
static inline double worth_of(const Even *a, const Step *step, double reached, num moves) {
    double low = reached > step->enough ? reached : step->enough;
    double worth = step->peak - low + a->spread * (step->peak - reached);
    return step->left >= 0 ? worth / (double)moves : worth;
}

/* Whether a change may be among the most promising that leaves some rank at this load at least. What
   is computed so is what outcome_of() comes to for that rank, to the last bit, and nothing is lost
   by not looking further. */
static inline int may_promise(const Even *a, const Step *step, double reached, num moves) {
    if (reached >= step->peak || (step->left >= 0 && moves > step->left)) return 0;
    return worth_of(a, step, reached, moves) > step->bar;
}

/* Remember a change if it promises much. */
static void promise(Even *a, Step *step, Change c, num moves) {
    Outcome then = outcome_of(a, c);
    if (!may_promise(a, step, then.reached, moves)) return;
    double worth = worth_of(a, step, then.reached, moves);
    num at = step->found;
    if (at < NUM_TRIED) step->found++;
    else at--;
    for (; at > 0 && step->best[at - 1].worth < worth; at--) step->best[at] = step->best[at - 1];
    Tried tried = {c, moves, worth, then.peak, badness(a, then.peak, then.squares, step->enough)};
    step->best[at] = tried;
    if (step->found == NUM_TRIED) step->bar = step->best[NUM_TRIED - 1].worth;
}

/* Of the promising changes the one that wins most for all ranks, by move; NOBODY if none wins. */
static num most_worth(const Even *a, const Step *step, double least) {
    double before = badness(a, step->peak, a->squares, step->enough), best_gain = least;
    num best = NOBODY;
    for (num n = 0; n < step->found; n++) {
        const Tried *t = step->best + n;
        double gain = (before - t->bad) / (double)(step->left < 0 ? 1 : t->moves);
        if (t->peak <= step->peak && gain > best_gain) best = n, best_gain = gain;
    }
    return best;
}

static double fuller(double one, double other) {
    return one > other ? one : other;
}

/* Another rank takes an expert of the fullest rank in the place of a replica that can go, or swaps
   it. What both ranks would come to is told at once, and what the rank that bears most of what was
   spared would, so that most changes need no further look. The fuller of two ranks is at least as
   full as their mean, so that most ranks need none. */
static void look_at_rank(Even *a, Step *step, num hot, num slot, num rank, num passed) {
    num expert = a->row[slot], count = a->counts[expert], below = a->below[expert];
    double was = a->cost[slot], load = a->load[rank];
    double swapped = charge(a, expert, passed - (hot < rank), count, rank);
    double copied = charge(a, expert, passed, count + 1, rank);
    double level = 0.5 * (step->peak + load + (swapped - was) + a->gap[rank]) * (1.0 - ROUNDING);
    int may_copy = a->terms.heat[expert] > 0.0 &&
                   may_promise(a, step, load + (copied - a->spared[2 * rank + (count > 1)]), 1);
    int may_swap = may_promise(a, step, level, 2);
    if (!may_copy && !may_swap) return;
    double shared = charge(a, expert, below + (rank < hot), count + 1, hot) - was;
    for (num s = a->begin[rank]; s < a->begin[rank + 1]; s++) {
        num other = a->row[s];
        if (may_copy && a->counts[other] > 1) {
            Change copy = {expert, NOBODY, rank, other, rank, NOBODY};
            double then = load + (copied - a->cost[s]);
            if (!a->is_held[other]) then = fuller(then, step->peak + shared);
            if (!a->is_marked[a->left_on[s]]) then = fuller(then, a->left[s]);
            if (may_promise(a, step, then, 1)) promise(a, step, copy, 1);
        }
        if (may_swap && !a->is_held[other]) {
            Change swap = {expert, hot, rank, other, rank, hot};
            double come = a->into[2 * other + (hot < rank)];
            double then = fuller(step->peak + (come - was), load + (swapped - a->cost[s]));
            if (may_promise(a, step, then, 2)) promise(a, step, swap, 2);
        }
    }
}

/* For an expert of the fullest rank: another rank takes it in the place of a replica that can go;
   the rank gives it up for another expert; it swaps it with another rank. */
static void look_at(Even *a, Step *step, num hot, num slot) {
    num expert = a->row[slot], count = a->counts[expert], passed = 0;
    const num *held = a->holders + expert * a->terms.ranks;
    for (num n = 0; n < count; n++) a->is_marked[held[n]] = 1;
    for (num r = 0; r < a->terms.ranks; r++) {
        if (a->is_marked[r]) passed++;
        else look_at_rank(a, step, hot, slot, r, passed);
    }
    for (num n = 0; n < count; n++) a->is_marked[held[n]] = 0;
    if (count < 2) return;
    for (num e = 0; e < a->terms.experts; e++) {
        Change gift = {expert, hot, NOBODY, e, NOBODY, hot};
        if (a->counts[e] == 0 || a->is_held[e]) continue;
        double come = charge(a, e, a->below[e], a->counts[e] + 1, hot);
        if (may_promise(a, step, step->peak + (come - a->cost[slot]), 1) &&
            (may_promise(a, step, a->left[slot], 1) || is_on(a, e, a->left_on[slot])))
            promise(a, step, gift, 1);
    }
}

static void make(Even *a, Change c) {
    if (c.one_from != NOBODY) put(a, c.one_from, c.one, c.two);
    if (c.one_to != NOBODY) put(a, c.one_to, c.two, c.one);
}

static double mean_load(const Even *a) {
    double sum = 0.0;
    for (num r = 0; r < a->terms.ranks; r++) sum += a->load[r];
    return sum / (double)a->terms.ranks;
}

static double peak_load(const Even *a) {
    double peak = 0.0;
    for (num r = 0; r < a->terms.ranks; r++)
        if (a->load[r] > peak) peak = a->load[r];
    return peak;
}

/* Experts on ranks that did not hold them at the origin [P]. */
static num num_changed(const Even *a, const num *origin) {
    num changed = 0;
    for (num r = 0; r < a->terms.ranks; r++)
        for (num s = a->begin[r]; s < a->begin[r + 1]; s++) {
            int was_there = origin[s] == a->row[s];
            for (num o = a->begin[r]; o < a->begin[r + 1] && !was_there; o++)
                was_there = origin[o] == a->row[s];
            changed += !was_there;
        }
    return changed;
}

/* Change slots by what wins most, per move where moves since the origin are limited (most_moves
   at least 0), until nothing wins, the peak is at most enough or steps are spent; the row becomes
   the one with the lowest peak on the way. numbers: fixed cost, weight of the spread, enough. Work
   space: E N + 4 E + 4 N + 3 P numbers, 5 N + 2 P + 2 E reals; the same for the other functions. */
void eplb_descend(num ranks, num experts, num slots, num turn, num most_moves, num most_steps,
                  const double *heat, const double *table, const double *slowness,
                  const double *numbers, const num *begin, num *row, const num *origin, num *ints,
                  double *reals) {
    Even a = even_in(ranks, experts, slots, turn, heat, table, slowness, numbers, begin, row, ints,
                     reals);
    num *best_row = a.is_marked + ranks;
    double enough = numbers[2], lowest = peak_load(&a), least = LEAST_GAIN * mean_load(&a);
    memcpy(best_row, row, (size_t)slots * sizeof(num));
    for (num r = 0; r < ranks; r++) a.order[r] = r;
    for (num step = 0; step < most_steps && lowest > enough; step++) {
        sort_ranks(&a);
        num hot = a.order[0], left = most_moves < 0 ? -1 : most_moves - num_changed(&a, origin);
        double peak = a.load[hot];
        Step step_by = {.peak = peak, .enough = enough, .found = 0, .left = left};
        if (most_moves >= 0 && left < 1) break;
        survey(&a, hot);
        for (num s = begin[hot]; s < begin[hot + 1]; s++) look_at(&a, &step_by, hot, s);
        num best = most_worth(&a, &step_by, least);
        if (best == NOBODY) break;
        make(&a, step_by.best[best].change);
        if (peak_load(&a) >= lowest * (1.0 - LEAST_GAIN)) continue;
        lowest = peak_load(&a);
        memcpy(best_row, row, (size_t)slots * sizeof(num));
    }
    memcpy(row, best_row, (size_t)slots * sizeof(num));
}

/* Give replicas to experts whose replicas are hotter than numbers[2], one move each, in the place
   of replicas that their expert can spare, on the rank that is then the least full. */
void eplb_recount(num ranks, num experts, num slots, num turn, num most_moves, num unused,
                  const double *heat, const double *table, const double *slowness,
                  const double *numbers, const num *begin, num *row, const num *origin, num *ints,
                  double *reals) {
    Even a = even_in(ranks, experts, slots, turn, heat, table, slowness, numbers, begin, row, ints,
                     reals);
    double highest = numbers[2];
    (void)unused, (void)origin;
    for (num move = 0; move < most_moves; move++) {
        num expert = NOBODY, best = NOBODY, best_rank = NOBODY;
        double hottest = highest, lowest = INFINITY;
        for (num e = 0; e < experts; e++)
            if (a.counts[e] > 0 && a.counts[e] < ranks && heat[e] / (double)a.counts[e] > hottest)
                expert = e, hottest = heat[e] / (double)a.counts[e];
        if (expert == NOBODY) return;
        for (num r = 0, passed = 0; r < ranks; r++) {
            if (passed < a.counts[expert] && a.holders[expert * ranks + passed] == r) {
                passed++;
                continue;
            }
            double come = charge(&a, expert, passed, a.counts[expert] + 1, r);
            for (num s = begin[r]; s < begin[r + 1]; s++) {
                num out = row[s], nth = 0;
                if (a.counts[out] < 2 || heat[out] > highest * (double)(a.counts[out] - 1)) continue;
                while (a.holders[out * ranks + nth] != r) nth++;
                double then = a.load[r] + (come - charge(&a, out, nth, a.counts[out], r));
                if (then < lowest) lowest = then, best = out, best_rank = r;
            }
        }
        if (best == NOBODY) return;
        put(&a, best_rank, best, expert);
    }
}

typedef struct {
    num rank, was, now;
} Undo;

/* Take changes back, all or none: where the peak stays within the limit, and no expert that loses a
   replica is left with hotter ones than `highest`. */
static void take_some_back(Even *a, const Undo *changes, num count, double limit, double highest) {
    int is_good = 1;
    for (num n = 0; n < count; n++)
        if (is_on(a, changes[n].was, changes[n].rank) || !is_on(a, changes[n].now, changes[n].rank))
            return;
    for (num n = 0; n < count; n++) put(a, changes[n].rank, changes[n].now, changes[n].was);
    for (num n = 0; n < count; n++) {
        num e = changes[n].now;
        is_good &= a->counts[e] > 0 && a->terms.heat[e] <= highest * (double)a->counts[e];
    }
    if (is_good && peak_load(a) <= limit * (1.0 + LEAST_GAIN)) return;
    for (num n = count; n-- > 0;) put(a, changes[n].rank, changes[n].was, changes[n].now);
}

/* Changes since the origin, slot by slot. */
static num changes_since(const Even *a, const num *origin, Undo *found) {
    num count = 0;
    for (num r = 0; r < a->terms.ranks; r++)
        for (num s = a->begin[r]; s < a->begin[r + 1]; s++) {
            Undo change = {r, origin[s], a->row[s]};
            if (origin[s] != a->row[s]) found[count++] = change;
        }
    return count;
}

/* Take changes since the origin back that no peak above numbers[2] needs, singly and then in pairs,
   most_steps of these; numbers[3]: heat of a replica. undone [P]: room for changes. */
void eplb_take_back(num ranks, num experts, num slots, num turn, num unused, num most_steps,
                    const double *heat, const double *table, const double *slowness,
                    const double *numbers, const num *begin, num *row, const num *origin, num *ints,
                    double *reals, Undo *undone) {
    Even a = even_in(ranks, experts, slots, turn, heat, table, slowness, numbers, begin, row, ints,
                     reals);
    num count = changes_since(&a, origin, undone), pairs = 0;
    (void)unused;
    for (num n = 0; n < count; n++) take_some_back(&a, undone + n, 1, numbers[2], numbers[3]);
    count = changes_since(&a, origin, undone);
    for (num n = 0; n < count; n++)
        for (num m = n + 1; m < count && pairs < most_steps; m++, pairs++) {
            Undo both[2] = {undone[n], undone[m]};
            take_some_back(&a, both, 2, numbers[2], numbers[3]);
        }
}
