// The layer, and the gradient of its input. Needs convolution.cu before it.
//
// WARPS_M x WARPS_N warps share a tile: each computes PATCHES_EACH patches x BLOCKS_EACH blocks of 8 outputs. grid: (tiles, CO / (8 * BLOCKS_EACH * WARPS_N), R)
// Weights lie as the tensor cores want them: [R][part][tap][product][lane][4], a part being the outputs of one warp
// and products numbered input by input.

constexpr int OUT_CHANNELS = 8 * BLOCKS_EACH * WARPS_N, OUT_STRIDE = stride_of(OUT_CHANNELS);

constexpr __device__ int products(int part) {
    int count = 0;
    for (int k = 0; k < CI / 16; ++k)
        for (int n = 0; n < BLOCKS_EACH; ++n) count += used(k, part * BLOCKS_EACH + n);
    return count;
}

constexpr __device__ int number(int part, int input, int block) {
    int count = 0;
    for (int k = 0; k < CI / 16; ++k)
        for (int n = 0; n < BLOCKS_EACH; ++n) {
            if (k == input && n == block) return count;
            count += used(k, part * BLOCKS_EACH + n);
        }
    return count;
}

constexpr __device__ int products_before(int part) {
    int count = 0;
    for (int p = 0; p < part; ++p) count += products(p);
    return count;
}

constexpr int PARTS = CO / (8 * BLOCKS_EACH);
constexpr bool ALIKE = LI == 0 || LEARNERS == 1;  // all parts have the same products

struct Target {
    bf16* data;
    u8* code;          // behind pooling: which of the four pixels was largest, 4: none, or dropped
    const bf16* mask;  // RESULT 3
    const int* first;  // (R,) keys of this pass's random bytes
    const int* second;
    int threshold;     // a unit is kept if its random byte reaches it
    float scale;
    i64 first_byte;    // of this layer among the random bytes of a batch
};

DEVICE u32 mix(u32 x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

template <int PART> DEVICE void multiply_all(float (&sum)[PATCHES_EACH][BLOCKS_EACH][4], const u32 (&at)[PATCHES_EACH],
                                             const uint2* __restrict__ weights) {
    constexpr int COUNT = products(PART);
#pragma unroll 1
    for (int down = 0; down < SIDE; ++down) {
        each<0, SIDE>([&](auto right) {
            constexpr int RIGHT = decltype(right)::value;
            const uint2* tap = weights + (down * SIDE + RIGHT) * COUNT * 32;
            const u32 shift = (down * PITCH + RIGHT) * stride_of(CI);
            each<0, CI / 16>([&](auto input) {
                constexpr int K = decltype(input)::value;
                constexpr int BEGIN = number(PART, K, 0), END = K + 1 < CI / 16 ? number(PART, K + 1, 0) : COUNT;
                if constexpr (BEGIN < END) {
                    u32 pixels[PATCHES_EACH][4];
                    each<0, PATCHES_EACH>([&](auto patch) {
                        constexpr int P = decltype(patch)::value;
                        load_matrices(pixels[P], at[P] + shift + K * 32);
                    });
                    each<0, BLOCKS_EACH>([&](auto block) {
                        constexpr int N = decltype(block)::value;
                        if constexpr (used(K, PART * BLOCKS_EACH + N)) {
                            const uint2 w = tap[number(PART, K, N) * 32];
                            each<0, PATCHES_EACH>([&](auto patch) {
                                constexpr int P = decltype(patch)::value;
                                multiply(sum[P][N], pixels[P], w.x, w.y);
                            });
                        }
                    });
                }
            });
        });
    }
}

// Pool a window of four pixels (eight channels), drop, and note which pixel won.
DEVICE void pool_window(const char* corner, int pitch, u32 first, u32 second, u32 word, const Target& to, i64 offset) {
    const Vec8 pixel[4] = {load8(corner), load8(corner + OUT_STRIDE), load8(corner + pitch), load8(corner + pitch + OUT_STRIDE)};
    Vec8 out;
    u32 codes[2] = {0, 0};
    each<0, 2>([&](auto half) {
        constexpr int H = decltype(half)::value;
        const u32 random = mix(mix(word + H + first) ^ second);
        each<0, 4>([&](auto channel) {
            constexpr int C = decltype(channel)::value;
            auto bits = [&](int p) { return (pixel[p].word[2 * H + C / 2] >> (16 * (C % 2))) & 0xFFFFu; };
            u32 best = bits(0), where = 0;  // positive bfloat16 are ordered like their bits, and nan is above all
            each<1, 4>([&](auto other) {
                constexpr int P = decltype(other)::value;
                if (bits(P) > best) best = bits(P), where = P;
            });
            const bool kept = (int)((random >> (8 * C)) & 255u) >= to.threshold;
            if (best == 0 || !kept) where = 4;
            const float value = kept ? as_float(best << 16) * to.scale : 0.0f;
            if (C % 2 == 0) out.word[2 * H + C / 2] = pack(value, 0.0f);
            else out.word[2 * H + C / 2] |= pack(0.0f, value);
            codes[H] |= where << (8 * C);
        });
    });
    store8(to.data + offset, out);
    uint2 both;
    both.x = codes[0], both.y = codes[1];
    *(uint2*)(to.code + offset) = both;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS_M * WARPS_N, RESIDENT)
convolve(const Source from, const bf16* __restrict__ weights, i64 weights_of_run, const float* __restrict__ bias,
         i64 bias_of_run, const Target to, int batch) {
    SHARED_MEMORY(tile);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % WARPS_M, warp_n = warp / WARPS_M;
    const int run = blockIdx.z, part = blockIdx.y * WARPS_N + warp_n, first_channel = blockIdx.y * OUT_CHANNELS;
    const Place at = place_of(blockIdx.x, run);
    float no_total[8];
    fetch<SOURCE, CI, CI, BORDER / 2>(tile, from, at, 0, batch, no_total);
    __syncthreads();

    float sum[PATCHES_EACH][BLOCKS_EACH][4] = {};
    {
        // A lane hands the tensor cores the address of one row: pixel (lane / 8 % 2, lane % 8) of a patch, inputs from lane / 16 * 8.
        u32 place[PATCHES_EACH];
        each<0, PATCHES_EACH>([&](auto patch) {
            constexpr int P = decltype(patch)::value;
            const int pixel = patch_start(warp_m * PATCHES_EACH + P, TALL, PITCH) + (lane / 8 % 2) * PITCH + lane % 8;
            place[P] = shared_address(tile) + pixel * stride_of(CI) + lane / 16 * 16;
        });
        const uint2* mine = (const uint2*)(weights + run * weights_of_run) + lane;
        if constexpr (ALIKE)
            multiply_all<0>(sum, place, mine + part * TAPS * products(0) * 32);
        else
            each<0, PARTS>([&](auto number) {
                constexpr int PART = decltype(number)::value;
                if (part == PART) multiply_all<PART>(sum, place, mine + TAPS * products_before(PART) * 32);
            });
    }
    __syncthreads();  // the tile makes room for the result, (pixels, OUT_CHANNELS)

    each<0, BLOCKS_EACH>([&](auto block) {
        constexpr int N = decltype(block)::value;
        const int channel = (warp_n * BLOCKS_EACH + N) * 8 + lane % 4 * 2;
        float b0 = 0.0f, b1 = 0.0f;
        if constexpr (RESULT < 2) {
            const float* mine = bias + run * bias_of_run;
            const int c = first_channel + channel;
            if (c < LEARNERS * LO) b0 = mine[c];
            if (c + 1 < LEARNERS * LO) b1 = mine[c + 1];
        }
        each<0, PATCHES_EACH>([&](auto patch) {
            constexpr int P = decltype(patch)::value;
            char* pixel = tile + (patch_start(warp_m * PATCHES_EACH + P, ROWS, MAP) + lane / 4) * OUT_STRIDE + channel * 2;
            float v[4] = {sum[P][N][0] + b0, sum[P][N][1] + b1, sum[P][N][2] + b0, sum[P][N][3] + b1};
            if constexpr (RESULT < 2)
                for (int i = 0; i < 4; ++i) v[i] = v[i] < 0.0f ? 0.0f : v[i];  // keeps nan
            *(u32*)pixel = pack(v[0], v[1]);
            *(u32*)(pixel + MAP * OUT_STRIDE) = pack(v[2], v[3]);
        });
    });
    __syncthreads();

    constexpr int CHUNKS = OUT_CHANNELS / 8;
    if constexpr (RESULT == 1) {
        const u32 first = to.threshold ? to.first[run] : 0, second = to.threshold ? to.second[run] : 0;
        for (int i = threadIdx.x; i < PIXELS / 4 * CHUNKS; i += blockDim.x) {
            const int chunk = i % CHUNKS, window = i / CHUNKS;
            const int x = window % HALF, y = window / HALF % (ROWS / 2), image = window / (HALF * (ROWS / 2));
            if (at.image + image >= batch) continue;
            const char* corner = tile + ((image * ROWS + 2 * y) * MAP + 2 * x) * OUT_STRIDE + chunk * 16;
            const i64 within = ((i64)((at.image + image) * HALF + at.row / 2 + y) * HALF + x) * CO + first_channel + chunk * 8;
            pool_window(corner, MAP * OUT_STRIDE, first, second, (u32)((to.first_byte + within) / 4), to,
                        (i64)run * batch * HALF * HALF * CO + within);
        }
    } else {
        for (int i = threadIdx.x; i < PIXELS * CHUNKS; i += blockDim.x) {
            const int chunk = i % CHUNKS, pixel = i / CHUNKS;
            const int x = pixel % MAP, y = pixel / MAP % ROWS + at.row, image = at.image + pixel / (MAP * ROWS);
            if (image >= batch) continue;
            const i64 offset = ((i64)((run * batch + image) * MAP + y) * MAP + x) * CO + first_channel + chunk * 8;
            Vec8 v = load8(tile + pixel * OUT_STRIDE + chunk * 16);
            if constexpr (RESULT == 3) {
                const Vec8 mask = load8(to.mask + offset);
                each<0, 4>([&](auto word) {
                    constexpr int W = decltype(word)::value;
                    if (!(mask.word[W] & 0x7FFFu)) v.word[W] &= 0xFFFF0000u;  // behind a ReLU nothing is negative
                    if (!(mask.word[W] & 0x7FFF0000u)) v.word[W] &= 0xFFFFu;
                });
            }
            store8(to.data + offset, v);
        }
    }
}
