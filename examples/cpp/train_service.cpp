// A worker that fits a line to points, and whose parameters a hub serves. It needs neither MPI nor a launcher: the
// workers meet at the hub.
//
//     hpcomm hub serve --config hub.toml &
//     export HPCOMM_SECRET_FILE=vision.token
//     export HPCOMM_SERVICE=$(hpcomm hub create HOST:7700 --namespace vision --token-file vision.token)
//     RANK=0 WORLD_SIZE=2 train_service & RANK=1 WORLD_SIZE=2 train_service
//
// Each worker has points of its own. A step pushes the mean gradient of a few of them, and pulls the line that all
// workers' gradients have made.
#include <hpcomm/hpcomm.hpp>

#include <cstdlib>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>

namespace {

enum { STEPS = 200, POINTS = 16 };

int number(const char *name) {
    const char *value = std::getenv(name);
    if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set");
    return std::stoi(value);
}

void train(hpcomm::Service &service) {
    hpcomm::HubConfig hub; // its servers are the hubs of the job
    hub.keys = {{"line", 2}};
    hub.cores = 0; // as many as the hub has
    const hpcomm::Rule momentum("momentum", {0.1, 0.0, 0.5});
    const float zeros[2] = {};
    const float *values[] = {zeros};
    hpcomm::Exchange exchange(service, hub, momentum, values);

    std::mt19937 random(static_cast<unsigned>(service.context().rank()));
    std::normal_distribution<float> normal;
    for (int step = 0; step < STEPS; step++) {
        const float *line = exchange.params(0);
        float gradient[2] = {};
        for (int i = 0; i < POINTS; i++) {
            const float x = normal(random), y = 3 * x - 1;
            const float error = line[0] * x + line[1] - y;
            gradient[0] += error * x / POINTS;
            gradient[1] += error / POINTS;
        }
        exchange.push_pull(0, gradient);
    }
    if (service.context().rank() == 0)
        std::cout << "y = " << exchange.params(0)[0] << " x + " << exchange.params(0)[1] << '\n';
    exchange.close();
}

} // namespace

int main() {
    try {
        hpcomm::Service service({}, {}, number("RANK"), number("WORLD_SIZE"));
        train(service);
        for (const std::string &notice : service.notices()) std::cerr << "the hub: " << notice << '\n';
        service.close();
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
