// hpcomm.hpp - hpcomm.h for C++17: handles that free themselves, and errors as exceptions or as std::error_code.
//
// Each part has a header, which may be included alone. Every call makes one call of hpcomm.h, and that call's comment
// holds for it; only a Context from a Rendezvous makes several, and SufficientFactors is a layer above them. The last
// argument of a call that can fail may be a std::error_code. Without it a failure is thrown as one of
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
// A std::error_code is set to the hpc_status, and cleared on success. hpc_last_error() then has the details; refusals
// of SufficientFactors are in its refusal(). With -fno-exceptions a failure without an error_code ends the process, as
// in the standard library.
//
// Handles can be moved, not copied. A handle is empty after it was moved from, and if its creation failed into an
// error_code.
#ifndef HPCOMM_HPP
#define HPCOMM_HPP

#include "hpcomm.h"

#include "codec.hpp"
#include "collective.hpp"
#include "context.hpp"
#include "error.hpp"
#include "exchange.hpp"
#include "factors.hpp"
#include "fold.hpp"
#include "handle.hpp"
#include "host.hpp"
#include "plan.hpp"
#include "queue.hpp"
#include "service.hpp"
#include "way.hpp"
#include "window.hpp"

#endif
