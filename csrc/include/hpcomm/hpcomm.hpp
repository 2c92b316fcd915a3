// hpcomm.hpp - hpcomm.h for C++17: handles that free themselves, and errors as exceptions or as std::error_code.
//
// Each part has a header, which may be included alone. Every call there is one call of hpcomm.h, whose comments hold;
// only a Context from a Rendezvous makes several, and SufficientFactors is a layer above them. The last argument of a
// call that may fail is the destination of a failure. Without it the failure is thrown as one of
//
//     Error
//     ├── InvalidArgument      a bad argument, named with its value
//     ├── ConfigError          ranks disagree, or a setting has no meaning
//     ├── NotSupported         this transport, host or build cannot do it
//     ├── TransportError       the path to a peer failed: transport(), peer()
//     ├── PeerFailed           ranks failed: ranks(), left(), op(), waiting_for()
//     ├── Timeout              the deadline passed: op(), waiting_for(), culprits()
//     ├── AuthError            a stranger, or a peer of another job
//     └── OutOfMemory          too little memory, at creation only
//
// A std::error_code as the last argument is set to the hpc_status (and cleared on success); hpc_last_error() has the
// rest then, and SufficientFactors::refusal() the sentence of its last refusal. With -fno-exceptions a failure that no
// error_code takes ends the process, as the standard library's do.
//
// Handles move and do not copy. A moved-from one, and one whose creation failed into an error_code, is empty.
#ifndef HPCOMM_HPP
#define HPCOMM_HPP

#include "hpcomm.h"

#include "codec.hpp"
#include "context.hpp"
#include "error.hpp"
#include "exchange.hpp"
#include "factors.hpp"
#include "fold.hpp"
#include "handle.hpp"
#include "host.hpp"
#include "plan.hpp"
#include "queue.hpp"
#include "way.hpp"
#include "window.hpp"

#endif
