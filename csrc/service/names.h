/* The texts by which a job is found: handles, addresses of hubs, names and tokens. hpcomm/service/handle.py reads and
 * writes the same. */
#ifndef HPC_NAMES_H
#define HPC_NAMES_H

#include "base/status.h"
#include "service/proof.h"

enum { HPC_MOST_HUBS = 64, HPC_NAME_TEXT = 64, HPC_NONCE_TEXT = 33, HPC_HOST_TEXT = 256, HPC_HUB_TEXT = 272 };

typedef struct hpc_hub_place {
    char host[HPC_HOST_TEXT], text[HPC_HUB_TEXT]; /* "hub7", "hub7:7700" */
    int port;
} hpc_hub_place;

/* A job at its hubs. Its text is hub://HOST:PORT,HOST:PORT/NAMESPACE/JOB/NONCE. */
typedef struct hpc_job_place {
    char space[HPC_NAME_TEXT], job[HPC_NAME_TEXT], nonce[HPC_NONCE_TEXT];
    int n_hubs;
    hpc_hub_place hubs[HPC_MOST_HUBS];
} hpc_job_place;

/* Reads the addresses of hubs, "HOST:PORT,HOST:PORT", of nbytes. HPC_ERR_INVALID for other texts. */
int hpc_hub_places_read(const char *text, size_t nbytes, hpc_job_place *place);

/* Reads a handle; NULL: that of HPCOMM_SERVICE. HPC_ERR_CONFIG for other texts. */
int hpc_handle_read(const char *text, hpc_job_place *place);
/* Writes a handle. HPC_ERR_INVALID if its cap bytes are too few. */
int hpc_handle_write(const hpc_job_place *place, char *text, size_t cap);

/* Returns whether a text is a name, of a namespace or of a job; and whether it is the nonce of a job. */
int hpc_is_name(const char *text);
int hpc_is_nonce(const char *text);
/* HPC_ERR_INVALID unless text is a name. what: the word for it in the error. */
int hpc_name_check(const char *what, const char *text);

/* Finds the token: the caller's bytes or, if data is NULL, the bytes of the file that HPCOMM_SECRET_FILE names, for
 * which *memory then gets memory that the caller frees. */
int hpc_token_find(const void *data, size_t nbytes, hpc_token *token, unsigned char **memory);

#endif
