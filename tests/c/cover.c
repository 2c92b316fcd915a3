/* Which functions have run, for tests/cover.py: only in builds with HPC_COVER, whose compiler calls the hooks below.
 * The table has a byte for each 16 bytes of code, from the ELF header on. It is a shared mapping of a file, so the
 * bytes of a rank that was killed stay. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define UNHOOKED __attribute__((no_instrument_function))

enum { TABLE = 1 << 20, UNIT = 16, PAGE = 1 << 16 }; /* PAGE: a multiple of every kernel's page */

extern const char __ehdr_start[] __attribute__((visibility("hidden"))); /* the linker's: address 0 of its map */

static unsigned char table[TABLE] __attribute__((aligned(PAGE))); /* replaced by the file's pages in hpc_cover_open */

UNHOOKED void __cyg_profile_func_enter(void *function, void *caller);
UNHOOKED void __cyg_profile_func_exit(void *function, void *caller);
__attribute__((visibility("default"))) UNHOOKED int hpc_cover_open(const char *path);

void __cyg_profile_func_enter(void *function, void *caller) {
    (void)caller;
    size_t unit = (size_t)((const char *)function - __ehdr_start) / UNIT;
    /* Threads race to store the same 1. The load keeps a line that all ranks share from moving between cores. */
    if (unit < TABLE && !__atomic_load_n(&table[unit], __ATOMIC_RELAXED)) {
        __atomic_store_n(&table[unit], 1, __ATOMIC_RELAXED);
    }
}

void __cyg_profile_func_exit(void *function, void *caller) {
    (void)function;
    (void)caller;
}

/* Bytes go into the file at path from now on, beside those that it has. 0 or -errno. */
int hpc_cover_open(const char *path) {
    int status = 0;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return -errno;
    if (ftruncate(fd, TABLE) != 0 ||
        mmap(table, TABLE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        status = -errno;
    }
    close(fd);
    return status;
}

__attribute__((constructor)) UNHOOKED static void open_at_start(void) {
    const char *prefix = getenv("HPC_COVER");
    char path[4096];
    size_t length = 0;
    if (!prefix || !*prefix) return;
    while (prefix[length] && length < sizeof path - 3) {
        path[length] = prefix[length];
        length++;
    }
    path[length++] = '.';
    path[length++] = 'c';
    path[length] = '\0';
    hpc_cover_open(path); /* a test without a table is missing in the map, and fails for nothing else */
}
