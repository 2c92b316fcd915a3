/* Views of memory: the same bytes at another address, until a view is parted and keeps its own. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "check.h"
#include "ranks.h"

enum { NBYTES = 20000, AT = 5000, LENGTH = 9000 };

static char *inside(hpc_memory *view, const char *at) {
    return (char *)hpc_memory_data(view) + (uintptr_t)at % (size_t)sysconf(_SC_PAGESIZE);
}

static void a_parted_view_keeps_its_bytes(void) {
    hpc_memory *memory, *kept, *follows;
    CHECK_OK(hpc_memory_create(NBYTES, "test", &memory));
    char *at = (char *)hpc_memory_data(memory) + AT;
    memset(at, 1, LENGTH);
    CHECK_OK(hpc_memory_view(at, LENGTH, &kept));
    CHECK_OK(hpc_memory_view(at, LENGTH, &follows));
    char *ours = inside(kept, at), *theirs = inside(follows, at);
    CHECK(ours != at && ours[0] == 1 && ours[LENGTH - 1] == 1);
    ours[0] = 2; /* both ways */
    CHECK(at[0] == 2 && theirs[0] == 2);
    CHECK_OK(hpc_memory_part(kept));
    memset(at, 3, LENGTH);
    CHECK(ours[0] == 2 && ours[1] == 1 && ours[LENGTH - 1] == 1 && theirs[0] == 3 && theirs[LENGTH - 1] == 3);
    ours[0] = 4;
    CHECK(at[0] == 3);
    hpc_memory_release(memory); /* the views keep their pages */
    CHECK(ours[1] == 1 && theirs[1] == 3);
    hpc_memory_release(kept);
    hpc_memory_release(follows);
}

static void other_memory_has_no_views(void) {
    hpc_memory *view;
    void *own = hpc_private_alloc(NBYTES, -1);
    CHECK(own != NULL);
    CHECK_STATUS(hpc_memory_view(own, NBYTES, &view), HPC_ERR_INVALID);
    CHECK_MESSAGE("a second time");
    CHECK(view == NULL);
    hpc_private_free(own, NBYTES);
    CHECK_STATUS(hpc_memory_view(NULL, 1, &view), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_memory_view(&view, 0, &view), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_memory_view(&view, 1, NULL), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_memory_part(NULL), HPC_ERR_INVALID);
}

static const size_t TOO_MUCH = (size_t)1 << 60; /* the memory that is available is read each time */

static void *ask(void *over) {
    while (!atomic_load((atomic_int *)over)) CHECK(hpc_private_alloc(TOO_MUCH, -1) == NULL);
    return NULL;
}

/* While a thread of its parent asks. */
static void the_child_of_a_fork_gets_memory(void) {
    enum { CHILDREN = 20 };
    atomic_int over = 0;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, ask, &over) == 0);
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        const pid_t child = fork();
        if (child == 0) {
            alarm(20);
            _exit(hpc_private_alloc(TOO_MUCH, -1) != NULL);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    atomic_store(&over, 1);
    pthread_join(thread, NULL);
}

int main(void) {
    if (!RANKS_TSAN && !RANKS_ASAN) the_child_of_a_fork_gets_memory(); /* their allocators may lock the child out */
    a_parted_view_keeps_its_bytes();
    other_memory_has_no_views();
    return 0;
}
