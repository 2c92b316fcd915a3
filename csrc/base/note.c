/* Notes of a context. A note is written once, by any thread, and never changes. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/group.h"

void hpc_group_note(hpc_group *group, int kind, const char *format, ...) {
    va_list values;
    while (atomic_exchange_explicit(&group->noting, 1, memory_order_acquire)) sched_yield();
    int n = atomic_load_explicit(&group->noted, memory_order_relaxed);
    if (n < HPC_NOTES) {
        va_start(values, format);
        vsnprintf(group->notes[n], HPC_NOTE_BYTES, format, values);
        va_end(values);
        group->note_kinds[n] = kind;
        atomic_store_explicit(&group->noted, n + 1, memory_order_release);
    }
    atomic_store_explicit(&group->noting, 0, memory_order_release);
}

const char *hpc_group_note_at(const hpc_group *group, int i) {
    return i >= 0 && i < atomic_load_explicit(&group->noted, memory_order_acquire) ? group->notes[i] : NULL;
}
