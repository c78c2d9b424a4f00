// The layer, and the gradient of its input. Needs convolution.cu before it.
//
// WARPS_M x WARPS_N warps share a tile: each computes PATCHES_EACH patches x BLOCKS_EACH blocks of 8 outputs.
// Grid: (tiles, CO / (8 * BLOCKS_EACH * WARPS_N), R).
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

// A warp's patches form a block of pixels, stacked one below the other where there are nine taps: what the upper row
// of taps sees of one patch, the lower row sees of the patch above it, and is fetched once.
constexpr int WIDEST = MAP / 8 < PATCHES_EACH ? MAP / 8 : PATCHES_EACH;
constexpr int STACK = TAPS == 9 ? PATCHES_EACH : PATCHES_EACH / WIDEST, COLUMNS = PATCHES_EACH / STACK;
constexpr int BLOCKS_ACROSS = MAP / (8 * COLUMNS), BLOCKS_DOWN = ROWS / (2 * STACK);
static_assert(BLOCKS_ACROSS * BLOCKS_DOWN * IMAGES == WARPS_M, "the warps' blocks do not make up the tile");

// Where patch p of a warp's block begins in a tile with rows of `wide` pixels.
DEVICE int patch_of(int warp, int p, int tall, int wide) {
    const int across = warp % BLOCKS_ACROSS, down = warp / BLOCKS_ACROSS % BLOCKS_DOWN;
    const int image = warp / (BLOCKS_ACROSS * BLOCKS_DOWN);
    return (image * tall + 2 * (down * STACK + p % STACK)) * wide + 8 * (across * COLUMNS + p / STACK);
}

// `at` is the address that this lane hands over for the first two rows of the warp's block.
template <int PART> DEVICE void multiply_all(float (&sum)[PATCHES_EACH][BLOCKS_EACH][4], u32 at,
                                             const uint2* __restrict__ weights) {
    constexpr int COUNT = products(PART), STRIDE = stride_of(CI);
#pragma unroll 1
    for (int right = 0; right < SIDE; ++right) {
        each<0, CI / 16>([&](auto input) {
            constexpr int K = decltype(input)::value;
            constexpr int BEGIN = number(PART, K, 0), END = K + 1 < CI / 16 ? number(PART, K + 1, 0) : COUNT;
            if constexpr (BEGIN < END) {
                u32 even[COLUMNS][STACK + BORDER / 2][4], odd[COLUMNS][STACK][4];  // pairs of rows, by the first
                each<0, COLUMNS>([&](auto column) {
                    constexpr int C = decltype(column)::value;
                    each<0, STACK + BORDER / 2>([&](auto pair) {
                        constexpr int P = decltype(pair)::value;
                        load_matrices(even[C][P], at + (2 * P * PITCH + 8 * C) * STRIDE + K * 32);
                    });
                });
                each<0, SIDE>([&](auto turn) {
                    constexpr int DOWN = SIDE == 1 ? 0 : 2 * decltype(turn)::value % 3;  // 0, 2, 1
                    if constexpr (DOWN == 1)
                        each<0, STACK>([&](auto pair) {
                            constexpr int P = decltype(pair)::value;
                            load_matrices(odd[0][P], at + (2 * P + 1) * PITCH * STRIDE + K * 32);
                        });
                    const uint2* tap = weights + (DOWN * SIDE + right) * COUNT * 32;
                    each<0, BLOCKS_EACH>([&](auto block) {
                        constexpr int N = decltype(block)::value;
                        if constexpr (used(K, PART * BLOCKS_EACH + N)) {
                            const uint2 w = tap[number(PART, K, N) * 32];
                            each<0, PATCHES_EACH>([&](auto patch) {
                                constexpr int P = decltype(patch)::value;
                                if constexpr (DOWN == 1)
                                    multiply(sum[P][N], odd[0][P], w.x, w.y);
                                else
                                    multiply(sum[P][N], even[P / STACK][P % STACK + DOWN / 2], w.x, w.y);
                            });
                        }
                    });
                });
            }
        });
        at += STRIDE;
    }
}

// Pool a window of four pixels (eight channels), drop, and note which pixel won. Channels go in pairs, two halves of
// a word: behind a ReLU bfloat16 are ordered like their bits, and nan is above all.
DEVICE void pool_window(const char* corner, u32 first, u32 second, u32 word, const Target& to, i64 offset) {
    const Vec8 pixel[4] = {load8(corner), load8(corner + OUT_STRIDE), load8(corner + MAP * OUT_STRIDE),
                           load8(corner + (MAP + 1) * OUT_STRIDE)};
    const u32 threshold = to.threshold * 0x01010101u;
    Vec8 out;
    u32 codes[4];
    each<0, 4>([&](auto pair) {
        constexpr int W = decltype(pair)::value;
        u32 best = pixel[0].word[W], where = 0;
        each<1, 4>([&](auto other) {
            constexpr int P = decltype(other)::value;
            const u32 wins = above_halves(pixel[P].word[W], best);
            best = larger_halves(best, pixel[P].word[W]);
            where = (where & ~wins) | (P * 0x00010001u & wins);
        });
        const u32 nothing = equal_halves(best, 0);
        out.word[W] = best, codes[W] = (where & ~nothing) | (0x00040004u & nothing);
    });
    if (to.threshold)
        each<0, 2>([&](auto half) {
            constexpr int H = decltype(half)::value;
            const u32 stays = reaching_bytes(mix(mix(word + H + first) ^ second), threshold);
            const u32 kept[2] = {bytes_of(stays, 0, 0x1100), bytes_of(stays, 0, 0x3322)};
            each<0, 2>([&](auto pair) {
                constexpr int W = 2 * H + decltype(pair)::value;
                const u32 scaled = pack(low_half(out.word[W]) * to.scale, high_half(out.word[W]) * to.scale);
                out.word[W] = scaled & kept[W % 2];
                codes[W] = (codes[W] & kept[W % 2]) | (0x00040004u & ~kept[W % 2]);
            });
        });
    store8(to.data + offset, out);
    uint2 both;
    both.x = bytes_of(codes[0], codes[1], 0x6420), both.y = bytes_of(codes[2], codes[3], 0x6420);
    *(uint2*)(to.code + offset) = both;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
convolve(const Source from, const bf16* __restrict__ weights, i64 weights_of_run, const float* __restrict__ bias,
         i64 bias_of_run, const Target to, int batch) {
    SHARED_MEMORY(tile);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % WARPS_M, warp_n = warp / WARPS_M;
    const int run = blockIdx.z, part = blockIdx.y * WARPS_N + warp_n, first_channel = blockIdx.y * OUT_CHANNELS;
    const Place at = place_of(blockIdx.x, run);
    if constexpr (SOURCE == 0) copy_activations<CI, CI, BORDER / 2>(tile, from, at, 0, batch);
    if constexpr (SOURCE == 1) fetch_images(tile, from, at, batch);
    if constexpr (SOURCE == 2) fetch_unpooled<CI, CI, BORDER / 2>(tile, from, at, 0, batch);
    if constexpr (BORDER) clear_borders<CI, BORDER / 2>(tile);
    await_copies();
    __syncthreads();

    float sum[PATCHES_EACH][BLOCKS_EACH][4];
    each<0, BLOCKS_EACH>([&](auto block) {
        constexpr int N = decltype(block)::value;
        float b0 = 0.0f, b1 = 0.0f;
        if constexpr (RESULT < 2) {
            const float* mine = bias + run * bias_of_run;
            const int c = first_channel + (warp_n * BLOCKS_EACH + N) * 8 + lane % 4 * 2;
            if (c < LEARNERS * LO) b0 = mine[c];
            if (c + 1 < LEARNERS * LO) b1 = mine[c + 1];
        }
        each<0, PATCHES_EACH>([&](auto patch) {
            constexpr int P = decltype(patch)::value;
            sum[P][N][0] = sum[P][N][2] = b0, sum[P][N][1] = sum[P][N][3] = b1;
        });
    });
    {
        // A lane hands over the address of one row: pixel (lane / 8 % 2, lane % 8), inputs from lane / 16 * 8.
        const int pixel = patch_of(warp_m, 0, TALL, PITCH) + (lane / 8 % 2) * PITCH + lane % 8;
        const u32 place = shared_address(tile) + pixel * stride_of(CI) + lane / 16 * 16;
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
        each<0, PATCHES_EACH>([&](auto patch) {
            constexpr int P = decltype(patch)::value;
            char* pixel = tile + (patch_of(warp_m, P, ROWS, MAP) + lane / 4) * OUT_STRIDE + channel * 2;
            const float* v = sum[P][N];
            *(u32*)pixel = RESULT < 2 ? pack_positive(v[0], v[1]) : pack(v[0], v[1]);
            *(u32*)(pixel + MAP * OUT_STRIDE) = RESULT < 2 ? pack_positive(v[2], v[3]) : pack(v[2], v[3]);
        });
    });
    __syncthreads();

    const Walk<OUT_CHANNELS> walk;
    const int channel = first_channel + walk.chunk * 8;
    if constexpr (RESULT == 1) {
        const u32 first = to.threshold ? to.first[run] : 0, second = to.threshold ? to.second[run] : 0;
        for (int window = walk.first; window < PIXELS / 4; window += walk.stride) {
            const int x = window % HALF, line = window / HALF, image = line / (ROWS / 2);
            if (at.image + image >= batch) continue;
            const char* corner = tile + (2 * line * MAP + 2 * x) * OUT_STRIDE + walk.chunk * 16;
            const int y = at.row / 2 + line % (ROWS / 2);
            const i64 within = (((at.image + image) * HALF + y) * HALF + x) * CO + channel;
            const u32 word = (u32)((to.first_byte + within) / 4);
            pool_window(corner, first, second, word, to, (i64)run * batch * (HALF * HALF * CO) + within);
        }
    } else {
        // The pixels of a tile follow one another.
        const i64 start = ((i64)(run * batch + at.image) * MAP + at.row) * (MAP * CO) + channel;
        for (int pixel = walk.first; pixel < PIXELS; pixel += walk.stride) {
            if (IMAGES > 1 && at.image + pixel / (MAP * ROWS) >= batch) continue;
            const i64 offset = start + pixel * CO;
            Vec8 v = load8(tile + pixel * OUT_STRIDE + walk.chunk * 16);
            if constexpr (RESULT == 3) {
                const Vec8 mask = load8(to.mask + offset);
                each<0, 4>([&](auto word) {
                    constexpr int W = decltype(word)::value;
                    v.word[W] &= ~equal_halves(mask.word[W], 0);  // behind a ReLU nothing is negative
                });
            }
            store8(to.data + offset, v);
        }
    }
}
