/* service.h - the hub as a service (PHub, section 3.1): hubs are processes that serve the parameters of many jobs, and
 * outlive them (`hpcomm hub serve`). hpcomm.h includes it. */
#ifndef HPCOMM_SERVICE_H
#define HPCOMM_SERVICE_H

#ifndef HPCOMM_H
#error "include <hpcomm/hpcomm.h>, which includes service.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* ---- a worker of a job ---- */

/* Creates a job at a hub, or at several, which then share the job's parameters, and writes its handle, a text with its
 * 0, into handle, of cap bytes. One process calls it, and gives the handle to all workers, e.g. by the variable
 * HPCOMM_SERVICE. The handle is no secret: a worker needs the token too. It is good for one job.
 *   hubs     "HOST:PORT", or a comma list of these
 *   space    the tenant's namespace at the hubs
 *   job      the job's name; NULL: the hub chooses one
 *   token    the namespace's token; NULL: the contents of the file that the variable HPCOMM_SECRET_FILE names
 *   timeout  seconds for each hub's answer; negative: 10
 * HPC_ERR_INVALID: a malformed argument; HPC_ERR_TRANSPORT, HPC_ERR_TIMEOUT: no hub answers; HPC_ERR_AUTH: the hub does
 * not know the namespace or the token; HPC_ERR_CONFIG: another version, a quota, a second job of this name, or the hub
 * drains. */
enum { HPC_HANDLE_BYTES = 512 }; /* enough for a job at one hub; each further hub needs up to 264 more */
HPC_API int hpc_service_create(const char *hubs, const char *space, const char *job, const void *token,
                               size_t token_bytes, double timeout, char *handle, size_t cap);

/* A worker's membership in a job at a hub. One thread at a time may use it. */
typedef struct hpc_service hpc_service;

/* Joins a job as one of its workers, and waits for the other workers and the hubs (hpc_config.init_timeout). The ranks
 * meet at the hub, so they need no launcher.
 *   handle      the text that hpc_service_create wrote; NULL: that of the variable HPCOMM_SERVICE
 *   token       as in hpc_service_create
 *   rank, size  this worker's number, from 0, and the number of workers
 *   config      NULL: the defaults. Its secret and users are ignored: the job has a secret made of the token, and each
 *               hub proves its user
 * HPC_ERR_CONFIG: the handle is malformed, or its job has ended; workers give different sizes, the same rank or
 * different settings; or a quota. HPC_ERR_AUTH, HPC_ERR_TRANSPORT: as in hpc_service_create. HPC_ERR_TIMEOUT,
 * HPC_ERR_PEER: a worker did not come, or failed. */
HPC_API int hpc_service_connect(const char *handle, const void *token, size_t token_bytes, int rank, int size,
                                const hpc_config *config, hpc_service **service);

/* Returns the context of the workers: barriers, windows, collectives, and exchanges among the workers alone. It belongs
 * to the service. */
HPC_API hpc_context *hpc_service_context(const hpc_service *service);
/* Returns how many cores each hub has. */
HPC_API int hpc_service_cores(const hpc_service *service);

/* Makes an exchange whose only servers are the hubs (collective over the workers; PHub, section 3.1: InitService). The
 * keys, the plan's arguments, rules, consistency and codecs travel to the hubs in one message. The exchange then takes
 * the calls of any exchange. Errors of these give ranks: those after the last worker are the hubs.
 *   config  as for hpc_exchange_create, but its members plan are ignored
 *   hubs    hubs[i]: the arguments of the plan of config, of config->next and so on. Their workers and servers are
 *           ignored. cores 0: as many as the hub has; interfaces 0: as many as the hubs' NICs
 *   racks   racks[i], unless NULL: the arguments of a plan in place of hubs[i], in which each hub serves a rack, folds
 *           for it and relays to it (PHub, section 3.4). n_workers is the number of workers, n_levels 2: groups[0][w]
 * is the host of rank w, groups[1][w] the number of the hub of its rack, 0 for the first hub of the handle. Each hub
 * has a worker. workers is ignored; leads and serves are NULL; cores 0: as many as the hub has. NULL: no racks
 * HPC_ERR_INVALID: the arguments are wrong on some rank; they hold a rule or a codec of the user's own, since a hub
 * runs none of its tenants' code; or the namespace has too little memory left. HPC_ERR_CONFIG: ranks gave different
 * arguments. */
HPC_API int hpc_service_exchange(hpc_service *service, const hpc_hub *const *hubs, const hpc_hosts *const *racks,
                                 const hpc_exchange_config *config, double timeout, hpc_exchange **exchange);

/* Lets the hubs save an exchange that hpc_service_exchange has made (collective over the workers): its parameters, the
 * rule's state and hyper-parameters, and its steps. Each worker calls it with no push or pull pending. *steps gets how
 * many steps were saved, unless steps is NULL. timeout: seconds for all workers to come and the hubs to write;
 * negative: 600. HPC_ERR_CONFIG: the hub saves nothing, a quota has no room, or a file cannot be written; the save
 * before it is kept. HPC_ERR_INVALID: a call is pending. HPC_ERR_UNSUPPORTED: workers apply. After these the exchange
 * goes on. */
HPC_API int hpc_service_save(hpc_service *service, hpc_exchange *exchange, double timeout, uint64_t *steps);

/* Returns the steps with which an exchange began: those of its save in a job that was created to resume, e.g. by
 * `hpcomm hub create --resume`; otherwise 0. */
HPC_API uint64_t hpc_service_steps(const hpc_service *service, const hpc_exchange *exchange);

/* Returns notice i, a sentence that a hub has told this job, such as that it drains and ends the job in 60 s; NULL past
 * the last one. If a hub has ended the job, the last one says why. */
HPC_API const char *hpc_service_notice(hpc_service *service, int i);

/* Leaves the job: closes both contexts, and tells the hubs that this rank is done. Close the exchanges first. A second
 * call does nothing. abort leaves the job as failed, and tells the other ranks why. */
HPC_API int hpc_service_close(hpc_service *service);
HPC_API int hpc_service_abort(hpc_service *service, const char *why);
/* Closes the service if it is open, and frees it and the workers' context. NULL is allowed. */
HPC_API void hpc_service_free(hpc_service *service);

/* ---- a description of an exchange ---- */

enum { HPC_DESCRIPTION_BYTES = 8 << 20, HPC_DESCRIPTION_KEYS = 100000, HPC_DESCRIPTION_ROWS = 1 << 20 };

/* Writes the message that describes an exchange at hubs (the arguments of hpc_service_exchange) into message, unless
 * cap is too small. It has no values, no ranks and no addresses of code. Returns how many bytes the message has;
 * HPC_ERR_INVALID for arguments that a hub does not take. */
HPC_API int64_t hpc_description_write(const hpc_hub *const *hubs, const hpc_hosts *const *racks,
                                      const hpc_exchange_config *config, void *message, size_t cap);

/* A description of an exchange, read from a message. */
typedef struct hpc_description hpc_description;

/* Reads a message, which may hold anything, and checks each value. cores: the most cores of a hub. HPC_ERR_INVALID: it
 * is no description, or has a value out of range. */
HPC_API int hpc_description_read(const void *message, size_t nbytes, int cores, hpc_description **description);
HPC_API void hpc_description_free(hpc_description *description);

/* Makes the plans of the exchange for so many workers and hubs: the ranks after the workers are the hubs. Once for a
 * description. HPC_ERR_INVALID: the arguments of a plan are wrong together. */
HPC_API int hpc_description_plan(hpc_description *description, int workers, int hubs);

/* Returns a bound on the bytes that the exchange needs at a hub; UINT64_MAX: more than can be counted. far: the number
 * of workers whose memory the hub does not map. rank: the hub's rank, once the plans are made; -1: a hub that has an
 * equal share of the keys, whatever the plans are. */
HPC_API uint64_t hpc_description_memory(const hpc_description *description, int workers, int hubs, int far, int rank);
/* Returns a bound on the descriptors that its lanes need at a hub, once the plans are made. far_hubs: the number of
 * other hubs whose memory the hub does not map; without racks it exchanges nothing with them. rank: the hub's rank.
 * streams: hpc_config.tcp_streams. */
HPC_API int hpc_description_descriptors(const hpc_description *description, int far, int far_hubs, int rank,
                                        int streams);

/* A key of a description, and the plan that has the key as its key `number`; plan is NULL until the plans are made. The
 * pointers are valid as long as the description. */
typedef struct hpc_described_key {
    const char *name;
    uint64_t count;
    const hpc_rule *rule;
    const hpc_plan *plan;
    int number;
} hpc_described_key;

/* Describes key i: the keys are numbered as in the exchange. HPC_ERR_INVALID if there are not so many; records no
 * error. */
HPC_API int hpc_description_key(const hpc_description *description, int i, hpc_described_key *key);

/* Makes a hub's end of the exchange, while the workers call hpc_service_exchange. The plans must be made. weight:
 * hpc_exchange_config.weight. The hub then calls hpc_exchange_serve. */
HPC_API int hpc_description_exchange(const hpc_description *description, hpc_context *context, double weight,
                                     double timeout, hpc_exchange **exchange);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
