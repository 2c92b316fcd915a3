/* Calls at a door: one port of a process, at which many contexts are called by TCP. The process listens itself, as a
 * hub does (hpcomm/service/hub.py), and gives each connection to the context that it is for (hpc_context_take).
 *
 *   called -> caller   the greeting of the process: "hpchub", and more bytes that do not matter here
 *   caller -> called   "hpcdoor1", and the name of the context
 *   called -> caller   one byte: 1, the context has the connection; or 0, there is no such context
 *
 * The caller sends its bytes without waiting for the greeting, and nothing more before the last byte has come. Then the
 * handshake of hello.h follows, which proves both ends: names are no secrets. */
#ifndef HPC_DOOR_H
#define HPC_DOOR_H

#include "control/hello.h"

/* Asks, on a connected descriptor, for the context of this name. HPC_OK; HPC_ERR_PEER: there is no such context;
 * HPC_ERR_AUTH: there is no door; HPC_ERR_TIMEOUT; HPC_ERR_TRANSPORT: the process hung up, because it has no place for
 * the caller now. Records no error, but puts a few words (static) into why. */
int hpc_door_call(int fd, const unsigned char name[HPC_NAME_BYTES], double deadline, const char **why);

#endif
