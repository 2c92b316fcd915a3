/* Letters: the messages between the ranks of a rendezvous, which all go to or from rank 0, and their reader.
 *
 *   rank r -> 0   GIVE      its part of a round
 *   rank r -> 0   EXPIRED   its deadline has passed; rank 0 answers FAILED, naming the missing ranks
 *   0 -> rank r   GATHERED  the parts of all ranks, in rank order
 *   0 -> rank r   FAILED    a notice: why the rendezvous is over for every rank
 *
 * In round 0 the ranks arrive: the handshake counts as GIVE, and the parts are empty. The reader does no input
 * itself and allocates nothing. It tells its caller where the next bytes go, and the caller tells it how many came.
 * A part is written only where its round expects it, and the reader trusts no byte from the network. */
#ifndef HPC_LETTERS_H
#define HPC_LETTERS_H

#include "control/net.h"

enum {
    HPC_GATHER_BYTES = 16 << 20, /* of all parts together */
    HPC_NOTICE_RANKS = 1024,
    HPC_NOTICE_TEXT = 768,
    HPC_NOTICE_BYTES = (3 + 2 * HPC_NOTICE_RANKS) * 4 + HPC_NOTICE_TEXT /* most bytes of a notice on the wire */
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
    uint32_t nbytes; /* bytes after this header */
} hpc_letter;

hpc_letter hpc_letter_make(int type, uint32_t round, size_t nbytes);

/* Why a rendezvous is over: the arguments of hpc_fail_ranks, without the words "rank r: init: " at the front. */
typedef struct hpc_notice {
    int status;
    int n_ranks, n_waiting;
    int ranks[HPC_NOTICE_RANKS], waiting_for[HPC_NOTICE_RANKS];
    char text[HPC_NOTICE_TEXT]; /* ends with a NUL */
} hpc_notice;

size_t hpc_notice_write(const hpc_notice *notice, unsigned char bytes[HPC_NOTICE_BYTES]);
/* Reads a notice; returns whether it is valid for size ranks. */
int hpc_notice_read(const unsigned char *bytes, size_t nbytes, int size, hpc_notice *notice);

typedef struct hpc_letters {
    int from_zero; /* the letters come from rank 0; otherwise they go to rank 0 */
    int awaited;   /* the part, or the parts, of this round have not come yet */
    uint32_t round;
    char *into;            /* where the parts go */
    size_t nbytes;         /* how many bytes they must be */
    hpc_letter letter;     /* the header of the current letter */
    size_t got;            /* bytes of the letter so far, with header */
    unsigned char *notice; /* HPC_NOTICE_BYTES, for rank 0's notice; NULL: none is expected */
} hpc_letters;

void hpc_letters_init(hpc_letters *letters, int from_zero, unsigned char *notice);

/* Sets where the data of the current round goes, and its exact size: one rank's part, or all parts if from_zero. */
void hpc_letters_expect(hpc_letters *letters, uint32_t round, void *into, size_t nbytes);

/* Returns how many bytes may come next, never 0, and sets *at to their place. */
size_t hpc_letters_want(hpc_letters *letters, void **at);

/* Handles n bytes that came to *at of the last want. HPC_IN_PROGRESS: more are needed. HPC_OK: letter is complete;
 * the next want begins another. HPC_ERR_CONFIG: the header gives another size than nbytes; read no further.
 * HPC_ERR_TRANSPORT: no valid rank sends this now; *why gets a few words. */
int hpc_letters_got(hpc_letters *letters, size_t n, const char **why);

/* ---- the address at which ranks meet rank 0 ---- */

enum { HPC_PLACES = 8, HPC_PLACE_TEXT = 272 };

typedef struct hpc_meeting_place {
    char host[HPC_PLACE_TEXT - 16], text[HPC_PLACE_TEXT]; /* "node1", "node1:29500" */
    int port, n;
    int is_loopback;             /* no other host reaches it */
    hpc_endpoint at[HPC_PLACES]; /* the addresses of host */
} hpc_meeting_place;

/* Looks up host. HPC_ERR_INVALID without host or port; HPC_ERR_CONFIG if the name has no address by the deadline;
 * HPC_ERR_AUTH if an address is not loopback and there is no secret. A look-up that has begun may last longer than
 * the deadline: the resolver has its own limits. */
int hpc_meeting_place_find(hpc_meeting_place *place, int rank, const char *host, int port, int has_secret,
                           double deadline);

/* Listens on the addresses that belong to this host; returns how many, or HPC_ERR_CONFIG. */
int hpc_meeting_place_listen(const hpc_meeting_place *place, int rank, int fds[HPC_PLACES]);

#endif
