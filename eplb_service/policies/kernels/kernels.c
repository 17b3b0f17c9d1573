/* The compiled loops of the policies: see docs/placement.md for what they do and why.

   One layer is P slots on N ranks, numbered rank by rank, and E experts. Loads are in mean loads
   of a rank. Tokens of an expert lie on its replicas; all slots of one expert form a ring. Load
   moves from rank to rank along a chain of replicated experts; how the best split is found is told
   in split.c.

   No function keeps anything between calls, none allocates: work space comes from the caller.
   Sums run in slot order and nothing is reassociated, so results are the same on every machine
   that computes in IEEE doubles. Ties go to the lower number. */

#include "split.h"

#include <string.h>

#define TOLERATED 1e-9    /* load above a limit that is none */
#define NUM_TRIED 64      /* changes of one layer that are measured for one step */
#define NUM_OTHERS 8      /* measured after one move that is enough: it may cost the even split */
#define MOST_TRIED 96     /* the same where none of the first wins */
#define NUM_HOT 10        /* experts of the fullest region that may get a replica */
#define NUM_ROOMY 12      /* ranks with most room that may take part in a swap */
#define MOST_STEPS 64
#define LEAST_GAIN 1e-4   /* mean loads of a rank, for each move */
#define DEPTH_PRICE 0.05  /* mean loads of a rank that a chain may be longer by one for */
#define NOBODY (-1)

typedef struct {
    num slots, ranks, experts;
    const num *begin;               /* [N + 1] first slot of each rank */
    const double *heat;             /* [E] */
    num *row, *host, *after;        /* [P] expert or NOBODY; rank; next slot of that expert */
    num *head, *counts;             /* [E] a slot of each expert; its replicas */
    double *tokens, *load;          /* [P], [N] */
    num *queue, *source, *target;   /* [N] ranks to look at; slots by which each was reached */
    num *seen;                      /* [N] ranks that the last search reached */
    num *parent;                    /* [N] sets of ranks */
    double *kept_tokens, *kept_load;/* [P], [N] */
    double *over, *room;            /* [N] by region: load above the limit, load lacking to it */
    num *region;                    /* [N] */
    num *first, *replicas;          /* [N + 1], [P + 1] slots with other replicas, by rank */
    SplitRoom split;
    const double *speed;            /* [N] as in SplitRoom */
    double *most, fixed;            /* [N] what each rank bears at the limit; see best_split */
} Layer;

typedef struct {
    double act_above, repair_to, even_cap, breaking, even_price;
} Limits;

typedef struct {
    double worth;
    num giver, taker, is_swap;
} Change;

static Layer layer_in(num slots, num ranks, num experts, const num *begin, const double *speed,
                      num *ints, double *reals) {
    Layer a;
    a.slots = slots, a.ranks = ranks, a.experts = experts, a.begin = begin, a.heat = 0;
    a.speed = speed, a.fixed = 0.0;
    a.row = ints, a.host = a.row + slots, a.after = a.host + slots;
    a.queue = a.after + slots, a.source = a.queue + ranks, a.target = a.source + ranks;
    a.seen = a.target + ranks, a.parent = a.seen + ranks, a.region = a.parent + ranks;
    a.first = a.region + ranks, a.replicas = a.first + ranks + 1;
    a.head = a.replicas + slots + 1, a.counts = a.head + experts;
    a.tokens = reals, a.kept_tokens = a.tokens + slots, a.load = a.kept_tokens + slots;
    a.kept_load = a.load + ranks, a.over = a.kept_load + ranks, a.room = a.over + ranks;
    a.most = a.room + ranks;
    a.split = (SplitRoom){slots, ranks, experts, begin, speed, a.counts + experts, a.most + ranks};
    for (num rank = 0; rank < ranks; rank++)
        for (num slot = begin[rank]; slot < begin[rank + 1]; slot++) a.host[slot] = rank;
    return a;
}

static void attach(Layer *a, num slot, num expert) {
    num head = a->head[expert];
    a->row[slot] = expert;
    a->after[slot] = head < 0 ? slot : a->after[head];
    if (head >= 0) a->after[head] = slot;
    a->head[expert] = slot;
    a->counts[expert]++;
}

static void detach(Layer *a, num slot) {
    num expert = a->row[slot], before = slot;
    while (a->after[before] != slot) before = a->after[before];
    a->after[before] = a->after[slot];
    a->head[expert] = before == slot ? NOBODY : before;
    a->counts[expert]--;
}

static void hold(Layer *a, const num *row, const double *heat, double fixed) {
    a->heat = heat, a->fixed = fixed;
    for (num e = 0; e < a->experts; e++) a->head[e] = NOBODY, a->counts[e] = 0;
    for (num s = 0; s < a->slots; s++) {
        a->row[s] = NOBODY, a->after[s] = s, a->tokens[s] = 0.0;
        if (row[s] >= 0) attach(a, s, row[s]);
    }
}

static int is_on(const Layer *a, num expert, num rank) {
    num head = a->head[expert], slot = head;
    if (head < 0) return 0;
    do {
        if (a->host[slot] == rank) return 1;
        slot = a->after[slot];
    } while (slot != head);
    return 0;
}

static num root_of(num *parent, num rank) {
    while (parent[rank] != rank) rank = parent[rank] = parent[parent[rank]];
    return rank;
}

static int join_sets(num *parent, num one, num other) {
    one = root_of(parent, one), other = root_of(parent, other);
    if (one == other) return 0;
    parent[one > other ? one : other] = one > other ? other : one;
    return 1;
}

/* --- flow ---------------------------------------------------------------------------------- */

static double push(Layer *a, num rank) {
    double amount = a->most[rank] - a->load[rank];
    num at = rank;
    for (; a->source[at] >= 0; at = a->host[a->source[at]])
        if (a->tokens[a->source[at]] < amount) amount = a->tokens[a->source[at]];
    if (a->load[at] - a->most[at] < amount) amount = a->load[at] - a->most[at];
    if (amount <= 0.0) return 0.0;
    a->load[at] -= amount;
    a->load[rank] += amount;
    for (at = rank; a->source[at] >= 0; at = a->host[a->source[at]]) {
        a->tokens[a->source[at]] -= amount;
        a->tokens[a->target[at]] += amount;
    }
    return amount;
}

static double flow(Layer *a, num last, double over) {
    double moved = 0.0;
    for (num first = 0; first < last && over - moved > TINY; first++) {
        num rank = a->queue[first];
        for (num at = a->first[rank]; at < a->first[rank + 1]; at++) {
            num slot = a->replicas[at];
            if (a->tokens[slot] <= TINY) continue;
            for (num other = a->after[slot]; other != slot; other = a->after[other]) {
                num there = a->host[other];
                if (a->seen[there]) continue;
                a->seen[there] = 1;
                a->source[there] = slot, a->target[there] = other;
                a->queue[last++] = there;
                if (a->load[there] < a->most[there] - TINY) moved += push(a, there);
            }
        }
    }
    return moved;
}

/* Let load flow from ranks above the limit to ranks below it, and return what is left above.
   `seen` are then the ranks that it reaches. */
static double drain(Layer *a, double limit) {
    double over = 0.0;
    num count = 0;
    for (num r = 0; r < a->ranks; r++) {
        a->first[r] = count, a->most[r] = limit * a->speed[r];
        for (num s = a->begin[r]; s < a->begin[r + 1]; s++)
            a->replicas[count] = s, count += a->after[s] != s;
    }
    a->first[a->ranks] = count;
    for (num round = 0; round < 4 * a->ranks + 8; round++) {
        num last = 0;
        over = 0.0;
        for (num r = 0; r < a->ranks; r++) {
            a->seen[r] = a->load[r] > a->most[r] + TINY;
            if (!a->seen[r]) continue;
            over += a->load[r] - a->most[r];
            a->queue[last++] = r, a->source[r] = NOBODY;
        }
        if (!last || flow(a, last, over) <= 1e-3 * TINY) break;
    }
    return over;
}

/* Ranks among which tokens flow, those that `seen` tells apart from the others. */
static void find_regions(Layer *a) {
    for (num r = 0; r < a->ranks; r++) a->region[r] = r, a->over[r] = a->room[r] = 0.0;
    for (num s = 0; s < a->slots; s++) {
        if (a->after[s] == s || a->tokens[s] <= TOLERATED) continue;
        for (num other = a->after[s]; other != s; other = a->after[other])
            if (a->seen[a->host[s]] == a->seen[a->host[other]])
                join_sets(a->region, a->host[s], a->host[other]);
    }
    for (num r = 0; r < a->ranks; r++) a->region[r] = root_of(a->region, r);
    for (num r = 0; r < a->ranks; r++) {
        double off = a->load[r] - a->most[r];
        if (a->begin[r + 1] == a->begin[r]) continue;
        if (off > 0.0) a->over[a->region[r]] += off;
        else a->room[a->region[r]] -= off;
    }
}

/* --- the replica graph ------------------------------------------------------------------------ */

/* Components of the graph; ranks without slots are none. */
static num num_parts(const Layer *a, num *parent) {
    num parts = 0;
    for (num r = 0; r < a->ranks; r++) parent[r] = r, parts += a->begin[r + 1] > a->begin[r];
    for (num s = 0; s < a->slots; s++)
        if (a->after[s] != s) parts -= join_sets(parent, a->host[s], a->host[a->after[s]]);
    return parts;
}

static double portion(const Layer *a, num expert) {
    return a->heat[expert] / (double)a->counts[expert];
}

/* What an expert costs its rank beside its tokens. */
static double fixed_of(const Layer *a, num expert) {
    return a->heat[expert] > 0.0 ? a->fixed : 0.0;
}

/* Sum of the loads above a cap under an even split. */
static double even_excess(const Layer *a, double cap) {
    double total = 0.0;
    for (num r = 0; r < a->ranks; r++) {
        double load = 0.0, most = cap * a->speed[r];
        for (num s = a->begin[r]; s < a->begin[r + 1]; s++)
            if (a->row[s] >= 0) load += portion(a, a->row[s]) + fixed_of(a, a->row[s]);
        if (load > most) total += load - most;
    }
    return total;
}

/* --- repairing ----------------------------------------------------------------------------- */

static num lightest_but(const Layer *a, num slot) {
    num best = a->after[slot];
    for (num other = a->after[best]; other != slot; other = a->after[other])
        if (a->load[a->host[other]] * a->speed[a->host[best]] <
            a->load[a->host[best]] * a->speed[a->host[other]])
            best = other;
    return best;
}

/* Swap two slots, or let the taker hold the giver's expert in the place of a replica. */
static void apply(Layer *a, Change c) {
    num given = a->row[c.giver], taken = a->row[c.taker];
    num here = a->host[c.giver], there = a->host[c.taker];
    double more = fixed_of(a, given) - fixed_of(a, taken);
    double tokens = a->tokens[c.taker], moved = a->tokens[c.giver];
    if (c.is_swap) {
        detach(a, c.taker), detach(a, c.giver);
        attach(a, c.giver, taken), attach(a, c.taker, given);
        a->tokens[c.giver] = tokens, a->tokens[c.taker] = moved;
        a->load[here] += tokens - moved - more, a->load[there] += moved - tokens + more;
        return;
    }
    num least = lightest_but(a, c.taker);
    a->tokens[least] += tokens;
    a->load[a->host[least]] += tokens;
    a->load[there] += more - tokens;
    detach(a, c.taker), attach(a, c.taker, given);
    a->tokens[c.taker] = 0.0;
}

/* Let the slots hold what they held; tokens and loads are for the caller. */
static void undo(Layer *a, Change c, num given, num taken) {
    detach(a, c.taker);
    if (c.is_swap) detach(a, c.giver), attach(a, c.giver, given);
    attach(a, c.taker, taken);
}

/* Keep a change if it is among the best; the list is in order, best first. */
static num remember(Change *tried, num most, num found, Change c) {
    num at = found;
    if (found == most && c.worth <= tried[--at].worth) return found;
    for (; at > 0 && tried[at - 1].worth < c.worth; at--) tried[at] = tried[at - 1];
    tried[at] = c;
    return found < most ? found + 1 : found;
}

/* Slots of the hottest experts of a region, by replica; NOBODY where there are fewer. */
static void find_hot(const Layer *a, num full, num *hot) {
    for (num n = 0; n < NUM_HOT; n++) hot[n] = NOBODY;
    for (num s = 0; s < a->slots; s++) {
        num expert = a->row[s], at = NUM_HOT - 1;
        if (expert < 0 || a->head[expert] != s || a->region[a->host[s]] != full) continue;
        double own = portion(a, expert);
        if (hot[at] != NOBODY && portion(a, a->row[hot[at]]) >= own) continue;
        for (; at > 0 && (hot[at - 1] == NOBODY || portion(a, a->row[hot[at - 1]]) < own); at--)
            hot[at] = hot[at - 1];
        hot[at] = s;
    }
}

/* Replicas of the region's experts in the place of others, outside of it. */
static num try_replicas(const Layer *a, num full, Change *tried, num most) {
    double over = a->over[full];
    num found = 0, hot[NUM_HOT];
    find_hot(a, full, hot);
    for (num taker = 0; taker < a->slots; taker++) {
        num rank = a->host[taker];
        if (a->after[taker] == taker || a->seen[rank]) continue;
        num here = a->region[rank], other = lightest_but(a, taker);
        num there = a->region[a->host[other]];
        double tokens = a->tokens[taker], room = a->room[here] + tokens, more = over, spilt = 0.0;
        if (a->seen[a->host[other]]) more += tokens;
        else if (there == here) room -= tokens;
        else if (tokens > a->room[there]) spilt = tokens - a->room[there];
        for (num n = 0; n < NUM_HOT && hot[n] != NOBODY; n++) {
            num expert = a->row[hot[n]];
            double taken_up = a->heat[expert] < room ? a->heat[expert] : room;
            if (more < taken_up) taken_up = more;
            double worth = over - more + taken_up - spilt;
            if (worth <= LEAST_GAIN || is_on(a, expert, rank)) continue;
            Change c = {worth + 1e-3 * portion(a, expert), hot[n], taker, 0};
            found = remember(tried, most, found, c);
        }
    }
    return found;
}

/* Swaps of the region's single experts with colder ones where there is room. */
static num try_swaps(const Layer *a, num full, num found, Change *tried, num most) {
    num roomy[NUM_ROOMY], count = 0;
    for (num r = 0; r < a->ranks; r++) {
        double room = a->room[a->region[r]];
        if (a->seen[r] || room <= 0.0) continue;
        num at = count;
        if (count == NUM_ROOMY && a->room[a->region[roomy[--at]]] >= room) continue;
        for (; at > 0 && a->room[a->region[roomy[at - 1]]] < room; at--) roomy[at] = roomy[at - 1];
        roomy[at] = r;
        if (count < NUM_ROOMY) count++;
    }
    for (num giver = 0; giver < a->slots; giver++) {
        if (a->row[giver] < 0 || a->after[giver] != giver) continue;
        if (a->region[a->host[giver]] != full) continue;
        for (num n = 0; n < count; n++) {
            double room = a->room[a->region[roomy[n]]];
            for (num taker = a->begin[roomy[n]]; taker < a->begin[roomy[n] + 1]; taker++) {
                if (a->row[taker] < 0 || a->after[taker] != taker) continue;
                double shift = a->heat[a->row[giver]] - a->heat[a->row[taker]];
                double worth = shift < a->over[full] ? shift : a->over[full];
                if (shift > room) worth -= shift - room;
                if (worth <= 2 * LEAST_GAIN) continue;
                Change c = {worth / 2, giver, taker, 1};
                found = remember(tried, most, found, c);
            }
        }
    }
    return found;
}

/* Change slots until the limit is kept, nothing wins or moves are spent; return the moves. */
static num repair(Layer *a, Limits limits, num left) {
    num used = 0, most = NUM_TRIED;
    double over = drain(a, limits.repair_to);
    for (num step = 0; step < MOST_STEPS && over > TOLERATED; step++) {
        Change tried[MOST_TRIED];
        num full = 0, best = NOBODY, found, is_enough = 0;
        double best_gain = LEAST_GAIN;
        find_regions(a);
        for (num r = 1; r < a->ranks; r++)
            if (a->over[r] > a->over[full]) full = r;
        found = try_swaps(a, full, try_replicas(a, full, tried, most), tried, most);
        num parts = num_parts(a, a->parent);
        double even = even_excess(a, limits.even_cap), own = a->over[full];
        double breaking = most == NUM_TRIED ? limits.breaking : 0.0;
        double bonus = (parts > 1 ? breaking : 0.0) + even * limits.even_price;
        memcpy(a->kept_tokens, a->tokens, (size_t)a->slots * sizeof(double));
        memcpy(a->kept_load, a->load, (size_t)a->ranks * sizeof(double));
        for (num n = 0, others = NUM_OTHERS; n < found && others > 0; n++) {
            num given = a->row[tried[n].giver], taken = a->row[tried[n].taker];
            double cost = (double)(1 + tried[n].is_swap);
            if (used + 1 + tried[n].is_swap > left || over + bonus <= best_gain * cost) continue;
            others -= is_enough;
            apply(a, tried[n]);
            double reached = drain(a, limits.repair_to);
            is_enough |= reached <= over - own + TOLERATED && !tried[n].is_swap;
            /* Most changes are told by what they win at best; graph and even split are dear. */
            if (reached < over - TOLERATED && over - reached + bonus > best_gain * cost) {
                double worse = (double)(num_parts(a, a->parent) - parts) * breaking +
                               (even_excess(a, limits.even_cap) - even) * limits.even_price;
                double gain = (over - reached - worse) / cost;
                if (gain > best_gain) best = n, best_gain = gain;
            }
            undo(a, tried[n], given, taken);
            memcpy(a->tokens, a->kept_tokens, (size_t)a->slots * sizeof(double));
            memcpy(a->load, a->kept_load, (size_t)a->ranks * sizeof(double));
        }
        if (best == NOBODY) {
            /* What is stuck may break the graph rather than stay above the limit. */
            if (most == MOST_TRIED) break;
            most = MOST_TRIED;
            over = drain(a, limits.repair_to);
            continue;
        }
        most = NUM_TRIED;
        apply(a, tried[best]);
        used += 1 + tried[best].is_swap;
        over = drain(a, limits.repair_to);
    }
    return used;
}

/* --- packing anew -------------------------------------------------------------------------- */

typedef struct {
    double key;
    num item;
} Entry;

static int is_before(Entry one, Entry other) {
    return one.key < other.key || (one.key == other.key && one.item < other.item);
}

static void sink(Entry *heap, num size, num at) {
    Entry entry = heap[at];
    for (num low; (low = 2 * at + 1) < size; at = low) {
        if (low + 1 < size && is_before(heap[low + 1], heap[low])) low++;
        if (!is_before(heap[low], entry)) break;
        heap[at] = heap[low];
    }
    heap[at] = entry;
}

static void rise(Entry *heap, num at, Entry entry) {
    for (; at > 0 && is_before(entry, heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = entry;
}

/* Lowest key first. */
static void sort(Entry *entries, num size) {
    for (num at = size / 2; at-- > 0;) sink(entries, size, at);
    for (num end = size; end-- > 1;) {
        Entry last = entries[end];
        entries[end] = entries[0], entries[0] = last;
        sink(entries, end, 0);
    }
    for (num one = 0, other = size - 1; one < other; one++, other--) {
        Entry last = entries[one];
        entries[one] = entries[other], entries[other] = last;
    }
}

/* One replica for each expert, then each spare slot to the one whose replicas are hottest. */
static void grant(const double *heat, num experts, num spare, num most, num *granted, Entry *heap) {
    num size = experts;
    for (num e = 0; e < experts; e++) granted[e] = 1, heap[e].key = -heat[e], heap[e].item = e;
    for (num at = size / 2; at-- > 0;) sink(heap, size, at);
    while (spare > 0 && size > 0) {
        num e = heap[0].item;
        if (granted[e] >= most) heap[0] = heap[--size];
        else granted[e]++, spare--, heap[0].key = -heat[e] / (double)granted[e];
        sink(heap, size, 0);
    }
}

/* Fill slots left over with the hottest experts by replica that their rank lacks. */
static void fill(const num *begin, num ranks, const double *heat, num experts, num *granted, num *row) {
    for (num r = 0; r < ranks; r++)
        for (num slot = begin[r]; slot < begin[r + 1]; slot++) {
            num best = NOBODY;
            if (row[slot] != NOBODY) continue;
            for (num e = 0; e < experts; e++) {
                int is_held = 0;
                if (best != NOBODY &&
                    heat[e] / (double)granted[e] <= heat[best] / (double)granted[best])
                    continue;
                for (num s = begin[r]; s < begin[r + 1]; s++) is_held |= row[s] == e;
                if (!is_held) best = e;
            }
            if (best == NOBODY) continue;
            row[slot] = best;
            granted[best]++;
        }
}

/* Longest first to the least loaded rank with room, no expert twice on a rank. */
static void pack_greedily(const num *begin, num ranks, const double *heat, num experts, num *row,
                          num *granted, num *filled, Entry *order, Entry *heap, Entry *aside) {
    num size = 0;
    for (num e = 0; e < experts; e++)
        order[e].key = -heat[e] / (double)granted[e], order[e].item = e;
    sort(order, experts);
    for (num r = 0; r < ranks; r++) {
        filled[r] = begin[r];
        if (begin[r + 1] > begin[r]) heap[size].key = 0.0, heap[size++].item = r;
    }
    for (num n = 0; n < experts; n++) {
        num e = order[n].item, num_aside = 0;
        double own = -order[n].key;
        for (num c = 0; c < granted[e] && size > 0; c++) {
            Entry top = heap[0];
            row[filled[top.item]++] = e;
            top.key += own;
            int has_room = filled[top.item] < begin[top.item + 1];
            if (has_room && granted[e] == 1) heap[0] = top;
            else {
                heap[0] = heap[--size];
                if (has_room) aside[num_aside++] = top;
            }
            sink(heap, size, 0);
        }
        while (num_aside > 0) rise(heap, size++, aside[--num_aside]);
    }
}

typedef struct {
    num ranks;
    const num *begin;
    num *filled, *parent, *degree, *held, *depth; /* [N] next slot; set of ranks; replicas; last
                                                     expert; chain to the first rank */
    double *load, price, most;  /* [N] time; of a longer chain; more than all loads */
    const double *speed;        /* [N] */
    double fixed;               /* beside the tokens of an expert */
} Joined;

/* The lightest rank with room for a replica, of those that are joined with `root` or of those that
   are not, where there are any; NOBODY if none has room. */
static num lightest(const Joined *t, num expert, num root, int is_joined) {
    num best = NOBODY, best_wanted = 0;
    double best_key = 0.0;
    for (num r = 0; r < t->ranks; r++) {
        if (t->filled[r] == t->begin[r + 1] || t->held[r] == expert) continue;
        num wanted = root == NOBODY || (root_of(t->parent, r) == root) == is_joined;
        double key = t->load[r];
        if (root != NOBODY)
            key += is_joined ? t->price * (double)t->depth[r] : t->most * (double)t->degree[r];
        if (best != NOBODY && (wanted < best_wanted || (wanted == best_wanted && key >= best_key)))
            continue;
        best = r, best_wanted = wanted, best_key = key;
    }
    return best;
}

/* Experts of most replicas first, from the ranks of the first: one replica of each to a light rank
   that is joined already and near the first, the others to ranks that are not, of those to one
   with fewest replicas. So the hottest experts join the middle, chains of ranks are short, and
   little of the load has to flow through any one expert. */
static void pack_joined(Joined t, const double *heat, num experts, num *row, num *granted,
                        Entry *order) {
    double total = 0.0;
    num core = NOBODY;
    for (num e = 0; e < experts; e++) {
        order[e].item = e, order[e].key = -heat[e] / (double)granted[e];
        total += heat[e] + (heat[e] > 0.0 ? t.fixed * (double)granted[e] : 0.0);
    }
    t.price = DEPTH_PRICE * total / (double)t.ranks, t.most = 0.0;
    for (num r = 0; r < t.ranks; r++)
        if (t.most * t.speed[r] < 2.0 * total) t.most = 2.0 * total / t.speed[r];
    sort(order, experts);
    for (num n = 0; n < experts; n++) {
        num c = granted[order[n].item];
        order[n].key = (double)((c > 1 ? -c : 0) * (experts + 1) + n);
    }
    sort(order, experts);
    for (num r = 0; r < t.ranks; r++) {
        t.filled[r] = t.begin[r], t.parent[r] = r, t.degree[r] = t.depth[r] = 0;
        t.held[r] = NOBODY, t.load[r] = 0.0;
    }
    for (num n = 0; n < experts; n++) {
        num e = order[n].item, first = NOBODY, is_replicated = granted[e] > 1;
        for (num c = 0; c < granted[e]; c++) {
            num near = first == NOBODY ? core : first;
            num root = is_replicated && near != NOBODY ? root_of(t.parent, near) : NOBODY;
            num best = lightest(&t, e, root, first == NOBODY);
            if (best == NOBODY) break;
            row[t.filled[best]++] = e;
            t.held[best] = e;
            t.load[best] +=
                (heat[e] / (double)granted[e] + (heat[e] > 0.0 ? t.fixed : 0.0)) / t.speed[best];
            t.degree[best] += is_replicated;
            if (first == NOBODY) first = best;
            else if (join_sets(t.parent, first, best)) t.depth[best] = t.depth[first] + 1;
            if (core == NOBODY && is_replicated) core = first;
        }
    }
}

/* --- all layers ---------------------------------------------------------------------------- */

/* parts [L] components of the replica graph of each layer. */
void eplb_parts(num layers, num slots, num ranks, num experts, const num *rows, const num *begin,
                num *parts, num *ints, double *reals) {
    Layer a = layer_in(slots, ranks, experts, begin, 0, ints, reals);
    for (num n = 0; n < layers; n++) {
        hold(&a, rows + n * slots, 0, 0.0);
        parts[n] = num_parts(&a, a.parent);
    }
}

/* Repair rows [L, P] in turn, in place; budget [2]: moves left to one layer, and to all. A layer
   stays as it was where nothing lowered its peak. Of peaks [L] that keep the limit repaired to, and of
   those that were never above the one acted at, only that is told. */
void eplb_repair(num layers, num slots, num ranks, num experts, num *rows, const num *begin,
                 const double *heat, const double *speed, const double *fixed, const double *limits,
                 num *budget, double *peaks, num *ints, double *reals) {
    Layer a = layer_in(slots, ranks, experts, begin, speed, ints, reals);
    Limits of = {limits[0], limits[1], limits[2], limits[3], limits[4]};
    for (num n = 0; n < layers; n++) {
        hold(&a, rows + n * slots, heat + n * experts, fixed[n]);
        peaks[n] = best_split(&a.split, a.row, a.heat, a.fixed, of.act_above, a.tokens, a.load);
        if (peaks[n] <= of.act_above * (1.0 + TOLERATED)) continue;
        num used = repair(&a, of, budget[0] < budget[1] ? budget[0] : budget[1]);
        if (used == 0) continue;
        double after = best_split(&a.split, a.row, a.heat, a.fixed, of.repair_to, a.tokens, a.load);
        if (after >= peaks[n]) continue;
        memcpy(rows + n * slots, a.row, (size_t)slots * sizeof(num));
        budget[1] -= used, peaks[n] = after;
    }
}

/* Pack rows [L, P] anew, greedily or so that ranks are joined, by speed [N] and fixed cost [L]; slots begin [L, N + 1] of each
   layer are packed one after another. Work space: 2 E + 5 N numbers, N reals and 2 (E + 2 N) pairs
   of a real and a number. */
void eplb_pack(num layers, num slots, num ranks, num experts, const num *begins, const double *heat,
               const double *speed, const double *fixed, num is_joined, num *rows, num *ints, double *reals, Entry *entries) {
    num *granted = ints, *filled = granted + experts;
    Joined joined = {.ranks = ranks, .filled = filled, .parent = filled + ranks, .load = reals,
                     .speed = speed};
    joined.degree = joined.parent + ranks, joined.held = joined.degree + ranks;
    joined.depth = joined.held + ranks;
    Entry *order = entries, *heap = order + experts, *aside = heap + experts + ranks;
    for (num n = 0; n < layers; n++) {
        const num *begin = begins + n * (ranks + 1);
        const double *own = heat + n * experts;
        num *row = rows + n * slots, most = 0;
        for (num s = 0; s < slots; s++) row[s] = NOBODY;
        for (num r = 0; r < ranks; r++) most += begin[r + 1] > begin[r];
        grant(own, experts, begin[ranks] - experts, most, granted, heap);
        joined.begin = begin, joined.fixed = fixed[n];
        if (is_joined) pack_joined(joined, own, experts, row, granted, order);
        else
            pack_greedily(begin, ranks, own, experts, row, granted, filled, order, heap, aside);
        fill(begin, ranks, own, experts, granted, row);
    }
}
