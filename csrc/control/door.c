#include "control/door.h"

#include <string.h>

#include "control/channel.h"

enum { MAGIC_BYTES = HPC_DOOR_CALL - HPC_NAME_BYTES };

static const char hub[] = "hpchub", magic[MAGIC_BYTES + 1] = "hpcdoor1";

static int refuse(int status, const char *words, const char **why) {
    *why = words;
    return status;
}

int hpc_door_call(int fd, const unsigned char name[HPC_NAME_BYTES], double deadline, const char **why) {
    unsigned char call[HPC_DOOR_CALL], greeting[HPC_DOOR_GREETING], verdict;
    memcpy(call, magic, MAGIC_BYTES);
    memcpy(call + MAGIC_BYTES, name, HPC_NAME_BYTES);
    int status = hpc_net_send_all(fd, call, sizeof call, deadline);
    if (status == HPC_OK) status = hpc_net_receive_all(fd, greeting, sizeof greeting, deadline);
    if (status == HPC_OK && memcmp(greeting, hub, sizeof hub - 1) != 0)
        return refuse(HPC_ERR_AUTH, "no hub listens there", why);
    if (status == HPC_OK) status = hpc_net_receive_all(fd, &verdict, 1, deadline);
    if (status == HPC_ERR_TIMEOUT) return refuse(status, "it did not answer in time", why);
    if (status != HPC_OK) return refuse(status, "it hung up: it has no place for more callers", why);
    if (verdict == 0) return refuse(HPC_ERR_PEER, "it has ended", why);
    return HPC_OK;
}

int hpc_control_calls(const hpc_control *c, int rank) {
    const int own = c->self.door != 0, has_door = c->links[rank].address.door != 0;
    return own == has_door ? c->group->rank > rank : has_door;
}
