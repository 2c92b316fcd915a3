/* The letters of ranks at a rendezvous, a star around rank 0, and how they are read.
 *
 *   rank r -> 0   GIVE      its part of a round
 *   rank r -> 0   EXPIRED   its deadline has passed; rank 0 answers FAILED with who is missing
 *   0 -> rank r   GATHERED  all parts of a round, in rank order
 *   0 -> rank r   FAILED    a notice: why the rendezvous is over on every rank
 *
 * In round 0 the ranks come: the handshake stands for its GIVE, and its parts are empty. The reader does no input
 * itself and allocates nothing: it says where the next bytes are to go, and is told how many came. A part goes where
 * its round expects it, and nothing from the wire is believed. */
#ifndef HPC_LETTERS_H
#define HPC_LETTERS_H

#include "control/net.h"

enum {
    HPC_GATHER_BYTES = 16 << 20, /* of all parts together */
    HPC_NOTICE_RANKS = 1024,
    HPC_NOTICE_TEXT = 768,
    HPC_NOTICE_BYTES = (3 + 2 * HPC_NOTICE_RANKS) * 4 + HPC_NOTICE_TEXT /* the most that one takes on the wire */
};

typedef enum hpc_letter_type {
    HPC_LETTER_GIVE = 1,
    HPC_LETTER_EXPIRED = 2,
    HPC_LETTER_GATHERED = 3,
    HPC_LETTER_FAILED = 4
} hpc_letter_type;

typedef struct hpc_letter {
    uint32_t magic, type;
    uint32_t round;
    uint32_t nbytes; /* of what follows */
} hpc_letter;

hpc_letter hpc_letter_make(int type, uint32_t round, size_t nbytes);

/* Why a rendezvous is over: as hpc_fail_ranks takes it, but for the words "rank r: init: " in front. */
typedef struct hpc_notice {
    int status;
    int n_ranks, n_waiting;
    int ranks[HPC_NOTICE_RANKS], waiting_for[HPC_NOTICE_RANKS];
    char text[HPC_NOTICE_TEXT]; /* ends with a NUL */
} hpc_notice;

size_t hpc_notice_write(const hpc_notice *notice, unsigned char bytes[HPC_NOTICE_BYTES]);
/* Whether it makes sense among size ranks. */
int hpc_notice_read(const unsigned char *bytes, size_t nbytes, int size, hpc_notice *notice);

typedef struct hpc_letters {
    int from_zero; /* letters come from rank 0; otherwise from another rank */
    int awaited;   /* the part, or all parts, of round have not come yet */
    uint32_t round;
    char *into;            /* where they go */
    size_t nbytes;         /* how many they must be */
    hpc_letter letter;     /* the one that is coming or has come */
    size_t got;            /* bytes of it, header included */
    unsigned char *notice; /* HPC_NOTICE_BYTES for rank 0's notice; NULL for the letters of others */
} hpc_letters;

void hpc_letters_init(hpc_letters *letters, int from_zero, unsigned char *notice);

/* Tells where the data of the present round goes, and its bytes: that of one rank, or with from_zero that of all. */
void hpc_letters_expect(hpc_letters *letters, uint32_t round, void *into, size_t nbytes);

/* The place for the next bytes, and how many may come, never 0. */
size_t hpc_letters_want(hpc_letters *letters, void **at);

/* n bytes came to where want said. HPC_IN_PROGRESS: more are needed. HPC_OK: letter is whole, and the next want begins
 * another. HPC_ERR_CONFIG: its header says other than nbytes, and must be the last that is read. HPC_ERR_TRANSPORT: no
 * rank of hpcomm sends that now; why gets a few words. */
int hpc_letters_got(hpc_letters *letters, size_t n, const char **why);

/* ---- where rank 0 is met ---- */

enum { HPC_PLACES = 8, HPC_PLACE_TEXT = 272 };

typedef struct hpc_meeting_place {
    char host[HPC_PLACE_TEXT - 16], text[HPC_PLACE_TEXT]; /* "node1", "node1:29500" */
    int port, n;
    int is_loopback;             /* no other host reaches it */
    hpc_endpoint at[HPC_PLACES]; /* the addresses of host */
} hpc_meeting_place;

/* Looks up host. HPC_ERR_INVALID for no host or port; HPC_ERR_CONFIG for a name that has no address by the deadline;
 * HPC_ERR_AUTH for one that is not loopback while there is no secret. A look-up that the resolver has begun ends by the
 * resolver's own limits. */
int hpc_meeting_place_find(hpc_meeting_place *place, int rank, const char *host, int port, int has_secret,
                           double deadline);

/* Listens on the addresses that are this host's: how many, or HPC_ERR_CONFIG. */
int hpc_meeting_place_listen(const hpc_meeting_place *place, int rank, int fds[HPC_PLACES]);

#endif
