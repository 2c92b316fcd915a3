/* Objects (windows and lanes), and how a rank reaches a peer's part of one. */
#ifndef HPC_REACH_H
#define HPC_REACH_H

#include "transport/objects.h"

/* How ranks reach each other's parts of an object (reach.c), by the transport of the pair. */
typedef struct hpc_joint {
    const char *name; /* of the kind of object, for errors */
    /* Returns whether peer's part is reached without a question: by the object's number, or because the peer has
     * reached this rank's part and both use one connection. */
    int (*is_met)(const hpc_transport *transport, hpc_object *object, int peer);
    int (*export_to)(const hpc_transport *transport, hpc_object *object, int peer, hpc_blob *blob);
    int (*attach)(const hpc_transport *transport, hpc_object *object, int peer, const hpc_blob *blob);
    void (*come_near)(hpc_object *object, int peer); /* the peer's part is attached */
    /* Writes into this rank's part (hpc_giver.put). NULL: nothing can be put into this kind of object. */
    int (*put)(hpc_object *object, const void *data, size_t nbytes, uint64_t offset, int signal, uint64_t value);
    /* Takes what rank says (hpc_giver.hear). NULL: no rank says anything about this kind of object. */
    void (*hear)(hpc_object *object, int rank, const void *data, size_t nbytes, uint64_t offset, uint64_t value);
} hpc_joint;

/* Numbers an object; peers may then reach this rank's part. All ranks call it at the same place of a collective call,
 * and another collective follows before the next object is opened. */
int hpc_object_open(hpc_context *context, hpc_object *object, const hpc_joint *joint, const char *op);
/* Does so, under a number that no collective gives, at any time. */
int hpc_object_open_as(hpc_context *context, hpc_object *object, const hpc_joint *joint, uint64_t number,
                       const char *op);
/* After it no thread of the control channel uses the object. An object that was not opened is allowed. */
void hpc_object_close(hpc_context *context, hpc_object *object);

/* Marks rank's part as reached. */
void hpc_reach_mark(hpc_object *object, int rank);
/* Returns the object of this number; NULL if it was freed, or is not there yet. The caller holds `reach`. */
hpc_object *hpc_object_find(const hpc_context *context, uint64_t number);

/* Goes one step towards peer's part of the object. Returns HPC_OK if it is reached, HPC_IN_PROGRESS to be called again,
 * HPC_GONE if the peer has freed it, or a failure. It does not wait. */
int hpc_reach_try(hpc_context *context, hpc_object *object, int peer, const char *op);
/* Waits until the part is reached, for init_timeout at most. */
int hpc_reach(hpc_context *context, hpc_object *object, int peer, const char *op);
/* Does so for several, in one round trip: a later put then waits for no peer. Changes goals. */
typedef struct hpc_goal {
    hpc_object *object;
    int peer;
} hpc_goal;
int hpc_reach_all(hpc_context *context, hpc_goal *goals, int n, const char *op, double deadline);
extern const hpc_giver hpc_reach_giver; /* its argument is the context */

#endif
