// The layer, and the gradient of its input. Needs convolution.cu and results.cu before it.
//
// WARPS_M x WARPS_N warps share a tile: each computes PATCHES_EACH patches x BLOCKS_EACH blocks of 8 outputs.
// Grid: (tiles, CO / (8 * BLOCKS_EACH * WARPS_N), R).
// Weights are in the order of the tensor cores: [R][part][tap][product][lane][4]. A part is the outputs of one warp;
// products are numbered input by input.

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

// True if all parts have the same products; not so if the last has blocks of outputs that belong to no learner.
constexpr __device__ bool same_products() {
    for (int p = 1; p < PARTS; ++p)
        if (products(p) != products(0)) return false;
    return LI == 0 || LEARNERS == 1;
}

constexpr bool ALIKE = same_products();

// A warp's patches form a block of pixels, stacked vertically if there are nine taps: the pixels under the upper row of
// taps for one patch are those under the lower row for the patch above it, and are loaded once.
constexpr int WIDEST = WIDE / 8 < PATCHES_EACH ? WIDE / 8 : PATCHES_EACH;
constexpr int STACK = TAPS == 9 ? PATCHES_EACH : PATCHES_EACH / WIDEST, COLUMNS = PATCHES_EACH / STACK;
constexpr int BLOCKS_ACROSS = WIDE / (8 * COLUMNS), BLOCKS_DOWN = ROWS / (2 * STACK);
static_assert(BLOCKS_ACROSS * BLOCKS_DOWN * IMAGES == WARPS_M, "the warps' blocks do not make up the tile");

// Offset of patch p of a warp's block in a tile with rows of `wide` pixels.
DEVICE int patch_of(int warp, int p, int tall, int wide) {
    const int across = warp % BLOCKS_ACROSS, down = warp / BLOCKS_ACROSS % BLOCKS_DOWN;
    const int image = warp / (BLOCKS_ACROSS * BLOCKS_DOWN);
    return (image * tall + 2 * (down * STACK + p % STACK)) * wide + 8 * (across * COLUMNS + p / STACK);
}

// `at`: the address that this lane passes for the first two rows of the warp's block.
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

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
convolve(const Source from, const bf16* __restrict__ weights, i64 weights_of_run, const float* __restrict__ bias,
         i64 bias_of_run, const Target to, int batch) {
    SHARED_MEMORY(tile);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % WARPS_M, warp_n = warp / WARPS_M;
    const int run = blockIdx.z, part = blockIdx.y * WARPS_N + warp_n, first_channel = blockIdx.y * OUT_CHANNELS;
    const Place at = place_of(blockIdx.x, run);
    bool needed = true;
    if constexpr (WARPS_N < PARTS && !ALIKE) {  // outputs of some learners: omit blocks of inputs of all others
        const int k = Walk<CI>().chunk / 2, first = first_channel / LO, last = (first_channel + OUT_CHANNELS - 1) / LO;
        needed = 16 * k < (last + 1) * LI && 16 * k + 16 > first * LI;
    }
    if constexpr (SOURCE == 1) fetch_images(tile, from, at, batch);
    if (needed) {
        if constexpr (SOURCE == 0) copy_activations<CI, Rows<CI>, BORDER / 2>(tile, from, at, 0, batch);
        if constexpr (SOURCE == 2) fetch_unpooled<CI, Rows<CI>, BORDER / 2>(tile, from, at, 0, batch);
    }
    if constexpr (BORDER) clear_borders<Rows<CI>, BORDER / 2>(tile);
    clear_rest<OUT_CHANNELS>(at, first_channel, to, batch);  // while the tile arrives
    await_copies();
    __syncthreads();

    float sum[PATCHES_EACH][BLOCKS_EACH][4];
    each<0, BLOCKS_EACH>([&](auto block) {
        constexpr int N = decltype(block)::value;
        const int c = first_channel + (warp_n * BLOCKS_EACH + N) * 8 + lane % 4 * 2;
        const float b0 = bias_of(bias + run * bias_of_run, c), b1 = bias_of(bias + run * bias_of_run, c + 1);
        each<0, PATCHES_EACH>([&](auto patch) {
            constexpr int P = decltype(patch)::value;
            sum[P][N][0] = sum[P][N][2] = b0, sum[P][N][1] = sum[P][N][3] = b1;
        });
    });
    {
        // A lane passes the address of one row: pixel (lane / 8 % 2, lane % 8), inputs from lane / 16 * 8.
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
    __syncthreads();  // the result (pixels, OUT_CHANNELS) overwrites the tile

    each<0, BLOCKS_EACH>([&](auto block) {
        constexpr int N = decltype(block)::value;
        const int channel = (warp_n * BLOCKS_EACH + N) * 8 + lane % 4 * 2;
        each<0, PATCHES_EACH>([&](auto patch) {
            constexpr int P = decltype(patch)::value;
            char* pixel = tile + (patch_of(warp_m, P, ROWS, WIDE) + lane / 4) * OUT_STRIDE + channel * 2;
            put<OUT_STRIDE>(pixel, sum[P][N]);
        });
    });
    __syncthreads();

    leave<OUT_CHANNELS>(tile, at, first_channel, to, batch);
}
