/* The ranges of a key's update that are encoded apart, from the plan alone. */
#include "engine/ranges.h"

#include <stdlib.h>

#include "engine/stages.h"

enum { LINE = 64 };

static size_t aligned(size_t nbytes) {
    return (nbytes + LINE - 1) / LINE * LINE;
}

static int by_place(const void *a, const void *b) {
    const hpc_pushed_range *p = a, *q = b;
    if (p->offset != q->offset) return p->offset < q->offset ? -1 : 1;
    return p->count < q->count ? -1 : p->count > q->count;
}

static int is_pushed(const hpc_row *row) {
    for (int e = 0; e < row->n_in; e++)
        if (row->in[e].row < 0) return 1;
    return 0;
}

/* Rows of one key that are pushed, in the order of the plan: by offset. Rows of the same elements have one range. */
int hpc_pieces_find(hpc_scheme *sc, int key, int first, const char *op) {
    const hpc_plan *plan = sc->plan;
    hpc_key_pieces *its = &sc->pieces[key];
    int end;
    for (end = first; end < plan->n_rows && plan->rows[end].key == key;) end++;
    its->ranges = malloc((size_t)(end - first) * sizeof *its->ranges);
    if (its->ranges == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a key", op);
    for (int i = first; i < end; i++)
        if (is_pushed(&plan->rows[i]))
            its->ranges[its->n_ranges++] = (hpc_pushed_range){plan->rows[i].offset, plan->rows[i].count, 0};
    qsort(its->ranges, (size_t)its->n_ranges, sizeof *its->ranges, by_place);
    int n = 0;
    for (int p = 0; p < its->n_ranges; p++) {
        const hpc_pushed_range *last = n > 0 ? &its->ranges[n - 1] : NULL, range = its->ranges[p];
        if (last != NULL && last->offset == range.offset && last->count == range.count) continue;
        if (last != NULL && last->offset + last->count > range.offset)
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: rows of key %s take elements %llu to %llu and %llu to %llu, which overlap; an update "
                            "that goes as pieces is encoded once, so rows take the same elements or others",
                            op, plan->keys[key].name, (unsigned long long)last->offset,
                            (unsigned long long)(last->offset + last->count - 1), (unsigned long long)range.offset,
                            (unsigned long long)(range.offset + range.count - 1));
        its->ranges[n] = range;
        its->ranges[n].at = its->slot_bytes;
        its->slot_bytes += aligned(its->codec->max_bytes(&its->config, range.count));
        n++;
    }
    its->n_ranges = n;
    for (int i = first, p = 0; i < end; i++) {
        if (!is_pushed(&plan->rows[i])) continue;
        const hpc_edge *push = hpc_row_input(&plan->rows[i], sc->context->group.rank);
        its->gives |= push != NULL && !hpc_input_is_empty(sc, push);
        while (its->ranges[p].offset != plan->rows[i].offset) p++;
        sc->layout.row_from[i] = its->ranges[p].at;
    }
    return HPC_OK;
}
