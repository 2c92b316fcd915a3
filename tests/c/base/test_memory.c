/* Views of memory: the same bytes at another address, until a view is parted and keeps its own. */
#include <unistd.h>

#include "base/memory.h"
#include "check.h"

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

int main(void) {
    a_parted_view_keeps_its_bytes();
    other_memory_has_no_views();
    return 0;
}
