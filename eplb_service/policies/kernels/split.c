/* The best split of a layer: the lowest peak that its replicas allow. See docs/placement.md.

   A limit can be kept exactly when from no rank above it a chain of replicas leads to one below it
   (maximum flow, minimum cut). If load is left above it, the ranks that it reaches hold what only
   they hold, so that no split goes below their mean: that is the next limit. Load above the limit is
   pushed to ranks that are nearer to one below it, by distances that only rise (push and relabel);
   it may rest anywhere, since any load of a rank is one.

   Only what has replicas is looked at: a part is one replica, numbered rank by rank; a group is all
   parts of one expert. Loads are in mean loads of a rank; what a
   rank bears at a limit goes by its speed. Nothing is kept between calls, nothing
   allocated, nothing reassociated. Ties go to the lower number. */

#include "split.h"

#include <string.h>

typedef int32_t idx;

#define MOST_LIMITS 100
#define NOBODY (-1)
#define PATIENCE 2 /* distances are measured anew once one rank in so many was put farther */

typedef struct {
    num ranks, parts, groups, num_in;
    idx *first;               /* [N + 1] first part of each rank */
    idx *slot, *group, *host; /* [M] */
    idx *begin, *member;      /* [K + 1]; [M] parts of each group, in order of ranks */
    idx *member_host;         /* [M] their ranks */
    idx *expert, *number;     /* [K]; [E] its group, NOBODY where it has no replica */
    idx *looked_at, *is_in;   /* [num_in] ranks that may stay above the limit; [N] whether one is of them */
    idx *distance;            /* [N] to a rank below the limit, at least; N where none is reached */
    idx *queue, *is_queued;   /* [N] */
    idx *set;                 /* [N + K] sets of ranks and groups */
    idx *open, *degree;       /* [K], [N] parts not laid yet */
    idx *is_laid;             /* [M] */
    double *tokens, *load;    /* [M], [N] */
    double *rest;             /* [K] tokens not laid yet */
    double *sum, *size;       /* [N] of a set of ranks */
    const double *speed;      /* [N] */
    double *most;             /* [N] what each rank bears at the limit */
} Graph;

/* --- the graph ------------------------------------------------------------------------------ */

static Graph graph_in(const SplitRoom *room, double *load) {
    const num slots = room->slots, ranks = room->ranks, experts = room->experts;
    Graph g = {.ranks = ranks, .load = load, .first = (idx *)room->ints, .tokens = room->reals,
               .speed = room->speed};
    g.slot = g.first + ranks + 1, g.group = g.slot + slots, g.host = g.group + slots;
    g.member = g.host + slots, g.member_host = g.member + slots, g.is_laid = g.member_host + slots;
    g.begin = g.is_laid + slots, g.expert = g.begin + experts + 1, g.number = g.expert + experts;
    g.open = g.number + experts, g.set = g.open + experts, g.looked_at = g.set + ranks + experts;
    g.is_in = g.looked_at + ranks, g.distance = g.is_in + ranks, g.queue = g.distance + ranks;
    g.is_queued = g.queue + ranks, g.degree = g.is_queued + ranks;
    g.rest = g.tokens + slots, g.sum = g.rest + experts, g.size = g.sum + ranks;
    g.most = g.size + ranks;
    return g;
}

/* List parts and groups of a row; what has no replica is load of its rank. */
static void list_parts(Graph *g, const SplitRoom *room, const num *row, const double *heat,
                       double fixed) {
    idx filled = 0;
    memset(g->number, 0, (size_t)room->experts * sizeof(idx));
    for (num s = 0; s < room->slots; s++)
        if (row[s] >= 0) g->number[row[s]]++;
    g->groups = g->parts = 0;
    for (num e = 0; e < room->experts; e++) {
        idx count = g->number[e];
        g->number[e] = NOBODY;
        if (count < 2) continue;
        g->number[e] = (idx)g->groups;
        g->expert[g->groups] = (idx)e;
        g->open[g->groups] = g->begin[g->groups] = filled;
        g->groups++, filled += count;
    }
    g->begin[g->groups] = filled;
    for (num r = 0; r < g->ranks; r++) {
        double load = 0.0;
        g->first[r] = (idx)g->parts;
        for (num s = room->begin[r]; s < room->begin[r + 1]; s++) {
            if (row[s] < 0) continue;
            idx k = g->number[row[s]];
            if (heat[row[s]] > 0.0) load += fixed;
            if (k < 0) {
                load += heat[row[s]];
                continue;
            }
            idx at = g->open[k]++, part = (idx)g->parts++;
            g->slot[part] = (idx)s, g->group[part] = k, g->host[part] = (idx)r;
            g->member[at] = part, g->member_host[at] = (idx)r;
        }
        g->load[r] = load;
    }
    g->first[g->ranks] = (idx)g->parts;
}

static idx root_of(idx *set, idx at) {
    while (set[at] != at) at = set[at] = set[set[at]];
    return at;
}

static int join(idx *set, idx one, idx other) {
    one = root_of(set, one), other = root_of(set, other);
    if (one == other) return 0;
    set[one > other ? one : other] = one > other ? other : one;
    return 1;
}

/* --- a start -------------------------------------------------------------------------------- */

/* Lay tokens of a part, and of the last part of its group what is then left. */
static num lay(Graph *g, idx part, double tokens, num last) {
    for (;;) {
        idx k = g->group[part], r = g->host[part];
        if (tokens < 0.0) tokens = 0.0;
        g->tokens[part] = tokens, g->load[r] += tokens, g->rest[k] -= tokens;
        g->is_laid[part] = 1, g->open[k]--;
        if (--g->degree[r] == 1) g->queue[last++] = r;
        if (g->open[k] != 1) return last;
        idx at = g->begin[k];
        while (g->is_laid[g->member[at]]) at++;
        part = g->member[at], tokens = g->rest[k];
    }
}

/* Lay all tokens. Parts that would close a circle take an even part of their group; the others
   make trees, whose leaves take what they lack to the limit, so that what is left above it or below
   is where a part would have to be negative. */
static void lay_from_leaves(Graph *g, const double *heat) {
    num last = 0;
    for (idx n = 0; n < g->ranks + g->groups; n++) g->set[n] = n;
    memset(g->degree, 0, (size_t)g->ranks * sizeof(idx));
    for (num k = 0; k < g->groups; k++) {
        g->rest[k] = heat[g->expert[k]];
        g->open[k] = g->begin[k + 1] - g->begin[k];
    }
    for (num p = 0; p < g->parts; p++) {
        idx k = g->group[p], r = g->host[p];
        g->is_laid[p] = !join(g->set, r, (idx)(g->ranks + k));
        if (!g->is_laid[p]) {
            g->degree[r]++;
            continue;
        }
        g->tokens[p] = heat[g->expert[k]] / (double)(g->begin[k + 1] - g->begin[k]);
        g->load[r] += g->tokens[p], g->rest[k] -= g->tokens[p], g->open[k]--;
    }
    for (num r = 0; r < g->ranks; r++)
        if (g->degree[r] == 1) g->queue[last++] = (idx)r;
    for (num k = 0; k < g->groups; k++) {
        if (g->open[k] != 1) continue;
        idx at = g->begin[k];
        while (g->is_laid[g->member[at]]) at++;
        last = lay(g, g->member[at], g->rest[k], last);
    }
    for (num first = 0; first < last; first++) {
        idx r = g->queue[first], p = g->first[r];
        if (g->degree[r] != 1) continue;
        while (g->is_laid[p]) p++;
        double lacking = g->most[r] - g->load[r], rest = g->rest[g->group[p]];
        last = lay(g, p, lacking < rest ? lacking : rest, last);
    }
}

/* --- flow ----------------------------------------------------------------------------------- */

/* Distances of all ranks to one below the limit, along parts with tokens. */
static void measure(Graph *g) {
    num last = 0;
    memset(g->open, 0, (size_t)g->groups * sizeof(idx));
    for (num n = 0; n < g->num_in; n++) {
        idx r = g->looked_at[n];
        g->distance[r] = (idx)g->ranks;
        if (g->load[r] < g->most[r] - TINY) g->distance[r] = 0, g->queue[last++] = r;
    }
    for (num first = 0; first < last; first++) {
        idx r = g->queue[first], next = g->distance[r] + 1;
        for (idx p = g->first[r]; p < g->first[r + 1]; p++) {
            idx k = g->group[p];
            if (g->open[k]) continue;
            g->open[k] = 1;
            for (idx at = g->begin[k]; at < g->begin[k + 1]; at++) {
                idx other = g->member_host[at];
                if (!g->is_in[other] || g->distance[other] < g->ranks) continue;
                if (g->tokens[g->member[at]] <= TINY) continue;
                g->distance[other] = next, g->queue[last++] = other;
            }
        }
    }
}

typedef struct {
    num head, count;
} Waiting;

static void enqueue(Graph *g, Waiting *w, idx rank) {
    num tail = w->head + w->count++;
    g->queue[tail >= g->ranks ? tail - g->ranks : tail] = rank, g->is_queued[rank] = 1;
}

/* Push what a rank has above the limit one step nearer; return the distance of the nearest rank
   that it could still push to. */
static idx push(Graph *g, Waiting *w, idx rank) {
    idx nearest = (idx)g->ranks, wanted = g->distance[rank] - 1;
    for (idx p = g->first[rank]; p < g->first[rank + 1]; p++) {
        idx k = g->group[p];
        for (idx at = g->begin[k]; at < g->begin[k + 1] && g->tokens[p] > TINY; at++) {
            idx other = g->member_host[at], then = g->distance[other];
            if (then == wanted) {
                double over = g->load[rank] - g->most[rank];
                double amount = over < g->tokens[p] ? over : g->tokens[p];
                g->tokens[p] -= amount, g->tokens[g->member[at]] += amount;
                g->load[rank] -= amount, g->load[other] += amount;
                if (!g->is_queued[other] && g->load[other] > g->most[other] + TINY) enqueue(g, w, other);
                if (g->load[rank] <= g->most[rank] + TINY) return wanted;
                if (g->tokens[p] <= TINY) break;
            }
            if (then < nearest && other != rank) nearest = then;
        }
    }
    return nearest;
}

/* Push load from ranks above the limit to ranks below it, until what is left can reach none. */
static void drain(Graph *g) {
    Waiting waiting = {0, 1};
    for (num round = 0; waiting.count > 0 && round < 8 * g->ranks + 8; round++) {
        num patience = g->ranks / PATIENCE + 1;
        measure(g);
        waiting.head = waiting.count = 0;
        for (num n = 0; n < g->num_in; n++) {
            idx r = g->looked_at[n];
            g->is_queued[r] = 0;
            if (g->load[r] > g->most[r] + TINY && g->distance[r] < g->ranks) enqueue(g, &waiting, r);
        }
        while (waiting.count > 0 && patience > 0) {
            idx rank = g->queue[waiting.head];
            waiting.head = waiting.head + 1 == g->ranks ? 0 : waiting.head + 1, waiting.count--;
            g->is_queued[rank] = 0;
            while (g->distance[rank] < g->ranks) {
                idx nearest = push(g, &waiting, rank);
                if (g->load[rank] <= g->most[rank] + TINY) break;
                g->distance[rank] = nearest + 1, patience--;
            }
        }
    }
}

/* The highest mean of ranks that what is above the limit reaches and nothing leaves: no peak is
   below it. These ranks are all that are looked at from then on; none where nothing is above. */
static double fullest_mean(Graph *g) {
    double over = 0.0, fullest = 0.0;
    num last = 0;
    for (num n = 0; n < g->num_in; n++) {
        idx r = g->looked_at[n];
        g->is_in[r] = g->load[r] > g->most[r] + TINY;
        g->set[r] = r, g->sum[r] = g->size[r] = 0.0;
        if (g->is_in[r]) g->queue[last++] = r, over += g->load[r] - g->most[r];
    }
    if (over <= TINY * (double)g->ranks) last = 0;
    for (num first = 0; first < last; first++) {
        idx r = g->queue[first];
        for (idx p = g->first[r]; p < g->first[r + 1]; p++) {
            if (g->tokens[p] <= TINY) continue;
            idx k = g->group[p];
            for (idx at = g->begin[k]; at < g->begin[k + 1]; at++) {
                idx other = g->member_host[at];
                if (!g->is_in[other]) g->is_in[other] = 1, g->queue[last++] = other;
                join(g->set, r, other);
            }
        }
    }
    for (num n = 0; n < last; n++) {
        idx root = root_of(g->set, g->queue[n]);
        g->sum[root] += g->load[g->queue[n]], g->size[root] += g->speed[g->queue[n]];
        g->looked_at[n] = g->queue[n];
    }
    g->num_in = last;
    for (num n = 0; n < last; n++) {
        idx r = g->queue[n];
        if (g->size[r] > 0.0 && g->sum[r] / g->size[r] > fullest)
            fullest = g->sum[r] / g->size[r];
    }
    return fullest;
}

typedef struct {
    double enough; /* a peak that is not lowered further */
    double slack;  /* part of the lowest peak that it may be above it */
} Aim;

/* Lay all tokens of a row at the lowest peak there is: the limit rises from the mean to the highest
   mean of what is full, until nothing is above it. Newton's steps on a quotient, none of them above
   the lowest peak by more than the slack. */
static double level(Graph *g, const SplitRoom *room, const num *row, const double *heat,
                    double fixed, Aim aim) {
    double total = 0.0, used = 0.0, peak = 0.0;
    list_parts(g, room, row, heat, fixed);
    for (num r = 0; r < g->ranks; r++) {
        total += g->load[r];
        if (room->begin[r + 1] > room->begin[r]) used += g->speed[r];
    }
    for (num k = 0; k < g->groups; k++) total += heat[g->expert[k]];
    double limit = total / (used > 0.0 ? used : 1.0) * (1.0 + aim.slack);
    if (limit < aim.enough) limit = aim.enough;
    g->num_in = g->ranks;
    for (num r = 0; r < g->ranks; r++)
        g->looked_at[r] = (idx)r, g->is_in[r] = 1, g->most[r] = limit * g->speed[r];
    lay_from_leaves(g, heat);
    for (num n = 0; n < MOST_LIMITS; n++) {
        drain(g);
        double mean = fullest_mean(g);
        if (mean <= limit * (1 + 1e-14)) break;
        limit = mean * (1.0 + aim.slack);
        for (num r = 0; r < g->num_in; r++)
            g->most[g->looked_at[r]] = limit * g->speed[g->looked_at[r]];
    }
    for (num r = 0; r < g->ranks; r++)
        if (g->load[r] > peak * g->speed[r]) peak = g->load[r] / g->speed[r];
    return peak;
}

/* Level each group over its ranks, one after another; no peak rises. */
static void level_below(Graph *g) {
    for (num k = 0; k < g->groups; k++) {
        idx first = g->begin[k], count = g->begin[k + 1] - first, used = 0;
        double below = 0.0, width = 0.0, *fill = g->sum;
        for (idx n = 0; n < count; n++) {
            idx part = g->member[first + n], r = g->host[part], at = n;
            below += g->tokens[part];
            fill[r] = (g->load[r] -= g->tokens[part]) / g->speed[r];
            for (; at > 0 && fill[g->host[g->queue[at - 1]]] > fill[r]; at--)
                g->queue[at] = g->queue[at - 1];
            g->queue[at] = part;
        }
        for (; used < count; used++) {
            idx r = g->host[g->queue[used]];
            if (used > 0 && below / width <= fill[r]) break;
            below += g->load[r], width += g->speed[r];
        }
        for (idx n = 0; n < count; n++) {
            idx part = g->queue[n], r = g->host[part];
            double tokens = n < used ? below / width * g->speed[r] - g->load[r] : 0.0;
            g->tokens[part] = tokens > 0.0 ? tokens : 0.0;
            g->load[r] += g->tokens[part];
        }
    }
}

/* --- layers --------------------------------------------------------------------------------- */

double best_split(const SplitRoom *room, const num *row, const double *heat, double fixed,
                  double enough, double *tokens, double *load) {
    Graph g = graph_in(room, load);
    double peak = level(&g, room, row, heat, fixed, (Aim){enough, 0.0});
    for (num s = 0; s < room->slots; s++)
        tokens[s] = row[s] >= 0 && g.number[row[s]] < 0 ? heat[row[s]] : 0.0;
    for (num p = 0; p < g.parts; p++) tokens[g.slot[p]] = g.tokens[p];
    return peak;
}

/* At the lowest peaks [L] that rows [L, P] allow, or what is at most *enough: the tokens [L, P] of
   each slot. speed [N] and fixed [L] as best_split says. Work space as SplitRoom says, and N reals;
   the same for shares. */
void eplb_best_split(num layers, num slots, num ranks, num experts, const num *rows, const num *begin,
                     const double *heat, const double *speed, const double *fixed,
                     const double *enough, double *tokens, double *peaks, num *ints, double *reals) {
    SplitRoom room = {slots, ranks, experts, begin, speed, ints, reals + ranks};
    for (num n = 0; n < layers; n++)
        peaks[n] = best_split(&room, rows + n * slots, heat + n * experts, fixed[n], *enough,
                              tokens + n * slots, reals);
}

/* The shares [L, P] that slots take of their experts, even where that has none, at peaks that are
   above the lowest by a part *slack at most. What is below the peak is leveled. */
void eplb_best_shares(num layers, num slots, num ranks, num experts, const num *rows,
                      const num *begin, const double *heat, const double *speed,
                      const double *fixed, const double *slack, double *shares, num *ints,
                      double *reals) {
    SplitRoom room = {slots, ranks, experts, begin, speed, ints, reals + ranks};
    for (num n = 0; n < layers; n++) {
        const num *row = rows + n * slots;
        double *own = shares + n * slots;
        Graph g = graph_in(&room, reals);
        level(&g, &room, row, heat + n * experts, fixed[n], (Aim){0.0, *slack});
        level_below(&g);
        for (num s = 0; s < slots; s++) own[s] = row[s] >= 0 ? 1.0 : 0.0;
        for (num k = 0; k < g.groups; k++) {
            double total = 0.0, count = (double)(g.begin[k + 1] - g.begin[k]);
            for (idx at = g.begin[k]; at < g.begin[k + 1]; at++) total += g.tokens[g.member[at]];
            for (idx at = g.begin[k]; at < g.begin[k + 1]; at++) {
                double part = g.tokens[g.member[at]];
                own[g.slot[g.member[at]]] = total > 0.0 ? part / total : 1.0 / count;
            }
        }
    }
}
