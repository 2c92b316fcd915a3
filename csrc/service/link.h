/* A worker's proven connection to a hub, and the frames on it: hpcomm/service/meeting.py lists their kinds. One thread
 * at a time uses it. Its errors are the sentences of hpcomm/service/client.py. */
#ifndef HPC_LINK_H
#define HPC_LINK_H

#include "service/names.h"

enum { HPC_REFUSAL_TEXT = 1024 };

typedef struct hpc_hub_link {
    int fd; /* -1: closed */
    const hpc_hub_place *hub;
    hpc_seal seal;
    int ended;      /* the hub has ended the job, or the connection broke; the last notice says why */
    char **notices; /* sentences of the hub to this job */
    int n_notices;
    unsigned char *frame; /* the last frame, without its length */
    size_t nbytes, cap;   /* of the frame; of its memory */
} hpc_hub_link;

/* Tells a context at which addresses rank is called: a hub whose contexts have its port as their door. link: NULL, or
 * a connection to this hub, whose address is then the only one. Without any, the rank is called where it announces. */
int hpc_hub_lead(const hpc_hub_link *link, const hpc_hub_place *hub, hpc_context *context, int rank);

/* Connects, and proves the token of a namespace. hub must live as long as the link. On an error the link is closed.
 *   HPC_ERR_TRANSPORT  no hub answers at this address
 *   HPC_ERR_AUTH       the hub does not know the namespace, or one of the two has another token
 *   HPC_ERR_CONFIG     the hub speaks another version */
int hpc_hub_link_open(hpc_hub_link *link, const hpc_hub_place *hub, const char *space, hpc_token token,
                      double deadline);
void hpc_hub_link_close(hpc_hub_link *link); /* also frees notices and the frame */

int hpc_hub_link_send(hpc_hub_link *link, char kind, const void *body, size_t nbytes, double deadline);

/* Receives the next frame that is no notice; *body is valid until the next frame. A refusal of the hub becomes its
 * status and its sentence. HPC_ERR_AUTH for a frame of another kind than the wanted one. */
int hpc_hub_link_receive(hpc_hub_link *link, char kind, const unsigned char **body, size_t *nbytes, double deadline);

/* Records a refusal as an error, and returns its status: the name of an error's class, a newline, and the sentence. */
int hpc_fail_refusal(const char *body, size_t nbytes);
/* Returns the name of the class for a status. */
const char *hpc_refusal_kind(int status);

/* Takes the notices that have come, without waiting. Returns the refusal that ended the job, or the error that ended
 * the connection, if one of these has come; its sentence is then a notice too. HPC_OK afterwards. */
int hpc_hub_link_look(hpc_hub_link *link);

#endif
