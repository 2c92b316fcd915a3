#include "engine/layout/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"

/* ---- choosing ---- */

/* Each core gets a thread, pinned to its own CPU, if there are CPUs for all cores besides all computing threads. A rank
 * that only serves needs one more CPU, for the thread that waits. */
int hpc_progress_choose(hpc_scheme *sc, int asked, const char *op) {
    const hpc_context *c = sc->context;
    int me = c->group.rank, n = sc->layout.places[me].cores;
    hpc_progress_choice *choice = &sc->choice;
    choice->asked = asked;
    sc->n_own_cores = n;
    sc->cores = calloc((size_t)n + 1, sizeof *sc->cores);
    hpc_cpu_need *needs = calloc((size_t)c->group.size, sizeof *needs);
    int *cpus = malloc(((size_t)n + 1) * sizeof *cpus), status;
    if (sc->cores == NULL || needs == NULL || cpus == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d cores", op, n);
        goto out;
    }
    for (int r = 0; r < c->group.size; r++)
        needs[r] = (hpc_cpu_need){sc->layout.places[r].worker ? sc->threads[r] : 1, sc->layout.places[r].cores};
    status = hpc_cpus_deal(c, me, needs, (int)sc->plan->affinity, &choice->deal, cpus, op);
    if (status != HPC_OK) goto out;
    /* A single rank waits only for its own cores, which is faster without a thread. */
    choice->threads =
        asked == HPC_PROGRESS_THREAD || (asked == HPC_PROGRESS_AUTO && choice->deal.enough && c->group.size > 1);
    for (int i = 0; i < n; i++) {
        sc->cores[i].scheme = sc;
        sc->cores[i].index = i;
        sc->cores[i].task = &sc->cores[i].own_task;
        sc->cores[i].cpu = choice->threads ? hpc_crew_cpu(c->member, i, cpus[i], hpc_progress_dealt(choice)) : -1;
        sc->cores[i].node = sc->cores[i].cpu >= 0 ? hpc_host_node("", sc->cores[i].cpu) : -1;
    }
out:
    free(needs);
    free(cpus);
    return status;
}

/* ---- telling ---- */

static void append(char *text, size_t cap, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t cap, const char *format, ...) {
    const size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, cap - n, format, args);
    va_end(args);
}

static const char *plural(int n) {
    return n == 1 ? "" : "s";
}

static void tell_needs(const hpc_cpu_deal *d, char *text, size_t cap) {
    const int needed = d->threads + d->cores, one = d->ranks == 1;
    append(text, cap, "%d rank%s with ", d->ranks, plural(d->ranks));
    if (d->each > 0 && !one)
        append(text, cap, "%d thread%s each", d->each, plural(d->each));
    else
        append(text, cap, "%d thread%s", d->threads, plural(d->threads));
    append(text, cap, " and %d core%s need%s %d CPU%s; this kernel has %d for %s", d->cores, plural(d->cores),
           one ? "s" : "", needed, plural(needed), d->cpus, one ? "it" : "them");
    if (!d->enough && needed <= d->cpus) append(text, cap, ", but masks or quotas leave some of them too few");
}

static void tell_threads(const hpc_scheme *sc, char *text, size_t cap) {
    int told = 0;
    for (int i = 0; i < sc->n_own_cores; i++) {
        const hpc_core *core = &sc->cores[i];
        if (!core->tells) continue;
        const int started = atomic_load_explicit(&core->thread->started, memory_order_relaxed);
        const int cpu = atomic_load_explicit(&core->thread->cpu, memory_order_relaxed);
        append(text, cap, "%score %d on ", told++ > 0 ? ", " : "thread: ", i);
        if (cpu < 0)
            append(text, cap, "any CPU");
        else if (started == HPC_UNPINNED)
            append(text, cap, "any CPU, as the kernel refused CPU %d", cpu);
        else if (started == HPC_CROWDED)
            append(text, cap, "any CPU, as others kept CPU %d busy", cpu);
        else
            append(text, cap, "CPU %d", cpu);
    }
    if (told == 0 || sc->choice.deal.enough) return;
    append(text, cap, "; ");
    tell_needs(&sc->choice.deal, text, cap);
}

void hpc_progress_tell(const hpc_scheme *sc, char *text, size_t cap) {
    if (sc->n_own_cores == 0)
        append(text, cap, "none: this rank owns no rows");
    else if (sc->choice.threads)
        tell_threads(sc, text, cap);
    else if (sc->choice.lacked)
        append(text, cap, "inline: not all core threads could be started (ulimit -u)");
    else if (sc->choice.asked == HPC_PROGRESS_INLINE)
        append(text, cap, "inline: asked for");
    else if (sc->context->group.size == 1)
        append(text, cap, "inline: a single rank waits for nobody but its own cores");
    else {
        append(text, cap, "inline: ");
        tell_needs(&sc->choice.deal, text, cap);
    }
}
