/* Whole sources: each source rank sends all its tokens of an expert to one replica of it.

   Per expert this is a small partition: sources of known size, replicas with a size to reach. Near
   and large sources come first and take a near replica while it has room for half of them; then
   single sources change over or two swap, between the fullest replica and the emptiest, until
   nothing wins. Experts come in the order of their tokens, most first, and what an expert's whole
   sources leave a rank with too much or too little, the next ones there make up. No function keeps anything between calls, none allocates. The same tokens give the
   same choice everywhere. */

#include <stdint.h>

typedef int64_t num;

#define ENOUGH 2e-4        /* distance from a size, in mean loads of a rank, that is left alone */
#define MOST_ROUNDS 16
#define NUM_CANDIDATES 32  /* sources of one replica, the smallest first, that may change over */
#define LEAST_GAIN 0.999   /* of the distance, that a change must stay below, its price included */
#define REMOTE 2           /* steps to a rank on another node; 1 on the same node, 0 the rank itself */
#define NOBODY (-1)

typedef struct {
    num sources, count;         /* N, replicas of this expert */
    const num *nodes;           /* [N] */
    double price;
    const double *tokens;       /* [N] in mean loads of a rank */
    num *slots, *hosts;         /* [count] */
    double *room;               /* [count] tokens that each still lacks */
    num *choice;                /* [N] replica of each source */
    num *by_size, *nearest;     /* [N] sources, large ones first; steps to the nearest replica */
} Partition;

static num steps(const Partition *p, num source, num replica) {
    num host = p->hosts[replica];
    return REMOTE - (p->nodes[host] == p->nodes[source]) - (host == source);
}

/* Numbers 0 to count - 1 by size, most first; ties keep their order. Gaps shrink as 3 n + 1. */
static void sort_by_size(num count, const double *sizes, num *order) {
    num gap = 1;
    for (num n = 0; n < count; n++) order[n] = n;
    while (gap < count / 3) gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3)
        for (num n = gap; n < count; n++) {
            num moved = order[n], at = n;
            double size = sizes[moved];
            for (; at >= gap; at -= gap) {
                num before = order[at - gap];
                if (sizes[before] > size || (sizes[before] == size && before < moved)) break;
                order[at] = before;
            }
            order[at] = moved;
        }
}

/* To the replica with the most room, or a near one that has enough; ties go to the nearer one. */
static void give(Partition *p, num source, double near) {
    double tokens = p->tokens[source], best_worth = 0.0;
    num best = 0;
    for (num c = 0; c < p->count; c++) {
        double worth = p->room[c];
        if (worth >= 0.5 * tokens) worth += near * (double)(REMOTE - steps(p, source, c));
        int ties = worth == best_worth && steps(p, source, c) < steps(p, source, best);
        if (c == 0 || worth > best_worth || ties) best = c, best_worth = worth;
    }
    p->choice[source] = best;
    p->room[best] -= tokens;
}

static void fill(Partition *p) {
    double near = 2.0; /* more than all tokens */
    for (num n = 0; n < p->sources; n++) {
        near += 2.0 * p->tokens[n];
        p->nearest[n] = REMOTE;
        for (num c = 0; c < p->count; c++)
            if (steps(p, n, c) < p->nearest[n]) p->nearest[n] = steps(p, n, c);
    }
    sort_by_size(p->sources, p->tokens, p->by_size);
    for (num nearest = 0; nearest <= REMOTE; nearest++)
        for (num n = 0; n < p->sources; n++)
            if (p->nearest[p->by_size[n]] == nearest) give(p, p->by_size[n], near);
}

typedef struct {
    num count, who[NUM_CANDIDATES + 1];
    double tokens[NUM_CANDIDATES + 1], away[NUM_CANDIDATES + 1];
} Candidates;

/* Nobody, and sources of one replica that could use another: tokens, and what going there costs. */
static void find_candidates(const Partition *p, num from, num to, Candidates *found) {
    found->count = 1, found->who[0] = NOBODY, found->tokens[0] = found->away[0] = 0.0;
    for (num n = p->sources; n-- > 0 && found->count <= NUM_CANDIDATES;) {
        num source = p->by_size[n];
        if (p->choice[source] != from) continue;
        double farther = (double)(steps(p, source, to) - steps(p, source, from));
        found->who[found->count] = source, found->tokens[found->count] = p->tokens[source];
        found->away[found->count++] = p->price * p->tokens[source] * farther;
    }
}

/* The best change between the fullest replica and the emptiest; 0 where none wins. */
static int change_over(Partition *p) {
    num full = 0, empty = 0;
    Candidates gives, takes;
    for (num c = 1; c < p->count; c++) {
        if (p->room[c] < p->room[full]) full = c;
        if (p->room[c] > p->room[empty]) empty = c;
    }
    if (p->room[empty] <= ENOUGH && -p->room[full] <= ENOUGH) return 0;
    double wanted = (p->room[empty] - p->room[full]) / 2.0, best = LEAST_GAIN * wanted;
    num given = NOBODY, taken = NOBODY;
    find_candidates(p, full, empty, &gives);
    find_candidates(p, empty, full, &takes);
    for (num g = 0; g < gives.count; g++)
        for (num t = 0; t < takes.count; t++) {
            double off = gives.tokens[g] - takes.tokens[t] - wanted;
            if (off < 0.0) off = -off;
            double cost = off + gives.away[g] + takes.away[t];
            if (off < LEAST_GAIN * wanted && cost < best) best = cost, given = g, taken = t;
        }
    if (given == NOBODY) return 0;
    double shift = gives.tokens[given] - takes.tokens[taken];
    if (given > 0) p->choice[gives.who[given]] = empty;
    if (taken > 0) p->choice[takes.who[taken]] = full;
    p->room[full] += shift, p->room[empty] -= shift;
    return 1;
}

/* Slots of each expert in one layer, in slot order, as lists: first [E] and next [P], -1 at the end. */
static void list_slots(num slots, num experts, const num *row, num *first, num *next, num *last) {
    for (num e = 0; e < experts; e++) first[e] = last[e] = NOBODY;
    for (num s = 0; s < slots; s++) {
        num e = row[s];
        next[s] = NOBODY;
        if (e < 0) continue;
        if (first[e] < 0) first[e] = s;
        else next[last[e]] = s;
        last[e] = s;
    }
}

/* tables [N, L, E]: the slot that each source uses for each expert, given its tokens [N, L, E], which
   lie as `strides` [3] say, and the share [L, P] of its expert that each slot is to take. Where an expert has no tokens, source n
   uses replica n mod count. nodes [N], price of a step of one token. Work space: 3 P + 3 E + 3 N
   numbers, P + 2 N + E reals. */
void eplb_whole_sources(num layers, num slots, num ranks, num experts, const num *rows,
                        const num *begin, const double *tokens, const num *strides,
                        const double *shares, const num *nodes, const double *price, int32_t *tables, num *ints,
                        double *reals) {
    num *next = ints, *first = next + slots, *last = first + experts;
    Partition p = {.sources = ranks, .nodes = nodes, .price = *price, .room = reals};
    double *own = reals + slots, *owed = own + ranks, *totals = owed + ranks;
    num *turn;
    p.slots = last + experts, p.hosts = p.slots + slots, p.choice = p.hosts + slots;
    p.by_size = p.choice + ranks, p.nearest = p.by_size + ranks;
    turn = p.nearest + ranks;
    p.tokens = own;
    for (num n = 0; n < layers; n++) {
        double sum = 0.0;
        list_slots(slots, experts, rows + n * slots, first, next, last);
        for (num e = 0; e < experts; e++) totals[e] = 0.0;
        for (num r = 0; r < ranks; r++) {
            owed[r] = 0.0;
            const double *sent = tokens + r * strides[0] + n * strides[1];
            int32_t *table = tables + (r * layers + n) * experts;
            for (num e = 0; e < experts; e++) totals[e] += sent[e * strides[2]], table[e] = (int32_t)first[e];
        }
        for (num e = 0; e < experts; e++) sum += totals[e];
        sort_by_size(experts, totals, turn);
        for (num at = 0; at < experts; at++) {
            num e = turn[at];
            double total = 0.0;
            if (first[e] < 0 || next[first[e]] < 0) continue;
            for (num r = 0; r < ranks; r++)
                total += own[r] =
                    sum > 0.0 ? tokens[r * strides[0] + n * strides[1] + e * strides[2]] / sum * (double)ranks : 0.0;
            p.count = 0;
            for (num s = first[e], r = 0; s >= 0; s = next[s]) {
                while (begin[r + 1] <= s) r++;
                p.slots[p.count] = s, p.hosts[p.count] = r;
                p.room[p.count++] = shares[n * slots + s] * total + owed[r];
            }
            if (total > 0.0) {
                fill(&p);
                for (num round = 0; round < MOST_ROUNDS && change_over(&p); round++) continue;
                for (num c = 0; c < p.count; c++) owed[p.hosts[c]] = p.room[c];
            }
            for (num r = 0; r < ranks; r++) {
                num replica = total > 0.0 ? p.choice[r] : r % p.count;
                tables[(r * layers + n) * experts + e] = (int32_t)p.slots[replica];
            }
        }
    }
}
