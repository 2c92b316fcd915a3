#include "control/letters.h"

#include <string.h>

static const uint32_t MAGIC = 0x7270636c;

/* ---- notices ---- */

size_t hpc_notice_write(const hpc_notice *notice, unsigned char bytes[HPC_NOTICE_BYTES]) {
    int32_t numbers[3] = {notice->status, notice->n_ranks, notice->n_waiting};
    unsigned char *at = bytes;
    size_t text = strlen(notice->text);
    memcpy(at, numbers, sizeof numbers);
    at += sizeof numbers;
    memcpy(at, notice->ranks, (size_t)notice->n_ranks * sizeof(int32_t));
    at += (size_t)notice->n_ranks * sizeof(int32_t);
    memcpy(at, notice->waiting_for, (size_t)notice->n_waiting * sizeof(int32_t));
    at += (size_t)notice->n_waiting * sizeof(int32_t);
    memcpy(at, notice->text, text);
    return (size_t)(at - bytes) + text;
}

static int read_ranks(const unsigned char *at, int n, int size, int *ranks) {
    memcpy(ranks, at, (size_t)n * sizeof *ranks);
    for (int i = 0; i < n; i++)
        if (ranks[i] < 0 || ranks[i] >= size) return 0;
    return 1;
}

int hpc_notice_read(const unsigned char *bytes, size_t nbytes, int size, hpc_notice *notice) {
    int32_t numbers[3];
    if (nbytes < sizeof numbers) return 0;
    memcpy(numbers, bytes, sizeof numbers);
    notice->status = numbers[0];
    notice->n_ranks = numbers[1];
    notice->n_waiting = numbers[2];
    if (notice->status < HPC_ERR_MEMORY || notice->status >= HPC_OK) return 0;
    if (notice->n_ranks < 0 || notice->n_ranks > HPC_NOTICE_RANKS) return 0;
    if (notice->n_waiting < 0 || notice->n_waiting > HPC_NOTICE_RANKS) return 0;
    size_t ranks = (size_t)notice->n_ranks * sizeof(int32_t), waiting = (size_t)notice->n_waiting * sizeof(int32_t);
    size_t before = sizeof numbers + ranks + waiting;
    if (nbytes < before || nbytes - before >= HPC_NOTICE_TEXT) return 0;
    if (!read_ranks(bytes + sizeof numbers, notice->n_ranks, size, notice->ranks)) return 0;
    if (!read_ranks(bytes + sizeof numbers + ranks, notice->n_waiting, size, notice->waiting_for)) return 0;
    memcpy(notice->text, bytes + before, nbytes - before);
    notice->text[nbytes - before] = '\0';
    return 1;
}

/* ---- letters ---- */

hpc_letter hpc_letter_make(int type, uint32_t round, size_t nbytes) {
    return (hpc_letter){.magic = MAGIC, .type = (uint32_t)type, .round = round, .nbytes = (uint32_t)nbytes};
}

void hpc_letters_init(hpc_letters *letters, int from_zero, unsigned char *notice) {
    *letters = (hpc_letters){.from_zero = from_zero, .notice = notice};
}

void hpc_letters_expect(hpc_letters *letters, uint32_t round, void *into, size_t nbytes) {
    letters->awaited = 1;
    letters->round = round;
    letters->into = into;
    letters->nbytes = nbytes;
}

static size_t whole(const hpc_letters *l) {
    return sizeof l->letter + l->letter.nbytes;
}

size_t hpc_letters_want(hpc_letters *l, void **at) {
    if (l->got >= sizeof l->letter && l->got == whole(l)) l->got = 0;
    if (l->got < sizeof l->letter) {
        *at = (char *)&l->letter + l->got;
        return sizeof l->letter - l->got;
    }
    size_t done = l->got - sizeof l->letter;
    *at = l->letter.type == HPC_LETTER_FAILED ? (char *)l->notice + done : l->into + done;
    return whole(l) - l->got;
}

static int refuse(int status, const char *words, const char **why) {
    *why = words;
    return status;
}

/* Returns the fault of a header, or NULL. Called before any byte after the header is read. */
static int check(const hpc_letters *l, const char **why) {
    const hpc_letter *letter = &l->letter;
    if (letter->magic != MAGIC) return refuse(HPC_ERR_TRANSPORT, "it is not a message of hpcomm", why);
    switch (letter->type) {
    case HPC_LETTER_GIVE:
    case HPC_LETTER_GATHERED:
        if (l->from_zero != (letter->type == HPC_LETTER_GATHERED)) break;
        if (!l->awaited || letter->round != l->round)
            return refuse(HPC_ERR_TRANSPORT, "it belongs to another round", why);
        if (letter->nbytes == l->nbytes) return HPC_OK;
        return refuse(l->from_zero ? HPC_ERR_TRANSPORT : HPC_ERR_CONFIG, "its size is wrong", why);
    case HPC_LETTER_EXPIRED:
        if (l->from_zero) break;
        if (letter->nbytes != 0) return refuse(HPC_ERR_TRANSPORT, "its size is wrong", why);
        return HPC_OK;
    case HPC_LETTER_FAILED:
        if (!l->from_zero) break;
        if (letter->nbytes > HPC_NOTICE_BYTES) return refuse(HPC_ERR_TRANSPORT, "its size is wrong", why);
        return HPC_OK;
    default:
        break;
    }
    return refuse(HPC_ERR_TRANSPORT, "its type is one that only the other side sends", why);
}

int hpc_letters_got(hpc_letters *l, size_t n, const char **why) {
    int had_header = l->got >= sizeof l->letter;
    l->got += n;
    if (l->got < sizeof l->letter) return HPC_IN_PROGRESS;
    if (!had_header) {
        int status = check(l, why);
        if (status != HPC_OK) return status;
    }
    if (l->got < whole(l)) return HPC_IN_PROGRESS;
    if (l->letter.type == HPC_LETTER_GIVE || l->letter.type == HPC_LETTER_GATHERED) l->awaited = 0;
    return HPC_OK;
}
