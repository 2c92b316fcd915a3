// The digits that train_digits.py --export writes.
#ifndef DIGITS_HPP
#define DIGITS_HPP

#include <cstddef>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

struct Images {
    std::vector<int> digits;
    std::vector<double> pixels; // n_pixels for each digit
};

struct Data {
    int n_pixels = 0, n_digits = 0;
    Images train, test;
};

inline Data load(const std::string &path) {
    std::ifstream file(path);
    Data data;
    std::size_t n_train = 0, n_test = 0;
    file >> n_train >> n_test >> data.n_pixels >> data.n_digits;
    for (auto [images, n] : {std::pair(&data.train, n_train), std::pair(&data.test, n_test)}) {
        images->digits.resize(n);
        images->pixels.resize(n * static_cast<std::size_t>(data.n_pixels));
        for (std::size_t i = 0; i < n; i++) {
            file >> images->digits[i];
            for (int p = 0; p < data.n_pixels; p++) file >> images->pixels[i * data.n_pixels + p];
        }
    }
    if (!file || n_train == 0) throw std::runtime_error(path + " is no data file; train_digits.py --export writes one");
    return data;
}

#endif
