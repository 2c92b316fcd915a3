// collective.hpp - collectives of arrays, and messages between two ranks.
#ifndef HPCOMM_COLLECTIVE_HPP
#define HPCOMM_COLLECTIVE_HPP

#include "context.hpp"

#include <complex>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace hpcomm {

// The number of T as the type of elements. Give 16-bit floats by a Call, whose type is HPC_F16 or HPC_BF16, or by
// send<std::uint16_t, HPC_F16>.
template <class T> struct element_of;
template <> struct element_of<float> : std::integral_constant<int, HPC_F32> {};
template <> struct element_of<double> : std::integral_constant<int, HPC_F64> {};
template <> struct element_of<std::int8_t> : std::integral_constant<int, HPC_I8> {};
template <> struct element_of<std::uint8_t> : std::integral_constant<int, HPC_U8> {};
template <> struct element_of<std::int16_t> : std::integral_constant<int, HPC_I16> {};
template <> struct element_of<std::uint16_t> : std::integral_constant<int, HPC_U16> {};
template <> struct element_of<std::int32_t> : std::integral_constant<int, HPC_I32> {};
template <> struct element_of<std::uint32_t> : std::integral_constant<int, HPC_U32> {};
template <> struct element_of<std::int64_t> : std::integral_constant<int, HPC_I64> {};
template <> struct element_of<std::uint64_t> : std::integral_constant<int, HPC_U64> {};
template <> struct element_of<bool> : std::integral_constant<int, HPC_BOOL> {};
template <> struct element_of<std::complex<float>> : std::integral_constant<int, HPC_C64> {};
template <> struct element_of<std::complex<double>> : std::integral_constant<int, HPC_C128> {};

// A collective call, with the members of hpc_collective_call.
struct Call : hpc_collective_call {
    explicit Call(hpc_collective what) : hpc_collective_call{} {
        this->size = sizeof(hpc_collective_call);
        this->what = what;
    }
    template <class T>
    Call(hpc_collective what, const T *send, T *recv, std::size_t count, hpc_op op = HPC_SUM, int root = 0)
        : Call(what) {
        this->type = element_of<T>::value;
        this->op = op;
        this->root = root;
        this->send = send;
        this->recv = recv;
        this->count = count;
    }
    // With a number of elements for each rank; the arrays of counts must live as long as the call.
    Call &blocks(const std::uint64_t *send_counts, const std::uint64_t *recv_counts) {
        this->send_counts = send_counts;
        this->recv_counts = recv_counts;
        return *this;
    }
    void run(Context &context, double timeout = default_timeout, Report report = {}) const {
        report(hpc_collective_run(context.get(), this, timeout));
    }
};

// A started call: a collective or one end of a message.
class Request : public Handle<hpc_request, hpc_request_free> {
  public:
    Request() noexcept = default;

    Request(Context &context, const Call &call, Report report = {})
        : Handle(report, [&](hpc_request **out) { return hpc_collective_start(context.get(), &call, out); }) {}

    // Start a send and a recv; the functions send and recv below explain the arguments.
    template <class T, int Type = element_of<T>::value>
    static Request send(Context &context, const T *data, std::size_t count, int to, int tag = 0, Report report = {}) {
        return Request(
            report, [&](hpc_request **out) { return hpc_send_start(context.get(), to, tag, data, count, Type, out); });
    }
    template <class T, int Type = element_of<T>::value>
    static Request recv(Context &context, T *data, std::size_t count, int from = HPC_ANY, int tag = 0,
                        Report report = {}) {
        return Request(report, [&](hpc_request **out) {
            return hpc_recv_start(context.get(), from, tag, data, count, Type, out);
        });
    }

    bool test(Report report = {}) {
        return report(hpc_request_test(get()));
    }
    void wait(double timeout = default_timeout, Report report = {}) {
        report(hpc_request_wait(get(), timeout));
    }
    // Returns the sender, the tag and the size of the message of a recv that has ended.
    hpc_received received(Report report = {}) const {
        hpc_received received{};
        report(hpc_request_received(get(), &received));
        return received;
    }

  private:
    template <class Start> Request(const Report &report, Start start) : Handle(report, start) {}
};

template <class T>
void allreduce(Context &context, const T *send, T *recv, std::size_t count, hpc_op op = HPC_SUM,
               double timeout = default_timeout, Report report = {}) {
    Call(HPC_ALLREDUCE, send, recv, count, op).run(context, timeout, report);
}

template <class T>
void reduce(Context &context, const T *send, T *recv, std::size_t count, int root, hpc_op op = HPC_SUM,
            double timeout = default_timeout, Report report = {}) {
    Call(HPC_REDUCE, send, recv, count, op, root).run(context, timeout, report);
}

template <class T>
void reduce_scatter(Context &context, const T *send, T *recv, std::size_t count, hpc_op op = HPC_SUM,
                    double timeout = default_timeout, Report report = {}) {
    Call(HPC_REDUCE_SCATTER, send, recv, count, op).run(context, timeout, report);
}

template <class T>
void broadcast(Context &context, T *array, std::size_t count, int root, double timeout = default_timeout,
               Report report = {}) {
    Call(HPC_BROADCAST, static_cast<const T *>(nullptr), array, count, HPC_SUM, root).run(context, timeout, report);
}

template <class T>
void allgather(Context &context, const T *send, T *recv, std::size_t count, double timeout = default_timeout,
               Report report = {}) {
    Call(HPC_ALLGATHER, send, recv, count).run(context, timeout, report);
}

template <class T>
void gather(Context &context, const T *send, T *recv, std::size_t count, int root, double timeout = default_timeout,
            Report report = {}) {
    Call(HPC_GATHER, send, recv, count, HPC_SUM, root).run(context, timeout, report);
}

template <class T>
void scatter(Context &context, const T *send, T *recv, std::size_t count, int root, double timeout = default_timeout,
             Report report = {}) {
    Call(HPC_SCATTER, send, recv, count, HPC_SUM, root).run(context, timeout, report);
}

template <class T>
void alltoall(Context &context, const T *send, T *recv, std::size_t count, double timeout = default_timeout,
              Report report = {}) {
    Call(HPC_ALLTOALL, send, recv, count).run(context, timeout, report);
}

// Sends count elements to a rank. The receiver must expect the same type and count.
template <class T, int Type = element_of<T>::value>
void send(Context &context, const T *data, std::size_t count, int to, int tag = 0, double timeout = default_timeout,
          Report report = {}) {
    report(hpc_send(context.get(), to, tag, data, count, Type, timeout));
}

// Receives the next message of a rank, or of HPC_ANY rank, with this tag, or with HPC_ANY tag.
template <class T, int Type = element_of<T>::value>
hpc_received recv(Context &context, T *data, std::size_t count, int from = HPC_ANY, int tag = 0,
                  double timeout = default_timeout, Report report = {}) {
    hpc_received received{};
    report(hpc_recv(context.get(), from, tag, data, count, Type, &received, timeout));
    return received;
}

} // namespace hpcomm

#endif
