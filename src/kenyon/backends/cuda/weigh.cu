// The gradient of a layer's weights: sums over all pixels of input x gradient. Needs convolution.cu before it.
//
// CI, LI belong to the layer's input and CO, LO to its output. SOURCE defines the form of the input, GRADIENT that of
// the output's gradient (0 unchanged, 2 pooled). A block of threads computes every gridDim.x-th tile. Each of its warps
// computes one row of taps (of three, or one if TAPS = 1), a group of INPUTS_EACH blocks of 16 inputs x OUTPUTS_EACH
// blocks of 8 outputs, and every SPLITS-th patch of the tile. A block computes GROUPS of all groups, selected by
// blockIdx.y. With STAGES = 2 the next tile is loaded while one is multiplied.
//
// partial: [R][gridDim.x][SPLITS][RECORD] float32; a record is [group][tap row][tap column][product][lane][4].
// bias_partial: [R][gridDim.x][CO].

constexpr int INPUT_GROUPS = CI / (16 * INPUTS_EACH), OUTPUT_GROUPS = CO / (8 * OUTPUTS_EACH);
constexpr int ALL_GROUPS = INPUT_GROUPS * OUTPUT_GROUPS;
// The inputs and outputs of a slice form a rectangle: whole rows of groups, or a part of one. Images are not sliced.
constexpr int ROWS_OF_GROUPS = GROUPS > OUTPUT_GROUPS ? GROUPS / OUTPUT_GROUPS : 1;
constexpr int SLICE_INPUTS = SOURCE == 1 ? CI : 16 * INPUTS_EACH * ROWS_OF_GROUPS;
constexpr int SLICE_OUTPUTS = 8 * OUTPUTS_EACH * (GROUPS > OUTPUT_GROUPS ? OUTPUT_GROUPS : GROUPS);
constexpr int INPUT_STRIDE = stride_of(SLICE_INPUTS), GRADIENT_STRIDE = stride_of(SLICE_OUTPUTS);
static_assert(GROUPS % OUTPUT_GROUPS == 0 || OUTPUT_GROUPS % GROUPS == 0, "a slice is no rectangle");

// Products of a group, numbered input by input.
constexpr __device__ bool has(int group, int input, int block) {
    return used(group / OUTPUT_GROUPS * INPUTS_EACH + input, group % OUTPUT_GROUPS * OUTPUTS_EACH + block);
}

constexpr __device__ int number(int group, int input, int block) {
    int count = 0;
    for (int k = 0; k < INPUTS_EACH; ++k)
        for (int n = 0; n < OUTPUTS_EACH; ++n) {
            if (k == input && n == block) return count;
            count += has(group, k, n);
        }
    return count;
}

constexpr __device__ int products(int group) { return number(group, INPUTS_EACH, 0); }

constexpr __device__ int products_before(int group) {
    int count = 0;
    for (int g = 0; g < group; ++g) count += products(g);
    return count;
}

// True if all groups have the same products; not so if the last have blocks that belong to no learner.
constexpr __device__ bool same_products() {
    for (int g = 1; g < ALL_GROUPS; ++g)
        if (products(g) != products(0)) return false;
    return LI == 0 || LEARNERS == 1;
}

constexpr bool ALIKE = same_products();

constexpr __device__ int most_products() {
    int most = 1;
    for (int g = 0; g < ALL_GROUPS; ++g) most = products(g) > most ? products(g) : most;
    return most;
}

constexpr __device__ bool has_input(int group, int input) {
    for (int n = 0; n < OUTPUTS_EACH; ++n)
        if (has(group, input, n)) return true;
    return false;
}

// Pairs of output blocks are loaded together.
constexpr __device__ bool has_pair(int group, int pair) {
    for (int k = 0; k < INPUTS_EACH; ++k)
        if (has(group, k, 2 * pair) || has(group, k, 2 * pair + 1)) return true;
    return false;
}

constexpr int MOST = most_products();
constexpr int RECORD = products_before(ALL_GROUPS) * TAPS * 128;

constexpr int PATCHES = PIXELS / 16, ACROSS = WIDE / 8, PATCH_ROWS = ROWS / 2;

// Offset in pixels of patch p in a tile with rows of `wide` pixels. A patch is 2 rows x 8 columns.
DEVICE int patch_start(int p, int tall, int wide) {
    const int across = p % ACROSS, down = p / ACROSS % PATCH_ROWS, image = p / (ACROSS * PATCH_ROWS);
    return (image * tall + 2 * down) * wide + 8 * across;
}

// Every SPLITS-th patch of a tile, beginning at `first`, for one group and row of taps.
template <int GROUP>
DEVICE void add_patches(float (&sum)[MOST * SIDE][4], int first, int end, u32 input, u32 gradient) {
#pragma unroll 1
    for (int patch = first; patch < end; patch += SPLITS) {
        const u32 x = input + patch_start(patch, TALL, PITCH) * INPUT_STRIDE;
        const u32 dy = gradient + patch_start(patch, ROWS, WIDE) * GRADIENT_STRIDE;
        u32 outputs[OUTPUTS_EACH / 2][4];
        each<0, OUTPUTS_EACH / 2>([&](auto pair) {
            constexpr int P = decltype(pair)::value;
            if constexpr (has_pair(GROUP, P)) load_transposed(outputs[P], dy + P * 32);
        });
        each<0, SIDE>([&](auto right) {
            constexpr int RIGHT = decltype(right)::value;
            each<0, INPUTS_EACH>([&](auto input) {
                constexpr int K = decltype(input)::value;
                if constexpr (has_input(GROUP, K)) {
                    u32 inputs[4];
                    load_transposed(inputs, x + RIGHT * INPUT_STRIDE + K * 32);
                    each<0, OUTPUTS_EACH>([&](auto block) {
                        constexpr int N = decltype(block)::value;
                        if constexpr (has(GROUP, K, N))
                            multiply(sum[RIGHT * products(GROUP) + number(GROUP, K, N)], inputs,
                                     outputs[N / 2][N % 2 * 2], outputs[N / 2][N % 2 * 2 + 1]);
                    });
                }
            });
        });
    }
}

// A stage of shared memory holds a tile of inputs and one of gradients. After the stages come pooled gradients before
// unpooling, values and then codes: a thread unpools the windows that it has copied.
constexpr int INPUT_BYTES = TILE_PIXELS * INPUT_STRIDE, STAGE_BYTES = INPUT_BYTES + PIXELS * GRADIENT_STRIDE;
constexpr int CODES = PIXELS / 4 * SLICE_OUTPUTS * 2;

DEVICE void copy_windows(char* raw, const Source& from, Place at, int channel, int batch) {
    const Walk<SLICE_OUTPUTS> walk;
    const i64 line = ((i64)at.run * batch + at.image) * HALF + at.row / 2;
    const i64 first = line * (HALF * CO) + at.column / 2 * CO + channel + walk.chunk * 8;
    const bf16* data = (const bf16*)from.data + first;
    const u8* code = from.code + first;
    for (int window = walk.first; window < PIXELS / 4; window += walk.stride) {
        const int slot = window * walk.CHUNKS + walk.chunk;
        const int offset = (FOLLOWING ? window : behind_first<HALF, ROWS / 2, HALF_WIDE>(window)) * CO;
        const bool there = at.image + window / (ROWS / 2 * HALF_WIDE) < batch;
        copy_async(shared_address(raw + slot * 16), data + offset, there);
        copy_async_8(shared_address(raw + CODES + slot * 8), code + offset, there);
    }
}

DEVICE void lay_windows(char* tile, const char* raw, float scale, bool summed, float (&total)[8]) {
    const Walk<SLICE_OUTPUTS> walk;
    for (int window = walk.first; window < PIXELS / 4; window += walk.stride) {
        const int slot = window * walk.CHUNKS + walk.chunk, x = window % HALF_WIDE, line = window / HALF_WIDE;
        const Window w = window_of(load8(raw + slot * 16), *(const uint2*)(raw + CODES + slot * 8), scale);
        char* corner = tile + (2 * line * WIDE + 2 * x) * GRADIENT_STRIDE + walk.chunk * 16;
        each<0, 4>([&](auto pixel) {
            constexpr int P = decltype(pixel)::value;
            store8(corner + (P / 2 * WIDE + P % 2) * GRADIENT_STRIDE, part_of<P>(w));
        });
        if (summed) {
            Vec8 kept = part_of<4>(w);  // code of no pixel
            each<0, 4>([&](auto word) { kept.word[decltype(word)::value] ^= w.value[decltype(word)::value]; });
            add8(total, kept);
        }
    }
}

DEVICE void add_pixels(const char* tile, float (&total)[8]) {
    const Walk<SLICE_OUTPUTS> walk;
    for (int pixel = walk.first; pixel < PIXELS; pixel += walk.stride)
        add8(total, load8(tile + pixel * GRADIENT_STRIDE + walk.chunk * 16));
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
weigh(const Source from, const Source gradient, float* partial, float* bias_partial, int batch, int tiles) {
    SHARED_MEMORY(memory);
    char* const raw = memory + STAGES * STAGE_BYTES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, down = warp % SIDE, split = warp / (SIDE * GROUPS);
    const int run = blockIdx.z, group = blockIdx.y * GROUPS + warp / SIDE % GROUPS;
    const int input_group = group / OUTPUT_GROUPS, output_group = group % OUTPUT_GROUPS;
    const int first_input = SOURCE == 1 ? 0 : blockIdx.y * GROUPS / OUTPUT_GROUPS * INPUTS_EACH * 16;
    const int first_output = blockIdx.y * GROUPS % OUTPUT_GROUPS * OUTPUTS_EACH * 8;
    const bool has_bias = blockIdx.y * GROUPS < OUTPUT_GROUPS;  // the first slice with these outputs sums them up

    // A lane passes the address of one pixel's row. Inputs: matrices 0, 1 are the patch's first row of pixels, 0
    // and 2 the first eight channels. Outputs: matrices 0, 2 are the first row, 0 and 1 the first eight channels.
    const u32 x = shared_address(memory) + ((lane / 16 + down) * PITCH + lane % 8) * INPUT_STRIDE +
                  (input_group * INPUTS_EACH * 16 - first_input) * 2 + lane / 8 % 2 * 16;
    const u32 dy = shared_address(memory) + INPUT_BYTES + (lane / 8 % 2 * WIDE + lane % 8) * GRADIENT_STRIDE +
                   (output_group * OUTPUTS_EACH * 8 - first_output) * 2 + lane / 16 * 16;
    float sum[MOST * SIDE][4] = {}, total[8] = {};
    // The patch before which the warp starts loading the next tile: early enough for the tile to arrive. The warps of a
    // scheduler do so one after another, so that the tensor cores always have work.
    const int pause = split + PATCHES / SPLITS * (warp / 4) / (THREADS / 128 + 1) * SPLITS;

    auto for_my_group = [&](auto body) {
        if constexpr (ALIKE)
            body(Number<0>{});
        else
            each<0, ALL_GROUPS>([&](auto number) {
                if (group == decltype(number)::value) body(number);
            });
    };

    // Loads tile t into a stage. Its pooled gradients are in `raw` already, which is then loaded for the next tile.
    auto bring = [&](int t, char* tile) {
        const Place at = place_of(t, run);
        if constexpr (SOURCE == 0) copy_activations<CI, Rows<SLICE_INPUTS>, BORDER / 2>(tile, from, at, first_input, batch);
        if constexpr (SOURCE == 1) fetch_images(tile, from, at, batch);
        if constexpr (GRADIENT == 0)
            copy_activations<CO, Rows<SLICE_OUTPUTS>, 0>(tile + INPUT_BYTES, gradient, at, first_output, batch);
        if constexpr (GRADIENT == 2) {
            lay_windows(tile + INPUT_BYTES, raw, gradient.scale, has_bias, total);
            const int next = t + gridDim.x;
            if (next < tiles) copy_windows(raw, gradient, place_of(next, run), first_output, batch);
        }
    };

    if constexpr (BORDER)
        each<0, STAGES>([&](auto stage) {
            clear_borders<Rows<SLICE_INPUTS>, BORDER / 2>(memory + decltype(stage)::value * STAGE_BYTES);
        });
    const int begin = blockIdx.x;
    if (GRADIENT == 2 && begin < tiles) copy_windows(raw, gradient, place_of(begin, run), first_output, batch);
    await_copies();
    if (STAGES == 2 && begin < tiles) bring(begin, memory);
    int offset = 0;  // of the stage with tile t
    for (int t = begin; t < tiles; t += gridDim.x) {
        if constexpr (STAGES == 1) bring(t, memory);
        await_copies();
        __syncthreads();  // the tile has arrived; the other stage is free
#pragma unroll 1
        for (int part = 0; part < 2; ++part) {  // before and after the pause
            const int first = part ? pause : split, end = part ? PATCHES : pause;
            for_my_group([&](auto n) { add_patches<decltype(n)::value>(sum, first, end, x + offset, dy + offset); });
            if (part) continue;
            if (GRADIENT == 0 && has_bias) add_pixels(memory + offset + INPUT_BYTES, total);
            if (STAGES == 2 && t + gridDim.x < tiles) bring(t + gridDim.x, memory + (STAGE_BYTES - offset));
        }
        if constexpr (STAGES == 1) __syncthreads();
        if constexpr (STAGES == 2) offset = STAGE_BYTES - offset;
    }

    float* record = partial + (((i64)run * gridDim.x + blockIdx.x) * SPLITS + split) * RECORD;
    for_my_group([&](auto number) {
        constexpr int G = decltype(number)::value, COUNT = products(G) * SIDE;
        const int before = ALIKE ? group * products(0) : products_before(G);
        float* to = record + (before * SIDE * SIDE + down * COUNT) * 128 + lane * 4;
        each<0, COUNT>([&](auto product) {
            constexpr int P = decltype(product)::value;
            float4 four;
            four.x = sum[P][0], four.y = sum[P][1], four.z = sum[P][2], four.w = sum[P][3];
            *(float4*)(to + P * 128) = four;
        });
    });

    if (has_bias) {  // sum over the threads of a channel
        constexpr int C = SLICE_OUTPUTS;
        const Walk<C> walk;
        float* sums = (float*)memory;
        __syncthreads();  // all products are computed
        if (walk.first < walk.stride)
            for (int c = 0; c < 8; ++c) sums[walk.first * C + walk.chunk * 8 + c] = total[c];
        __syncthreads();
        for (int c = threadIdx.x; c < C; c += blockDim.x) {
            float all = 0.0f;
            for (int i = 0; i < walk.stride; ++i) all += sums[i * C + c];
            bias_partial[((i64)run * gridDim.x + blockIdx.x) * CO + first_output + c] = all;
        }
    }
}
