/* worker.c - a worker of a job at a hub, which begins, makes steps and ends, or is killed on the way:
 *     worker RANK SIZE STEPS PLANT [STAGE SECONDS]
 * The job is that of HPCOMM_SERVICE, the token that of HPCOMM_SECRET_FILE. At each stage it prints the stage's name. A
 * timer that starts with STAGE kills the worker after SECONDS. PLANT 1: it spoils a value before it counts the wrong
 * ones. Exit status: 0, or 1 after a line with the status and the sentence of the call that failed. */
#define _GNU_SOURCE
#include "bench.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef BENCH_LIBRARY
enum { COUNT = 1 << 18 }; /* floats of the model, 1 MiB */
enum { TIMEOUT_SECONDS = 30 };
enum { COME_SECONDS = 3 }; /* for the job's other workers: some are killed before they come */
static const double RATE = 0.5;

static const char *stage = "";
static double seconds;

/* Tells that the worker is at a stage. */
static void reach(const char *name) {
    printf("%s\n", name);
    fflush(stdout);
    if (strcmp(name, stage) != 0) return;
    timer_t timer;
    struct sigevent kills = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    const long whole = (long)seconds;
    struct itimerspec after = {.it_value = {whole, (long)(1e9 * (seconds - (double)whole)) + 1}};
    if (timer_create(CLOCK_MONOTONIC, &kills, &timer) != 0 || timer_settime(timer, 0, &after, NULL) != 0) abort();
}

static void check(int status) {
    if (status >= 0) return;
    printf("%d %s\n", status, hpc_last_error()->message);
    fflush(stdout);
    _exit(1);
}

/* Returns value i of a worker's gradient, a whole number. */
static float gradient(int rank, int i) {
    return (float)((7 * i + 5 * rank) % 17 - 8);
}

/* Returns how many parameters differ from those after so many steps. All sums and products are exact. */
static int wrong(const float *params, int size, int steps) {
    int found = 0;
    for (int i = 0; i < COUNT; i++) {
        float sum = 0;
        for (int r = 0; r < size; r++) sum += gradient(r, i);
        found += params[i] != -(float)RATE * (float)steps * (sum / (float)size);
    }
    return found;
}

static hpc_exchange *create(hpc_service *service, const float *values) {
    const hpc_key key = {"w", COUNT, 0};
    hpc_hub hub;
    check(hpc_plan_args_init("hub", &hub, sizeof hub));
    hub.keys = &key, hub.n_keys = 1;
    hub.cores = hub.interfaces = 0; /* as many as the hub has */
    hpc_rule sgd;
    check(hpc_rule_find("sgd", HPC_ISA_BEST, &sgd));
    sgd.args[1] = RATE;
    hpc_exchange_config config;
    hpc_exchange_config_init(&config);
    config.rule = &sgd, config.values = &values;
    hpc_exchange *exchange;
    check(hpc_service_exchange(service, (const hpc_hub *[]){&hub}, NULL, &config, -1, &exchange));
    return exchange;
}

int main(int argc, char **argv) {
    if (argc != 5 && argc != 7) {
        fprintf(stderr, "worker RANK SIZE STEPS PLANT [STAGE SECONDS]\n");
        return 2;
    }
    const int rank = atoi(argv[1]), size = atoi(argv[2]), steps = atoi(argv[3]), plant = atoi(argv[4]);
    if (argc == 7) stage = argv[5], seconds = atof(argv[6]);
    hpc_config settings;
    hpc_config_init(&settings);
    settings.transports = "shm";
    settings.init_timeout = COME_SECONDS, settings.timeout = TIMEOUT_SECONDS;
    float *values = calloc(COUNT, sizeof *values), *update = malloc(COUNT * sizeof *update);
    if (values == NULL || update == NULL) return 2;
    for (int i = 0; i < COUNT; i++) update[i] = gradient(rank, i);

    reach("connect");
    hpc_service *service;
    check(hpc_service_connect(NULL, NULL, 0, rank, size, &settings, &service));
    reach("create");
    hpc_exchange *exchange = create(service, values);
    for (int step = 0; step < steps; step++) {
        uint64_t ticket;
        if (step == steps / 2) reach("push");
        check(hpc_exchange_start(exchange, 0, HPC_PUSH | HPC_PULL, update, -1, &ticket));
        if (step == steps / 2) reach("pull");
        check(hpc_exchange_wait(exchange, 0, ticket, -1));
    }
    reach("close");
    memcpy(values, hpc_exchange_params(exchange, 0), COUNT * sizeof *values);
    check(hpc_exchange_close(exchange, -1));
    hpc_exchange_free(exchange);
    check(hpc_service_close(service));
    hpc_service_free(service);
    if (plant) values[0] += 1;
    printf("wrong %d\n", wrong(values, size, steps));
    return 0;
}
#endif
