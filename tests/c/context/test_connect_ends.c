/* A connect that another thread ends: the connecting thread itself ends the context, since it uses the channel's
 * descriptors. ThreadSanitizer finds an end by the other thread. */
#include "check.h"
#include "context/context.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>

typedef struct joining {
    hpc_context *context;
    unsigned char *addresses;
    int status;
    char why[128];
} joining;

static void *connect_alone(void *arg) {
    joining *j = arg;
    j->status = hpc_context_connect(j->context, j->addresses, 60);
    snprintf(j->why, sizeof j->why, "%s", hpc_last_error()->message);
    return NULL;
}

static int descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;
    CHECK(folder != NULL);
    while (readdir(folder) != NULL) n++;
    closedir(folder);
    return n;
}

/* Rank 1 never connects, so rank 0 waits for it. */
static void end_connect(const char *transports, const char *why) {
    const size_t n = hpc_address_size();
    const int before = descriptors();
    hpc_config config;
    hpc_context *peer = NULL;
    joining j = {.addresses = malloc(2 * n)};
    pthread_t thread;
    hpc_config_init(&config);
    config.transports = transports;
    CHECK(j.addresses != NULL);
    CHECK_OK(hpc_context_create(0, 2, &config, &j.context));
    CHECK_OK(hpc_context_create(1, 2, &config, &peer));
    CHECK_OK(hpc_context_address(j.context, j.addresses));
    CHECK_OK(hpc_context_address(peer, j.addresses + n));
    CHECK_EQ(pthread_create(&thread, NULL, connect_alone, &j), 0);
    while (atomic_load(&j.context->group.states[0]) != HPC_PEER_ALIVE) sched_yield(); /* connect has begun */
    CHECK_OK(why == NULL ? hpc_context_close(j.context) : hpc_context_abort(j.context, why));
    CHECK_OK(hpc_context_abort(j.context, "once more"));
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(j.status, HPC_ERR_INVALID);
    CHECK(strcmp(j.why, "init: the context is closed") == 0);
    CHECK_EQ(j.context->ends_late, 1);
    CHECK_STATUS(hpc_context_connect(j.context, j.addresses, 1), HPC_ERR_INVALID);
    CHECK_OK(hpc_context_close(j.context));
    hpc_context_free(j.context);
    hpc_context_free(peer);
    free(j.addresses);
    CHECK_EQ(descriptors(), before);
}

int main(void) {
    end_connect("shm", "the hub says so");
    end_connect("shm", NULL);
    end_connect("tcp", "the hub says so");
    return 0;
}
