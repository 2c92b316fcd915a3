/* The description of an exchange as structs, and the layout of its message:
 *
 *   message   "hpcx", version (4 bytes), number of schemes (4 bytes), the schemes
 *   scheme    the members of hpc_hub and hpc_exchange_config, the racks, number of keys (4 bytes), the keys
 *   racks     number of workers (4 bytes; 0: no racks); then top (4 bytes), apart (1 byte), and two numbers for each
 *             worker (4 bytes each), first all hosts, then all racks
 *   key       name, count, unit, and a byte: 0: its form follows; 1: its form is that of the key before
 *   form      the wires of updates and parameters, the rule with its arguments and its prox, and the codec
 *
 * Rules and proxes are named, and their code is the reader's own; so a message holds no addresses. */
#ifndef HPC_DESCRIPTION_H
#define HPC_DESCRIPTION_H

#include "base/status.h"

enum {
    HPC_DESCRIPTION_VERSION = 2,
    HPC_RACK_LEVELS = 2,       /* hosts and racks */
    HPC_KEY_NAME_BYTES = 1024, /* of a key's name, at most */
    HPC_RULE_NAME_BYTES = 64   /* of a rule's or a prox's name, with its 0 */
};

/* A key's rule and codec, which the next keys may share. */
typedef struct hpc_key_form {
    hpc_rule rule;
    char label[HPC_RULE_NAME_BYTES]; /* the rule's name */
    int wire, codec_out;
    int has_codec;
    hpc_codec_config codec;
    struct hpc_key_form *before; /* an earlier one */
} hpc_key_form;

/* The racks of a scheme, beside hpc_hub, if each rack has a hub. */
typedef struct hpc_hub_racks {
    int n;             /* workers; 0: no racks */
    const int *groups; /* groups[0][w]: the host of worker w; groups[1][w]: the hub of its rack */
    int top, apart;    /* as in hpc_hosts */
} hpc_hub_racks;

typedef struct hpc_described_scheme {
    hpc_hub hub; /* without ranks */
    hpc_hub_racks racks;
    int *groups;           /* what racks points to */
    int n_hosts, n_shared; /* hosts in racks, and hosts with several workers */
    hpc_exchange_config config;
    /* by key, as hub and config point to them */
    hpc_key *keys;
    char **names;
    int *wires, *codecs_out;
    const hpc_rule **rules;
    const hpc_codec_config **codecs;
    hpc_plan *plan; /* NULL: not made yet */
} hpc_described_scheme;

struct hpc_description {
    int n_schemes;
    int workers, hubs; /* of the job, once plans are made */
    hpc_described_scheme *schemes;
    hpc_key_form *forms;
};

/* Check the arguments of a plan with racks, as a worker gives them; and racks, for any job. */
int hpc_hub_check_hosts(const hpc_hosts *hosts);
int hpc_hub_check_racks(const hpc_hub_racks *racks, int apply_at);

/* Convert the arguments of a plan with racks, without ranks. The result keeps the pointers of the arguments. */
void hpc_hub_of_hosts(const hpc_hosts *hosts, hpc_hub *hub, hpc_hub_racks *racks);
void hpc_hub_to_hosts(const hpc_hub *hub, const hpc_hub_racks *racks, hpc_hosts *hosts);

/* Makes the plan of hubs among workers, the first ranks, and hubs, the ranks after them. */
int hpc_hub_plan(const hpc_hub *hub, const hpc_hub_racks *racks, int workers, int hubs, hpc_plan **plan);

/* Takes part in the creation of an exchange only to tell every rank why this rank refuses: with its last failure. Then
 * records that failure again, and returns its status. */
int hpc_hub_refuse(hpc_context *context, double timeout);

#endif
