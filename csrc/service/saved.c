/* Saves of an exchange at its hubs, and its restore in a job that resumes. Both have two rounds, in which every rank
 * tells numbers or refuses; then all ranks fail alike. hpcomm/service/saving.py is the hub's side of them. */
#define _GNU_SOURCE
#include "service/saved.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"

static const char op_save[] = "save";

enum {
    SENTENCE = 480,          /* bytes of a refusal in a round */
    SAVE_NUMBERS = 3,        /* of a rank in the first round of a save: run, number, begun steps */
    SEEN = 32,               /* of a rank in the first round of a restore */
    ARGS = HPC_RULE_ARGS - 1 /* of each key in the second round of a restore; the first one is the step */
};

static const double LEAST_SECONDS = 600, MOST_SECONDS = 86400;

/* ---- rounds ---- */

/* The numbers and sentences of all ranks in a round. */
typedef struct saving_round {
    int n;         /* numbers of each rank */
    size_t more;   /* bytes after these */
    size_t nbytes; /* of each rank */
    unsigned char *own, *all;
} saving_round;

static int begin_round(saving_round *r, const hpc_context *served, int n, size_t more) {
    *r = (saving_round){.n = n, .more = more, .nbytes = (size_t)n * sizeof(uint64_t) + SENTENCE + more};
    r->own = calloc(1, r->nbytes);
    r->all = calloc((size_t)hpc_context_size(served), r->nbytes);
    return r->own == NULL || r->all == NULL ? hpc_fail(HPC_ERR_MEMORY, op_save, "no memory for a round") : HPC_OK;
}

static void end_round(saving_round *r) {
    free(r->own);
    free(r->all);
}

static void tell_number(saving_round *r, int i, uint64_t number) {
    memcpy(r->own + (size_t)i * sizeof number, &number, sizeof number);
}

static uint64_t told_number(const saving_round *r, int rank, int i) {
    uint64_t number;
    memcpy(&number, r->all + (size_t)rank * r->nbytes + (size_t)i * sizeof number, sizeof number);
    return number;
}

/* Takes part in a round; refuses by the last failure if status is one. Returns the failure that all ranks return. */
static int take_round(const hpc_service *s, saving_round *r, int status, double timeout) {
    char *sentence = (char *)r->own + (size_t)r->n * sizeof(uint64_t);
    char own[SENTENCE];
    snprintf(own, sizeof own, "%s", hpc_last_error()->message);
    if (status != HPC_OK) snprintf(sentence, SENTENCE, "%s\n%.400s", hpc_refusal_kind(status), own);
    const int given = hpc_allgather(s->served, r->own, r->all, r->nbytes, timeout);
    if (given != HPC_OK) return given;
    if (status != HPC_OK) return hpc_fail(status, op_save, "%s", own);
    for (int rank = 0; rank < hpc_context_size(s->served); rank++) {
        const char *told = (const char *)r->all + (size_t)rank * r->nbytes + (size_t)r->n * sizeof(uint64_t);
        if (told[0] != 0) return hpc_fail_refusal(told, strnlen(told, SENTENCE));
    }
    return HPC_OK;
}

/* ---- exchanges of a service ---- */

static void look(hpc_made_at_hubs *its, int n_keys) {
    for (int key = 0; key < n_keys; key++) {
        hpc_key_facts facts;
        if (hpc_exchange_get_key_facts(its->exchange, key, &facts) != HPC_OK) continue;
        its->counts |= facts.counts_updates;
        its->settles |= facts.settles;
    }
}

/* Returns the number of an exchange; the newest one, since a freed one may have had the same address; -1: none. */
static int number_of(const hpc_service *s, const hpc_exchange *exchange) {
    int i = s->n_made - 1;
    while (i >= 0 && s->made[i].exchange != exchange) i--;
    return i;
}

uint64_t hpc_service_steps(const hpc_service *s, const hpc_exchange *exchange) {
    const int i = s == NULL ? -1 : number_of(s, exchange);
    return i < 0 ? 0 : s->made[i].steps;
}

/* ---- save ---- */

static int check_idle(const hpc_service *s, const hpc_made_at_hubs *its, double timeout) {
    int status = its->settles ? hpc_exchange_settle(its->exchange, timeout) : HPC_OK;
    if (status != HPC_OK) return status;
    const int key = hpc_exchange_under_way(its->exchange);
    if (key >= 0)
        return hpc_fail(HPC_ERR_INVALID, op_save, "rank %d: save: key %d is under way: wait for it first",
                        s->meeting.rank, key);
    if (its->receives)
        return hpc_fail(HPC_ERR_UNSUPPORTED, op_save,
                        "rank %d: save: workers keep the parameters and the rule's state themselves, since apply_at is "
                        "HPC_AT_RECEIVERS",
                        s->meeting.rank);
    return HPC_OK;
}

static void ask(hpc_service *s, int number, double seconds) {
    char request[128];
    const int n = snprintf(request, sizeof request, "{\"op\": \"save\", \"exchange\": %d, \"seconds\": %.0f}", number,
                           seconds < MOST_SECONDS ? seconds + 1 : MOST_SECONDS);
    const int before = hpc_mute_errors(1);
    for (int i = 0; i < s->meeting.n_links && s->meeting.rank == 0; i++)
        hpc_hub_link_send(&s->links[i], 'J', request, (size_t)n, hpc_now() + 10);
    hpc_mute_errors(before);
}

int hpc_service_save(hpc_service *s, hpc_exchange *exchange, double timeout, uint64_t *steps) {
    saving_round first, second = {0};
    int status = hpc_service_usable(s, op_save);
    if (status != HPC_OK) return status;
    const int number = number_of(s, exchange);
    if (exchange == NULL || number < 0)
        return hpc_fail(HPC_ERR_INVALID, op_save, "save: this exchange was not made by this service");
    const hpc_made_at_hubs *its = &s->made[number];
    if (timeout < 0) timeout = LEAST_SECONDS;
    status = begin_round(&first, s->served, SAVE_NUMBERS, 0);
    if (status == HPC_OK) status = begin_round(&second, s->served, 1, 0);
    if (status != HPC_OK) goto err;
    if (its->counts) tell_number(&first, 2, its->steps + hpc_exchange_version(exchange, -1));
    status = check_idle(s, its, timeout);
    ask(s, number, timeout);
    status = take_round(s, &first, status, timeout);
    if (status == HPC_OK) status = take_round(s, &second, HPC_OK, timeout);
    if (status != HPC_OK) goto err;
    uint64_t most = 0;
    for (int r = 0; r < hpc_context_size(s->served); r++)
        if (told_number(&second, r, 0) > most) most = told_number(&second, r, 0);
    if (steps != NULL) *steps = most;
err:
    end_round(&first);
    end_round(&second);
    return status;
}

/* ---- restore ---- */

/* Takes the hyper-parameters that the first hub has told, and the parameters of all hubs. */
static int take(hpc_service *s, const saving_round *r, int n_keys, double timeout, hpc_made_at_hubs *its) {
    const unsigned char *told = r->all + (size_t)s->meeting.size * r->nbytes + (r->nbytes - r->more);
    int status = HPC_OK;
    for (int key = 0; key < n_keys && status == HPC_OK; key++) {
        double args[HPC_RULE_ARGS] = {0}, own[HPC_RULE_ARGS];
        memcpy(args + 1, told + (size_t)key * ARGS * sizeof *args, ARGS * sizeof *args);
        status = hpc_exchange_get_args(its->exchange, key, own);
        if (status == HPC_OK && memcmp(args, own, sizeof args) != 0)
            status = hpc_exchange_set_args(its->exchange, key, args);
    }
    if (status == HPC_OK) status = hpc_exchange_publish(its->exchange, timeout);
    for (int rank = 0; rank < hpc_context_size(s->served);
         rank++) /* a rank's clock; the steps of its rows of each key */
        for (int i = 0; i < (its->counts ? 1 : 1 + n_keys); i++)
            if (told_number(r, rank, i) > its->steps) its->steps = told_number(r, rank, i);
    return status;
}

static int restore(hpc_service *s, int n_keys, double timeout, hpc_made_at_hubs *its) {
    saving_round first, second = {0};
    int status = begin_round(&first, s->served, SEEN, 0);
    if (status == HPC_OK) status = begin_round(&second, s->served, 1 + n_keys, (size_t)n_keys * ARGS * sizeof(double));
    if (status == HPC_OK) status = take_round(s, &first, HPC_OK, timeout);
    if (status == HPC_OK) status = take_round(s, &second, HPC_OK, timeout);
    if (status == HPC_OK) status = take(s, &second, n_keys, timeout, its);
    end_round(&first);
    end_round(&second);
    return status;
}

int hpc_service_made(hpc_service *s, int n_keys, int receives, hpc_exchange **exchange) {
    hpc_made_at_hubs its = {.exchange = *exchange, .receives = receives};
    look(&its, n_keys);
    hpc_made_at_hubs *more = realloc(s->made, ((size_t)s->n_made + 1) * sizeof *more);
    int status = more == NULL ? hpc_fail(HPC_ERR_MEMORY, op_save, "no memory for an exchange") : HPC_OK;
    if (more != NULL) s->made = more;
    if (status == HPC_OK && s->resumes) status = restore(s, n_keys, LEAST_SECONDS, &its);
    if (status != HPC_OK) {
        char why[HPC_REFUSAL_TEXT];
        snprintf(why, sizeof why, "%s", hpc_last_error()->message);
        hpc_exchange_close(*exchange, LEAST_SECONDS);
        hpc_exchange_free(*exchange);
        *exchange = NULL;
        return hpc_fail(status, op_save, "%s", why);
    }
    s->made[s->n_made++] = its;
    return HPC_OK;
}
