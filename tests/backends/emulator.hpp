// A GPU for tests: runs the CUDA kernels of Kenyon on a CPU, lane by lane.
//
// Every lane is a fibre. What a warp does together (ldmatrix, mma) waits until its 32 lanes have come, and the last
// one does the work for all; __syncthreads waits for the whole block. Shared memory is poisoned before each block, which
// must not write behind what it asked for, and where an asynchronous copy will go: its bytes come when the lane waits
// for them, no earlier. Products of a team of four warps are computed when the warp waits for them, no earlier.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define EMULATED
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define SHARED_MEMORY(name) char* name = emulator::memory

struct uint2 { uint32_t x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct Index { int x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {
struct Operand { uint32_t address; int inputs, others; };
struct TeamProduct { float* sum; Operand a, b; int outputs; };
struct Copy { uint32_t to; const void* from; int bytes; bool there; };
struct Fibre {
    ucontext_t context;
    std::vector<char> stack;
    std::vector<Copy> copies;
    std::vector<TeamProduct> products;
    bool done = false, at_barrier = false, at_team_barrier = false;
};
struct Warp {
    int arrived = 0;
    long turn = 0;
    const void* from[32];
    void* to[32];
    uint32_t address[32];
};
static std::vector<Fibre> fibres;
static std::vector<Warp> warps;
static ucontext_t scheduler;
static int current;
alignas(128) static char memory[256 * 1024];
static std::function<void()> program;

static void entry() {
    program();
    if (!fibres[current].copies.empty()) { std::fprintf(stderr, "nobody waited for a copy\n"); std::abort(); }
    fibres[current].done = true;
    swapcontext(&fibres[current].context, &scheduler);
}

static void pause() {
    const int me = current;
    swapcontext(&fibres[me].context, &scheduler);
}

// Wait for the other lanes of the warp; the last to come does the work.
template <class F> void together(F work) {
    Warp& warp = warps[current / 32];
    if (++warp.arrived == 32) {
        work(warp);
        warp.arrived = 0;
        ++warp.turn;
    } else {
        const long turn = warp.turn;
        while (warp.turn == turn) pause();
    }
}

static void run_block(int threads, int shared_bytes) {
    for (auto& byte : memory) byte = (char)0x7F;
    fibres.resize(threads);
    warps.assign(threads / 32, {});
    for (int i = 0; i < threads; ++i) {
        Fibre& f = fibres[i];
        f.done = f.at_barrier = f.at_team_barrier = false;
        f.stack.resize(256 * 1024);
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data();
        f.context.uc_stack.ss_size = f.stack.size();
        makecontext(&f.context, entry, 0);
    }
    for (bool alive = true; alive;) {
        alive = false;
        for (int warp = 0; warp < threads / 32; ++warp)
            for (bool moved = true; moved;) {
                moved = false;
                for (int lane = 0; lane < 32; ++lane) {
                    Fibre& f = fibres[current = warp * 32 + lane];
                    if (f.done || f.at_barrier || f.at_team_barrier) continue;
                    threadIdx = {current, 0, 0};
                    swapcontext(&scheduler, &f.context);
                    moved = alive = true;
                }
            }
        int waiting = 0, done = 0;
        for (auto& f : fibres) waiting += f.at_barrier, done += f.done;
        if (waiting && waiting + done != threads) { std::fprintf(stderr, "deadlock\n"); std::abort(); }
        for (auto& f : fibres) f.at_barrier = false;
        alive = alive || waiting;
    }
    if (std::any_of(memory + shared_bytes, std::end(memory), [](char byte) { return byte != (char)0x7F; })) {
        std::fprintf(stderr, "written behind shared memory\n");
        std::abort();
    }
}

static void run_grid(const int* grid, int threads, int shared_bytes, std::function<void()> kernel) {
    program = kernel;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    for (int z = 0; z < grid[2]; ++z)
        for (int y = 0; y < grid[1]; ++y)
            for (int x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                run_block(threads, shared_bytes);
            }
}
}  // namespace emulator

static void __syncthreads() {
    emulator::fibres[emulator::current].at_barrier = true;
    emulator::pause();
}

static float as_float(uint32_t bits) { float f; std::memcpy(&f, &bits, 4); return f; }
static uint32_t round_bf16(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    if (f != f) return 0x7FFF;
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}
static uint32_t pack(float low, float high) { return round_bf16(low) | round_bf16(high) << 16; }
static uint32_t pack_positive(float low, float high) { return pack(low < 0 ? 0 : low, high < 0 ? 0 : high); }

template <class F> uint32_t by_parts(int bits, F part) {
    uint32_t out = 0;
    for (int at = 0; at < 32; at += bits) out |= part(at) << at;
    return out;
}
static uint32_t half_of(uint32_t a, int at) { return (a >> at) & 0xFFFFu; }
static uint32_t equal_halves(uint32_t a, uint32_t b) {
    return by_parts(16, [=](int at) { return half_of(a, at) == half_of(b, at) ? 0xFFFFu : 0u; });
}
static uint32_t above_halves(uint32_t a, uint32_t b) {
    return by_parts(16, [=](int at) { return half_of(a, at) > half_of(b, at) ? 0xFFFFu : 0u; });
}
static uint32_t larger_halves(uint32_t a, uint32_t b) {
    return by_parts(16, [=](int at) { return std::max(half_of(a, at), half_of(b, at)); });
}
static uint32_t reaching_bytes(uint32_t a, uint32_t b) {
    return by_parts(8, [=](int at) { return ((a >> at) & 255u) >= ((b >> at) & 255u) ? 255u : 0u; });
}
static uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t which) {
    return by_parts(8, [=](int at) {
        const uint32_t byte = (which >> (at / 2)) & 7u;
        return ((byte < 4 ? a >> (8 * byte) : b >> (8 * (byte - 4))) & 255u);
    });
}
static uint32_t shared_address(const void* p) { return (uint32_t)((const char*)p - emulator::memory); }
static void copy_bytes(uint32_t to, const void* from, int bytes, bool there) {
    if (to % bytes || (uintptr_t)from % bytes) { std::fprintf(stderr, "copy is not aligned\n"); std::abort(); }
    std::memset(emulator::memory + to, 0x7F, bytes);
    emulator::fibres[emulator::current].copies.push_back({to, from, bytes, there});
}
static void copy_async(uint32_t to, const void* from, bool there = true) { copy_bytes(to, from, 16, there); }
static void copy_async_8(uint32_t to, const void* from, bool there = true) { copy_bytes(to, from, 8, there); }
static void await_copies() {
    auto& copies = emulator::fibres[emulator::current].copies;
    for (const auto& c : copies)
        if (c.there)
            std::memcpy(emulator::memory + c.to, c.from, c.bytes);
        else
            std::memset(emulator::memory + c.to, 0, c.bytes);
    copies.clear();
}

#define load8_constant load8  // a difference only to the compiler for a GPU
static void load_matrices_as(uint32_t* to, uint32_t at, bool transposed) {
    emulator::Warp& warp = emulator::warps[emulator::current / 32];
    const int me = emulator::current % 32;
    if (at % 16) { std::fprintf(stderr, "ldmatrix: row at %u is not aligned\n", at); std::abort(); }
    warp.to[me] = to, warp.address[me] = at;
    emulator::together([&](emulator::Warp& w) {
        for (int matrix = 0; matrix < 4; ++matrix)
            for (int lane = 0; lane < 32; ++lane) {
                uint16_t value[2];
                for (int i = 0; i < 2; ++i) {
                    int row = lane / 4, column = lane % 4 * 2 + i;
                    if (transposed) std::swap(row, column);
                    std::memcpy(&value[i], emulator::memory + w.address[matrix * 8 + row] + column * 2, 2);
                }
                ((uint32_t*)w.to[lane])[matrix] = value[0] | (uint32_t)value[1] << 16;
            }
    });
}
static void load_matrices(uint32_t (&to)[4], uint32_t at) { load_matrices_as(to, at, false); }
static void load_transposed(uint32_t (&to)[4], uint32_t at) { load_matrices_as(to, at, true); }

struct Operands { float* sum; const uint32_t* a; uint32_t b[2]; };
static void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    Operands mine{sum, a, {b0, b1}};
    emulator::warps[emulator::current / 32].from[emulator::current % 32] = &mine;
    emulator::together([&](emulator::Warp& w) {
        float A[16][16], B[16][8];
        auto half = [](uint32_t word, int i) { return as_float(i ? word & 0xFFFF0000u : word << 16); };
        for (int lane = 0; lane < 32; ++lane) {
            const Operands& o = *(const Operands*)w.from[lane];
            for (int i = 0; i < 2; ++i) {
                for (int r = 0; r < 4; ++r) A[lane / 4 + r % 2 * 8][lane % 4 * 2 + r / 2 * 8 + i] = half(o.a[r], i);
                for (int r = 0; r < 2; ++r) B[lane % 4 * 2 + r * 8 + i][lane / 4] = half(o.b[r], i);
            }
        }
        for (int lane = 0; lane < 32; ++lane) {
            float* to = ((const Operands*)w.from[lane])->sum;
            for (int c = 0; c < 4; ++c)
                for (int k = 0; k < 16; ++k) to[c] += A[lane / 4 + c / 2 * 8][k] * B[k][lane % 4 * 2 + c % 2];
        }
    });
}

// ------------------------------------------------------------------ products of four warps

static emulator::Operand operand(uint32_t address, int inputs, int others) { return {address, inputs, others}; }
static emulator::Operand moved(emulator::Operand o, int bytes) { o.address += bytes; return o; }
static int alike(int number) { return number; }
static void show_to_tensor_cores() {}
static void begin_products() {}
static void hold(float&) {}
static void hold(uint32_t&) {}

static void team_barrier(int team) {
    if (team != emulator::current / 128) { std::fprintf(stderr, "barrier of another team\n"); std::abort(); }
    auto first = emulator::fibres.begin() + team * 128, last = first + 128;
    emulator::fibres[emulator::current].at_team_barrier = true;
    if (std::all_of(first, last, [](const auto& f) { return f.at_team_barrier; }))
        std::for_each(first, last, [](auto& f) { f.at_team_barrier = false; });
    else
        emulator::pause();
}

template <int N> void multiply_team(float (&sum)[N][4], emulator::Operand a, emulator::Operand b) {
    if (a.address % 16 || b.address % 16) { std::fprintf(stderr, "operand is not aligned\n"); std::abort(); }
    emulator::fibres[emulator::current].products.push_back({&sum[0][0], a, b, 8 * N});
}

static float operand_at(const emulator::Operand& o, int other, int input) {
    const int at = other / 8 * o.others + input / 8 * o.inputs + other % 8 * 16 + input % 8 * 2;
    uint16_t half;
    std::memcpy(&half, emulator::memory + o.address + at, 2);
    return as_float((uint32_t)half << 16);
}

static void await_products() {
    const int first = emulator::current / 32 * 32, top = first / 32 % 4 * 16;  // the warp's rows of 64
    emulator::together([&](emulator::Warp&) {
        for (size_t i = 0; i < emulator::fibres[first].products.size(); ++i) {
            const emulator::TeamProduct& p = emulator::fibres[first].products[i];
            float A[16][16], B[64][16];
            for (int k = 0; k < 16; ++k) {
                for (int m = 0; m < 16; ++m) A[m][k] = operand_at(p.a, top + m, k);
                for (int n = 0; n < p.outputs; ++n) B[n][k] = operand_at(p.b, n, k);
            }
            for (int lane = 0; lane < 32; ++lane)
                for (int c = 0; c < p.outputs / 2; ++c) {
                    const int row = lane / 4 + c / 2 % 2 * 8, column = c / 4 * 8 + lane % 4 * 2 + c % 2;
                    for (int k = 0; k < 16; ++k)
                        emulator::fibres[first + lane].products[i].sum[c] += A[row][k] * B[column][k];
                }
        }
        for (int lane = 0; lane < 32; ++lane) emulator::fibres[first + lane].products.clear();
    });
}
