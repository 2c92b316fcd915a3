#define _GNU_SOURCE
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/host.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* from Linux 5.14 on */
#endif

enum { HUGE_PAGE = 2 << 20, CACHE_LINE = 64, NODES = 1024, WORD_BITS = 8 * sizeof(unsigned long) };

static size_t page_size(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t whole_pages(size_t nbytes) {
    size_t page = page_size();
    return nbytes > SIZE_MAX - page ? 0 : (nbytes + page - 1) / page * page;
}

/* Maps fd, or private memory if fd is -1. Huge pages need a mapping whose address and file offset are equal modulo
 * their size. So for large blocks it reserves more than needed, maps over the aligned part, and unmaps the rest. */
static void *map(int fd, size_t nbytes) {
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    if (nbytes < HUGE_PAGE) return mmap(NULL, nbytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    char *room = mmap(NULL, nbytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return MAP_FAILED;
    char *start = (char *)(((uintptr_t)room + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    char *end = start + nbytes;
    void *data = mmap(start, nbytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
    if (data == MAP_FAILED) {
        munmap(room, nbytes + HUGE_PAGE);
        return MAP_FAILED;
    }
    if (start > room) munmap(room, (size_t)(start - room));
    if (room + nbytes + HUGE_PAGE > end) munmap(end, (size_t)(room + nbytes + HUGE_PAGE - end));
    madvise(data, nbytes, MADV_HUGEPAGE); /* fails if the system has no such huge pages; the pages are small then */
    return data;
}

/* Chooses the node of pages that do not exist yet. It only prefers the node, because a process bound to a full node
 * would be killed. The policy of a memfd belongs to the file, so it does not matter which process touches a page
 * first. */
static int prefer(void *data, size_t nbytes, int node) {
    unsigned long nodes[NODES / WORD_BITS] = {0};
    if (node >= NODES) return EINVAL;
    nodes[node / WORD_BITS] = 1ul << (node % WORD_BITS);
    /* The kernel reads one bit less than the length says. */
    return syscall(SYS_mbind, data, nbytes, MPOL_PREFERRED, nodes, (unsigned long)NODES + 1, 0) == 0 ? 0 : errno;
}

/* Uses small pages where two nodes would share a huge page. */
static void split_at(char *data, size_t length, size_t border) {
    size_t start = border / HUGE_PAGE * HUGE_PAGE, end = start + HUGE_PAGE < length ? start + HUGE_PAGE : length;
    if (start < border && start < end) madvise(data + start, end - start, MADV_NOHUGEPAGE);
}

/* Makes one call for each run of ranges on one node, because the kernel keeps the range of every call. */
static int place(char *data, size_t length, const hpc_placement *places, int n) {
    size_t page = page_size();
    int refused = 0;
    for (int i = 0; i < n;) {
        int node = places[i].node;
        size_t start = places[i].offset / page * page, end = start;
        for (; i < n && places[i].node == node && places[i].offset / page * page <= end; i++)
            if (places[i].nbytes > 0) end = whole_pages(places[i].offset + places[i].nbytes);
        if (end > length) end = length;
        if (node < 0 || end <= start) continue;
        int failed = prefer(data + start, end - start, node);
        if (refused == 0) refused = failed;
        if (length < HUGE_PAGE || failed) continue;
        split_at(data, length, start);
        split_at(data, length, end);
    }
    return refused;
}

static int wrap(void *data, size_t nbytes, int fd, const char *op, hpc_memory **memory) {
    hpc_memory *m = malloc(sizeof *m);
    if (m == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a handle", op);
    m->data = data;
    m->nbytes = nbytes;
    m->fd = fd;
    m->unplaced = 0;
    atomic_init(&m->references, 1);
    *memory = m;
    return HPC_OK;
}

/* The host's memory as this process knows it: a new group makes many small windows, and to read the cgroups takes
 * longer than to make one. No lock: the child of a fork would never get one that another thread held. */
static struct {
    _Atomic double read_at;
    _Atomic uint64_t left; /* available then, less what this process has taken since */
} room;

static const double ROOM_SECONDS = 0.1; /* for which the host's memory is not read again */
enum { ROOM_PART = 16 };                /* nor for less than this part of it */

/* Returns whether so many bytes are available, and takes them. Touching more memory would start the OOM killer instead
 * of failing. */
static int take_room(size_t length, uint64_t *available) {
    const double now = hpc_now();
    if (now - atomic_load(&room.read_at) > ROOM_SECONDS || length > atomic_load(&room.left) / ROOM_PART) {
        atomic_store(&room.left, hpc_memory_available());
        atomic_store(&room.read_at, now);
    }
    *available = atomic_load(&room.left);
    while (length > 0 && length <= *available)
        if (atomic_compare_exchange_weak(&room.left, available, *available - length)) return 1;
    return 0;
}

int hpc_memory_create(size_t nbytes, const char *op, hpc_memory **memory) {
    return hpc_memory_create_placed(nbytes, NULL, 0, op, memory);
}

int hpc_memory_create_placed(size_t nbytes, const hpc_placement *places, int n, const char *op, hpc_memory **memory) {
    size_t length = whole_pages(nbytes);
    uint64_t available;
    int fd = -1, unplaced, status;
    void *data = MAP_FAILED;

    if (!take_room(length, &available))
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: %zu bytes asked, %llu available on this host; use a smaller one", op,
                        nbytes, (unsigned long long)available);
    fd = memfd_create("hpcomm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        char hint[HPC_FILES_HINT];
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: memfd_create: %s%s", op, strerror(errno), hpc_files_hint(errno, hint));
    }
    if (ftruncate(fd, (off_t)length) != 0) goto err_errno;
    data = map(fd, length);
    if (data == MAP_FAILED) goto err_errno;
    unplaced = place(data, length, places, n); /* before the pages exist */
    if (madvise(data, length, MADV_POPULATE_WRITE) != 0) {
        if (errno != EINVAL) goto err_errno;
        while (fallocate(fd, 0, 0, (off_t)length) != 0) /* older kernels: pages exist, but are not mapped yet */
            if (errno != EINTR) goto err_errno;
    }
    /* No holder of the descriptor can now shorten the file under a mapping, so no access can raise SIGBUS. */
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) goto err_errno;
    status = wrap(data, length, fd, op, memory);
    if (status != HPC_OK) goto err;
    (*memory)->unplaced = unplaced;
    return HPC_OK;

err_errno:
    status =
        hpc_fail(HPC_ERR_MEMORY, op, "%s: cannot allocate %zu bytes of shared memory: %s", op, nbytes, strerror(errno));
err:
    if (data != MAP_FAILED) munmap(data, length);
    close(fd);
    return status;
}

int hpc_memory_attach(int fd, size_t nbytes, const char *op, hpc_memory **memory) {
    size_t length = whole_pages(nbytes);
    int status, seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || lseek(fd, 0, SEEK_END) < (off_t)length) {
        status = hpc_fail(HPC_ERR_AUTH, op, "%s: a peer's descriptor is not a sealed block of %zu bytes", op, length);
        goto out;
    }
    void *data = map(fd, length);
    if (data == MAP_FAILED) {
        status = hpc_fail(HPC_ERR_MEMORY, op, "%s: cannot map %zu bytes of a peer: %s", op, length, strerror(errno));
        goto out;
    }
    status = wrap(data, length, -1, op, memory);
    if (status != HPC_OK) munmap(data, length);
out:
    close(fd);
    return status;
}

hpc_memory *hpc_memory_retain(hpc_memory *memory) {
    atomic_fetch_add_explicit(&memory->references, 1, memory_order_relaxed);
    return memory;
}

void hpc_memory_close_descriptor(hpc_memory *memory) {
    if (memory->fd >= 0) close(memory->fd);
    memory->fd = -1;
}

void *hpc_memory_data(const hpc_memory *memory) {
    return memory->data;
}

void hpc_memory_release(hpc_memory *memory) {
    if (memory == NULL) return;
    /* Release: this holder's accesses come before the drop. Acquire: all holders' accesses come before the
     * unmapping. */
    if (atomic_fetch_sub_explicit(&memory->references, 1, memory_order_acq_rel) != 1) return;
    munmap(memory->data, memory->nbytes);
    if (memory->fd >= 0) close(memory->fd);
    free(memory);
}

int hpc_memory_view(const void *at, size_t nbytes, hpc_memory **view) {
    static const char op[] = "view";
    if (view == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: view is NULL", op);
    *view = NULL;
    if (at == NULL || nbytes == 0) return hpc_fail(HPC_ERR_INVALID, op, "%s: %zu bytes at %p", op, nbytes, at);
    char *start = (char *)((uintptr_t)at / page_size() * page_size());
    size_t length = whole_pages((size_t)((const char *)at - start) + nbytes);
    /* An old size of 0 keeps the old mapping; the kernel allows it only for shared memory. */
    void *data = mremap(start, 0, length, MREMAP_MAYMOVE);
    if (data == MAP_FAILED)
        return hpc_fail(errno == EINVAL ? HPC_ERR_INVALID : HPC_ERR_MEMORY, op,
                        "%s: cannot map %zu bytes a second time: %s (vm.max_map_count limits mappings)", op, length,
                        strerror(errno));
    int status = wrap(data, length, -1, op, view);
    if (status != HPC_OK) munmap(data, length);
    return status;
}

int hpc_memory_part(hpc_memory *view) {
    static const char op[] = "part";
    if (view == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: view is NULL", op);
    void *own = mmap(NULL, view->nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) goto err;
    memcpy(own, view->data, view->nbytes);
    /* The copy replaces the view in one step, so a thread that reads meanwhile sees the same bytes. */
    if (mremap(own, view->nbytes, view->nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, view->data) == MAP_FAILED) goto err;
    return HPC_OK;

err:
    if (own != MAP_FAILED) munmap(own, view->nbytes);
    return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %zu bytes that are kept: %s", op, view->nbytes,
                    strerror(errno));
}

void *hpc_private_alloc(size_t nbytes, int node) {
    size_t length = whole_pages(nbytes);
    uint64_t available;
    if (!take_room(length, &available)) return NULL;
    void *p = map(-1, length);
    if (p == MAP_FAILED) return NULL;
    if (node >= 0) (void)prefer(p, length, node); /* if refused, the memory lies on the caller's node */
    if (madvise(p, length, MADV_POPULATE_WRITE) != 0) {
        if (errno != EINVAL) goto err;
        memset(p, 0, length); /* on an older kernel */
    }
    return p;

err:
    munmap(p, length);
    return NULL;
}

void hpc_private_free(void *p, size_t nbytes) {
    if (p != NULL) munmap(p, whole_pages(nbytes));
}

/* ---- arena ---- */

/* The head of a block; the bytes given to the caller begin in the next cache line. */
struct hpc_arena_block {
    struct hpc_arena_block *before;
};

void *hpc_arena_take(hpc_arena *arena, size_t n, size_t size) {
    if (size > 0 && n > (SIZE_MAX - 2 * CACHE_LINE) / size) return NULL;
    const size_t nbytes = CACHE_LINE + (n * size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    struct hpc_arena_block *block = aligned_alloc(CACHE_LINE, nbytes);
    if (block == NULL) return NULL;
    memset(block, 0, nbytes);
    block->before = arena->last;
    arena->last = block;
    return (char *)block + CACHE_LINE;
}

void hpc_arena_free(hpc_arena *arena) {
    while (arena->last != NULL) {
        struct hpc_arena_block *block = arena->last;
        arena->last = block->before;
        free(block);
    }
}

/* ---- the page of an owner ---- */

const char *hpc_owner_page(void) {
    char *page = mmap(NULL, page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return NULL;
    if (madvise(page, page_size(), MADV_WIPEONFORK) != 0) {
        munmap(page, page_size());
        return NULL;
    }
    page[0] = 1;
    return page;
}

void hpc_owner_page_free(const char *page) {
    if (page != NULL) munmap((void *)(uintptr_t)page, page_size());
}
