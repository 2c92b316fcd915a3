/* The description of an exchange as structs, and the layout of its message:
 *
 *   message   "hpcx", version (4 bytes), number of schemes (4 bytes), the schemes
 *   scheme    the members of hpc_hub and hpc_exchange_config, number of keys (4 bytes), the keys
 *   key       name, count, unit, and a byte: 0: its form follows; 1: its form is that of the key before
 *   form      the wires of updates and parameters, the rule with its arguments and its prox, and the codec
 *
 * Rules and proxes are named, and their code is the reader's own; so a message holds no addresses. */
#ifndef HPC_DESCRIPTION_H
#define HPC_DESCRIPTION_H

#include "base/status.h"

enum {
    HPC_DESCRIPTION_VERSION = 1,
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

typedef struct hpc_described_scheme {
    hpc_hub hub; /* without ranks */
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
    hpc_described_scheme *schemes;
    hpc_key_form *forms;
};

/* Makes the plan of a hub among workers, the first ranks, and hubs, the ranks after them. Changes args. */
int hpc_hub_plan(hpc_hub *args, int workers, int hubs, hpc_plan **plan);

/* Takes part in the creation of an exchange only to tell every rank why this rank refuses: with its last failure. Then
 * records that failure again, and returns its status. */
int hpc_hub_refuse(hpc_context *context, double timeout);

#endif
