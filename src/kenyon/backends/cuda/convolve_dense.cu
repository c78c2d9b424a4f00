// The layer, and the gradient of its input, for one learner: by Hopper's products of four warps, which read both
// operands from shared memory asynchronously. Needs convolution.cu and results.cu before it.
//
// Four warps, a team, compute a tile of eight rows; a product is 64 pixels (8 x 8) x 16 inputs x SLICE outputs. TEAMS
// teams share the weights of one run and slice, which stay in shared memory. Teams are not synchronized: while one
// loads its tile or stores its results, others multiply. Tiles narrower than the map leave space for more teams, and
// need fewer sums per thread.
// Grid: (blocks, CO / SLICE, R).
//
// The tensor cores take operands as contiguous 8 x 8 numbers, rows of 16 bytes. A tile is therefore stored as planes of
// eight channels, [chunk][pixel][8]: eight adjacent pixels are such an operand, from any pixel, and every tap is the
// same tile at another offset. Weights are [R][slice][tap][chunk][output][8].

constexpr int CHUNKS = CI / 8, ACROSS = WIDE / 8, TEAM = 128;
static_assert(ROWS == 8 && IMAGES == 1 && THREADS == TEAM && TAPS == 9, "a team has eight rows of an image");

// Bytes from plane to plane, padded so that threads that copy adjacent chunks have no bank conflicts.
constexpr int PLANE = (TILE_PIXELS * 16 + 127) / 128 * 128 + (CHUNKS > 4 ? 16 : CHUNKS > 2 ? 32 : 64);
struct Planes {
    static constexpr int CHANNELS = CI;
    __device__ static constexpr int at(int pixel, int chunk) { return chunk * PLANE + pixel * 16; }
};

constexpr int WEIGHT_BYTES = TAPS * CI * SLICE * 2, TILE_BYTES = CHUNKS * PLANE;
constexpr int OUT_STRIDE = stride_of(SLICE), TEAM_BYTES = TILE_BYTES + PIXELS * OUT_STRIDE;

#ifndef EMULATED
typedef unsigned long long u64;

// An operand in shared memory: `inputs` is the stride in bytes between its 8 x 8 blocks along inputs, `others` else.
DEVICE u64 operand(u32 address, int inputs, int others) {
    return (u64)(address >> 4) | (u64)(inputs >> 4) << 16 | (u64)(others >> 4) << 32;
}

DEVICE u64 moved(u64 operand, int bytes) { return operand + (bytes >> 4); }

// Tells the compiler that a number is equal in all lanes of a warp; otherwise it would wait for every product.
DEVICE int alike(int number) { return __shfl_sync(0xFFFFFFFFu, number, 0); }

DEVICE void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void team_barrier(int team) { asm volatile("bar.sync %0, 128;" ::"r"(team + 1) : "memory"); }
DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void await_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
// The compiler does not track asynchronous products: a sum is written before this, and read after it.
DEVICE void hold(float& sum) { asm volatile("" : "+f"(sum)::"memory"); }
DEVICE void hold(u32& address) { asm volatile("" : "+r"(address)); }

#define SUM(n) "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
DEVICE void multiply_team(float (&sum)[4][4], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, 1, 1, 1, 0, 0;"
                 : SUM(0), SUM(1), SUM(2), SUM(3)
                 : "l"(a), "l"(b));
}

DEVICE void multiply_team(float (&sum)[8][4], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
                 "%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
                 : SUM(0), SUM(1), SUM(2), SUM(3), SUM(4), SUM(5), SUM(6), SUM(7)
                 : "l"(a), "l"(b));
}
#endif

DEVICE void hold_all(float (&sum)[ACROSS][SLICE / 8][4]) {
    each<0, ACROSS * SLICE / 2>([&](auto number) {
        constexpr int I = decltype(number)::value;
        hold(sum[I / (SLICE / 2)][I / 4 % (SLICE / 8)][I % 4]);
    });
}

// All products of a tile. Block b of 8 x 8 pixels begins at column 8b.
DEVICE void multiply_tile(float (&sum)[ACROSS][SLICE / 8][4], u32 tile, u32 weights) {
    hold(tile), hold(weights);  // otherwise the addresses of all products are computed once and stored in memory
    const auto a = operand(tile, PLANE, PITCH * 16), b = operand(weights, SLICE * 16, 128);
    hold_all(sum);
    begin_products();
    each<0, TAPS>([&](auto tap) {
        constexpr int T = decltype(tap)::value;
        each<0, CI / 16>([&](auto input) {
            constexpr int K = decltype(input)::value;
            each<0, ACROSS>([&](auto block) {
                constexpr int PIXEL = T / 3 * PITCH + T % 3 + 8 * decltype(block)::value;
                multiply_team(sum[decltype(block)::value], moved(a, Planes::at(PIXEL, 2 * K)),
                              moved(b, (T * CHUNKS + 2 * K) * SLICE * 16));
            });
        });
    });
    await_products();
    hold_all(sum);
}

extern "C" __global__ void __launch_bounds__(TEAM * TEAMS, 1)
convolve_dense(const Source from, const bf16* __restrict__ weights, i64 weights_of_run, const float* __restrict__ bias,
               i64 bias_of_run, const Target to, int batch) {
    SHARED_MEMORY(memory);
    const int lane = threadIdx.x % 32, warp = threadIdx.x % TEAM / 32, team = alike(threadIdx.x / TEAM);
    const int run = blockIdx.z, first_channel = blockIdx.y * SLICE;
    const int tiles = batch * TILES_DOWN * TILES_ACROSS, step = gridDim.x * TEAMS;
    char* const tile = memory + WEIGHT_BYTES + team * TEAM_BYTES;
    char* const result = tile + TILE_BYTES;
    auto bring = [&](int t) {
        if constexpr (SOURCE == 0) copy_activations<CI, Planes, 1>(tile, from, place_of(t, run), 0, batch);
        if constexpr (SOURCE == 2) fetch_unpooled<CI, Planes, 1>(tile, from, place_of(t, run), 0, batch);
    };

    const bf16* mine = weights + run * weights_of_run + blockIdx.y * (WEIGHT_BYTES / 2);
    for (int i = threadIdx.x; i < WEIGHT_BYTES / 16; i += TEAM * TEAMS)
        copy_async(shared_address(memory + i * 16), mine + i * 8);
    clear_borders<Planes, 1>(tile);
    int t = blockIdx.x * TEAMS + team;
    if (t < tiles) bring(t);
    await_copies();
    show_to_tensor_cores();
    __syncthreads();  // the weights have arrived

    for (; t < tiles; t += step) {
        await_copies();
        show_to_tensor_cores();
        team_barrier(team);  // the tile has arrived, and earlier results are stored
        float sum[ACROSS][SLICE / 8][4];
        each<0, SLICE / 8>([&](auto block) {
            constexpr int N = decltype(block)::value;
            const int c = first_channel + N * 8 + lane % 4 * 2;
            const float b0 = bias_of(bias + run * bias_of_run, c), b1 = bias_of(bias + run * bias_of_run, c + 1);
            each<0, ACROSS>([&](auto column) {
                float (&four)[4] = sum[decltype(column)::value][N];
                four[0] = four[2] = b0, four[1] = four[3] = b1;
            });
        });
        multiply_tile(sum, shared_address(tile), shared_address(memory));
        team_barrier(team);  // the tile is no longer needed
        if (t + step < tiles) bring(t + step);
        each<0, ACROSS>([&](auto column) {
            constexpr int C = decltype(column)::value;
            // Every warp has two rows of a block of 8 x 8 pixels.
            char* pixel = result + (2 * warp * WIDE + 8 * C + lane / 4) * OUT_STRIDE + lane % 4 * 4;
            each<0, SLICE / 8>([&](auto block) {
                constexpr int N = decltype(block)::value;
                put<OUT_STRIDE>(pixel + N * 16, sum[C][N]);
            });
        });
        team_barrier(team);
        clear_rest<SLICE>(place_of(t, run), first_channel, to, batch);
        leave<SLICE>(result, place_of(t, run), first_channel, to, batch);
    }
}
