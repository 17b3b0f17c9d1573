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
#define LEAST_GAIN 1e-9   /* of the mean load of a rank, for each move; less is rounding */

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

static double charge(const Even *a, num expert, num nth, num count, num rank) {
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
    Even a = {{ranks, experts, turn, numbers[0], heat, table, slowness}, slots, begin, row,
              ints, ints + experts * ranks, 0, 0, 0, 0, reals, reals + ranks, 0.0, numbers[1]};
    a.order = a.counts + experts, a.touched = a.order + ranks, a.is_touched = a.touched + ranks;
    memset(a.counts, 0, (size_t)experts * sizeof(num));
    memset(a.is_touched, 0, (size_t)ranks * sizeof(num));
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

static void sort_ranks(Even *a) {
    a->squares = 0.0;
    for (num r = 0; r < a->terms.ranks; r++) {
        num at = r;
        for (; at > 0 && a->load[a->order[at - 1]] < a->load[r]; at--) a->order[at] = a->order[at - 1];
        a->order[at] = r;
        a->squares += a->load[r] * a->load[r];
    }
}

typedef struct {
    Change change;
    num moves;
    double worth, peak, bad; /* by move; of all ranks */
} Tried;

typedef struct {
    Tried best[NUM_TRIED];  /* the most promising changes, the best first */
    double peak, enough;
    num found, left;        /* left: moves, below 0 where they cost nothing */
} Step;

/* Remember a change if it promises much: what it lowers the fullest rank to, others left aside. */
static void promise(Even *a, Step *step, Change c, num moves) {
    if (step->left >= 0 && moves > step->left) return;
    Outcome then = outcome_of(a, c);
    double low = then.reached > step->enough ? then.reached : step->enough;
    double worth = step->peak - low + a->spread * (step->peak - then.reached);
    if (step->left >= 0) worth /= (double)moves;
    num at = step->found;
    if (worth <= 0.0 || (at == NUM_TRIED && worth <= step->best[at - 1].worth)) return;
    if (at < NUM_TRIED) step->found++;
    else at--;
    for (; at > 0 && step->best[at - 1].worth < worth; at--) step->best[at] = step->best[at - 1];
    Tried tried = {c, moves, worth, then.peak, badness(a, then.peak, then.squares, step->enough)};
    step->best[at] = tried;
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

/* For an expert of the fullest rank: another rank takes it in the place of a replica that can go;
   the rank gives it up for another expert; it swaps it with another rank. */
static void look_at(Even *a, Step *step, num hot, num expert) {
    for (num r = 0; r < a->terms.ranks; r++) {
        if (r == hot || is_on(a, expert, r)) continue;
        for (num s = a->begin[r]; s < a->begin[r + 1]; s++) {
            num other = a->row[s];
            Change copy = {expert, NOBODY, r, other, r, NOBODY};
            Change swap = {expert, hot, r, other, r, hot};
            if (a->counts[other] > 1 && a->terms.heat[expert] > 0.0) promise(a, step, copy, 1);
            if (!is_on(a, other, hot)) promise(a, step, swap, 2);
        }
    }
    if (a->counts[expert] < 2) return;
    for (num e = 0; e < a->terms.experts; e++) {
        Change gift = {expert, hot, NOBODY, e, NOBODY, hot};
        if (a->counts[e] > 0 && !is_on(a, e, hot)) promise(a, step, gift, 1);
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
            int was_there = 0;
            for (num o = a->begin[r]; o < a->begin[r + 1]; o++) was_there |= origin[o] == a->row[s];
            changed += !was_there;
        }
    return changed;
}

/* Change slots by what wins most, per move where moves since the origin are limited (most_moves
   at least 0), until nothing wins, the peak is at most enough or steps are spent; the row becomes
   the one with the lowest peak on the way. numbers: fixed cost, weight of the spread, enough. Work
   space: E N + E + 3 N + P numbers, 2 N reals; the same for the other functions. */
void eplb_descend(num ranks, num experts, num slots, num turn, num most_moves, num most_steps,
                  const double *heat, const double *table, const double *slowness,
                  const double *numbers, const num *begin, num *row, const num *origin, num *ints,
                  double *reals) {
    Even a = even_in(ranks, experts, slots, turn, heat, table, slowness, numbers, begin, row, ints,
                     reals);
    num *best_row = a.is_touched + ranks;
    double enough = numbers[2], lowest = peak_load(&a), least = LEAST_GAIN * mean_load(&a);
    memcpy(best_row, row, (size_t)slots * sizeof(num));
    for (num step = 0; step < most_steps && lowest > enough; step++) {
        sort_ranks(&a);
        num hot = a.order[0], left = most_moves < 0 ? -1 : most_moves - num_changed(&a, origin);
        double peak = a.load[hot];
        Step step_by = {.peak = peak, .enough = enough, .found = 0, .left = left};
        if (most_moves >= 0 && left < 1) break;
        for (num s = begin[hot]; s < begin[hot + 1]; s++) look_at(&a, &step_by, hot, row[s]);
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
        for (num r = 0; r < ranks; r++) {
            if (is_on(&a, expert, r)) continue;
            for (num s = begin[r]; s < begin[r + 1]; s++) {
                num out = row[s];
                if (a.counts[out] < 2 || heat[out] > highest * (double)(a.counts[out] - 1)) continue;
                a.num_touched = 0;
                alter_by(&a, expert, NOBODY, r), alter_by(&a, out, r, NOBODY);
                double then = a.load[r] + a.shift[r];
                for (num n = 0; n < a.num_touched; n++)
                    a.shift[a.touched[n]] = 0.0, a.is_touched[a.touched[n]] = 0;
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
