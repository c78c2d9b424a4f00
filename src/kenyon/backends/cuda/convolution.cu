// Convolutions of R runs x K learners at once on tensor cores, with the operations before and after them.
//
// A kernel is compiled for one layer; the macros below define its shape (see plan.py). Activations are
// (R, B, MAP, MAP, C) bfloat16: for each pixel a row with the channels of all learners, padded to a multiple of 16.
// A block of threads computes a tile of pixels of one run. It loads the tile into shared memory with a border of one
// pixel, multiplies (nine shifted views of the tile) x (weights), and stores the result through shared memory.
//
//   convolve        the layer, and with swapped channels and rotated weights the gradient of its input
//   convolve_dense  the same for one learner, by instructions that only Hopper has
//   weigh           the gradient of its weights and bias, one partial sum per block
//
// The unit of work is the tensor cores' product of 16 pixels (2 rows x 8 columns) x 16 inputs x 8 outputs. Weights of
// learners are blocks on the diagonal: the compiler omits products whose inputs and outputs share no learner.
//
// MAP        height and width of the input and output
// CI, CO     channels in and out, padded; LI, LO of one learner; LEARNERS. LI = 0: all learners see the same input
// TAPS       9, or 1 for the first layer, whose 9 or 27 inputs of a pixel are its channels
// ROWS, WIDE, IMAGES    rows, columns and images of a tile, which has the same position in each image
// TOP, TILES_DOWN       if not all rows are valid: the first row of tiles, and their number in a column
// LEFT, TILES_ACROSS    likewise for columns, with WIDE. Without them a tile is as wide as the map
// THREADS    threads that share a tile
// SOURCE     the input:  0 activations, 1 images (uint8), 2 pooled gradient
// RESULT     the output of `convolve`:  0 bias + ReLU, 1 bias + ReLU + 2x2 maximum + dropout, 2 unchanged,
//            3 zero where `mask` is not positive, 4 bias, 5 bias + 2x2 maximum + dropout

#ifndef TOP
#define TOP 0
#define TILES_DOWN (MAP / ROWS)
#endif
#ifndef WIDE
#define WIDE MAP
#define LEFT 0
#define TILES_ACROSS 1
#endif

typedef unsigned char u8;
typedef unsigned short bf16;
typedef unsigned int u32;
typedef long long i64;

#define DEVICE static __device__ __forceinline__

struct __align__(16) Vec8 { u32 word[4]; };  // eight bfloat16

#ifndef EMULATED
DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

DEVICE void load_matrices(u32 (&to)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at));
}

DEVICE void load_transposed(u32 (&to)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at));
}

DEVICE void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Asynchronous copies of 16 or 8 bytes, complete after a wait of the thread; zeros where there is nothing to copy.
DEVICE void copy_async(u32 to, const void* from, bool there = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

DEVICE void copy_async_8(u32 to, const void* from, bool there = true) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(there ? 8 : 0)
                 : "memory");
}

DEVICE void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

DEVICE u32 pack(float low, float high) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

DEVICE u32 pack_positive(float low, float high) {  // with ReLU; keeps nan
    u32 word;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

// Loads from memory that is not written meanwhile: several can be in flight during stores.
DEVICE Vec8 load8_constant(const void* from) {
    Vec8 v;
    asm("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(from));
    return v;
}

DEVICE float as_float(u32 bits) { return __uint_as_float(bits); }

// On the two halves or four bytes of a word: all ones where the comparison holds.
DEVICE u32 equal_halves(u32 a, u32 b) { return __vcmpeq2(a, b); }
DEVICE u32 above_halves(u32 a, u32 b) { return __vcmpgtu2(a, b); }
DEVICE u32 larger_halves(u32 a, u32 b) { return __vmaxu2(a, b); }
DEVICE u32 reaching_bytes(u32 a, u32 b) { return __vcmpgeu4(a, b); }
DEVICE u32 bytes_of(u32 a, u32 b, u32 which) { return __byte_perm(a, b, which); }

#define SHARED_MEMORY(name) extern __shared__ __align__(128) char name[]
#endif

// Two of four bytes as halves.
DEVICE u32 spread_low(u32 word) { return bytes_of(word, 0, 0x4140); }
DEVICE u32 spread_high(u32 word) { return bytes_of(word, 0, 0x4342); }

DEVICE float low_half(u32 word) { return as_float(word << 16); }
DEVICE float high_half(u32 word) { return as_float(word & 0xFFFF0000u); }

// ------------------------------------------------------------------ loops over compile-time numbers

template <int N> struct Number { static constexpr int value = N; };

template <int FROM, int TO, class F> DEVICE void each(F&& body) {
    if constexpr (FROM + 1 == TO) {
        body(Number<FROM>{});
    } else if constexpr (FROM < TO) {  // by halves: compilers bound the depth of templates
        constexpr int MIDDLE = (FROM + TO) / 2;
        each<FROM, MIDDLE>(body);
        each<MIDDLE, TO>(body);
    }
}

// True if a learner has both inputs among 16k..16k+15 and outputs among 8n..8n+7.
__device__ constexpr bool used(int k, int n) {
    if (LI == 0) return true;
    for (int l = 0; l < LEARNERS; ++l)
        if (16 * k < (l + 1) * LI && 16 * k + 16 > l * LI && 8 * n < (l + 1) * LO && 8 * n + 8 > l * LO) return true;
    return false;
}

// ------------------------------------------------------------------ a tile of the input in shared memory

constexpr int SIDE = TAPS == 9 ? 3 : 1, BORDER = SIDE - 1;
constexpr int PITCH = WIDE + BORDER, TALL = ROWS + BORDER;
constexpr int TILE_PIXELS = IMAGES * TALL * PITCH, PIXELS = IMAGES * ROWS * WIDE;
constexpr int HALF = MAP / 2, HALF_WIDE = WIDE / 2;
static_assert(LEFT + TILES_ACROSS * WIDE <= MAP && TOP + TILES_DOWN * ROWS <= MAP, "tiles lie outside the map");
// Bytes from pixel to pixel. An odd number of 16-byte units, so that eight adjacent pixels are in different banks.
__device__ constexpr int stride_of(int channels) { return channels * 2 + 16; }

// Position of eight channels of a pixel, contiguous as matrix loads into registers need them.
template <int C> struct Rows {
    static constexpr int CHANNELS = C;
    __device__ static constexpr int at(int pixel, int chunk) { return pixel * stride_of(C) + chunk * 16; }
};

struct Source {
    const void* data;         // activations, (R,) addresses of image pools (N, MAP, MAP, 4) uint8, or pooled gradient
    const u8* code;           // of pooled gradients: index of the pixel among the four, 4: none
    float scale;              // of pooled gradients
    const i64* index;         // (R, B) positions in the image pool
    float gain[3], shift[3];  // of pixels: gain * value + shift
};

struct Place { int run, image, row, column; };  // of a tile's first pixel

DEVICE Place place_of(int tile, int run) {
    const int across = tile % TILES_ACROSS, line = tile / TILES_ACROSS;
    return {run, line / TILES_DOWN * IMAGES, TOP + line % TILES_DOWN * ROWS, LEFT + across * WIDE};
}

// Offset of a tile's n-th pixel from its first, in a map with rows of FULL pixels and tiles of HIGH x BROAD.
constexpr bool FOLLOWING = WIDE == MAP && (IMAGES == 1 || ROWS == MAP);  // the offset is n
template <int FULL, int HIGH, int BROAD> DEVICE int behind_first(int n) {
    const int line = n / BROAD, image = IMAGES == 1 ? 0 : line / HIGH;
    return (image * FULL + line - image * HIGH) * FULL + n % BROAD;
}

DEVICE void store8(void* to, const Vec8& v) { *(Vec8*)to = v; }
DEVICE Vec8 load8(const void* from) { return *(const Vec8*)from; }

// In all of these a thread computes the same eight channels of one pixel after another.
template <int C> struct Walk {
    static constexpr int CHUNKS = C / 8, stride = THREADS / CHUNKS;
    int chunk, first;
    __device__ Walk() : chunk(threadIdx.x % THREADS % CHUNKS), first(threadIdx.x % THREADS / CHUNKS) {
        if (first >= stride) first = 1 << 30;  // excess threads are idle
    }
};

DEVICE void add8(float (&total)[8], const Vec8& v) {
    each<0, 4>([&](auto word) {
        constexpr int W = decltype(word)::value;
        total[2 * W] += low_half(v.word[W]), total[2 * W + 1] += high_half(v.word[W]);
    });
}

// Columns of the border that are loaded with the tile: a narrow tile has neighbours to its left and right.
__device__ constexpr int fetched(int edge) { return WIDE < MAP ? edge : 0; }

// Where the tile is as wide as the map, its first and last column are always border.
template <class LAYOUT, int EDGE> DEVICE void clear_borders(char* tile) {
    if (fetched(EDGE)) return;
    constexpr int LINE = WIDE + 2 * EDGE, ROWS_ALL = IMAGES * (ROWS + 2 * EDGE);
    const Walk<LAYOUT::CHANNELS> walk;
    for (int i = walk.first; i < 2 * ROWS_ALL; i += walk.stride)
        store8(tile + LAYOUT::at(i / 2 * LINE + i % 2 * (LINE - 1), walk.chunk), Vec8{});
}

// Starts copies; pixels outside the image are zero. The thread has to wait for its copies later.
template <int ALL, class LAYOUT, int EDGE>
DEVICE void copy_activations(char* tile, const Source& from, Place at, int channel, int batch) {
    constexpr int LINE = WIDE + 2 * EDGE, HIGH = ROWS + 2 * EDGE, BESIDE = fetched(EDGE);
    constexpr int SEEN = WIDE + 2 * BESIDE, COUNT = IMAGES * HIGH * SEEN;
    const Walk<LAYOUT::CHANNELS> walk;
    const i64 first = ((i64)at.run * batch + at.image) * (MAP * MAP * ALL) + channel + walk.chunk * 8;
    const bf16* data = (const bf16*)from.data + first;
    const u32 to = shared_address(tile) + LAYOUT::at(EDGE, walk.chunk);
    constexpr bool STEADY = walk.stride % SEEN == 0;  // the thread then stays in its column
    constexpr int TOGETHER = BESIDE ? 4 : COUNT;  // divisions occupy many registers, which sums may need
#pragma unroll (TOGETHER)
    for (int turn = 0; turn * walk.stride < COUNT; ++turn) {
        const int pixel = walk.first + turn * walk.stride, column = (STEADY ? walk.first : pixel) % SEEN - BESIDE;
        const int line = STEADY ? walk.first / SEEN + turn * (walk.stride / SEEN) : pixel / SEEN;
        const int image = IMAGES == 1 ? 0 : line / HIGH, y = line - image * HIGH - EDGE + at.row, x = column + at.column;
        const bool beside = BESIDE && (x < 0 || x >= MAP);
        const bool there = (!EDGE || (y >= 0 && y < MAP)) && at.image + image < batch && !beside;
        if (pixel < COUNT)
            copy_async(to + LAYOUT::at(line * LINE + column, 0), data + ((image * MAP + y) * MAP + x) * ALL, there);
    }
}

// The nine neighbours of a pixel as channels: tap by tap its colours, then zeros. One colour: 16 channels, three: 32.
constexpr int COLOURS = CI == 16 ? 1 : 3;
DEVICE void fetch_images(char* tile, const Source& from, Place at, int batch) {
    constexpr int STRIDE = stride_of(CI);
    const u32* pool = ((const u32* const*)from.data)[at.run];
    const i64* index = from.index + (i64)at.run * batch;
    for (int pixel = threadIdx.x; pixel < PIXELS; pixel += blockDim.x) {
        const int x = pixel % WIDE + at.column, y = pixel / WIDE % ROWS + at.row;
        const int image = at.image + pixel / (WIDE * ROWS);
        const u32* picture = pool + (image < batch ? index[image] : 0) * (MAP * MAP);
        float value[CI];
        each<0, 9>([&](auto tap) {
            constexpr int T = decltype(tap)::value;
            const int px = x + T % 3 - 1, py = y + T / 3 - 1;
            const bool inside = px >= 0 && px < MAP && py >= 0 && py < MAP && image < batch;
            const u32 colours = inside ? picture[py * MAP + px] : 0;
            each<0, COLOURS>([&](auto colour) {
                constexpr int C = decltype(colour)::value;
                const float level = (float)((colours >> (8 * C)) & 255u);
                value[COLOURS * T + C] = inside ? level * from.gain[C] + from.shift[C] : 0.0f;
            });
        });
        each<9 * COLOURS, CI>([&](auto rest) { value[decltype(rest)::value] = 0.0f; });
        each<0, CI / 8>([&](auto part) {
            const float* v = value + decltype(part)::value * 8;
            const Vec8 eight = {{pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7])}};
            store8(tile + pixel * STRIDE + decltype(part)::value * 16, eight);
        });
    }
}

// Eight channels of a gradient after 2x2 pooling, and the indices of their pixels in the window.
struct Window { u32 value[4], place[4]; };

DEVICE Window window_of(const Vec8& found, const uint2& codes, float scale) {
    Window w = {{}, {spread_low(codes.x), spread_high(codes.x), spread_low(codes.y), spread_high(codes.y)}};
    each<0, 4>([&](auto word) {
        constexpr int W = decltype(word)::value;
        w.value[W] = pack(low_half(found.word[W]) * scale, high_half(found.word[W]) * scale);
    });
    return w;
}

template <int PIXEL> DEVICE Vec8 part_of(const Window& w) {
    Vec8 part;
    each<0, 4>([&](auto word) {
        constexpr int W = decltype(word)::value;
        part.word[W] = w.value[W] & equal_halves(w.place[W], PIXEL * 0x00010001u);
    });
    return part;
}

// Unpools a gradient after 2x2 pooling, with several windows in flight.
template <int ALL, class LAYOUT, int EDGE>
DEVICE void fetch_unpooled(char* tile, const Source& from, Place at, int channel, int batch) {
    constexpr int LINE = WIDE + 2 * EDGE, HIGH = ROWS + 2 * EDGE, BESIDE = fetched(EDGE);
    constexpr int DOWN = ROWS / 2 + 2 * EDGE, ACROSS = HALF_WIDE + 2 * BESIDE;  // windows that touch the tile
    constexpr int COUNT = IMAGES * DOWN * ACROSS;
    const Walk<LAYOUT::CHANNELS> walk;
    constexpr int TURNS = (COUNT + walk.stride - 1) / walk.stride, SOME = TURNS < 4 ? TURNS : 4;
    const i64 first = ((i64)at.run * batch + at.image) * (HALF * HALF * ALL) + channel + walk.chunk * 8;
    const bf16* data = (const bf16*)from.data + first;
    const u8* code = from.code + first;
    char* to = tile + LAYOUT::at(EDGE, walk.chunk);
#pragma unroll 1
    for (int begin = walk.first; begin < COUNT; begin += SOME * walk.stride) {
        Vec8 value[SOME];
        uint2 codes[SOME];
        each<0, SOME>([&](auto turn) {
            constexpr int I = decltype(turn)::value;
            const int line = (begin + I * walk.stride) / ACROSS, image = IMAGES == 1 ? 0 : line / DOWN;
            const int wx = (begin + I * walk.stride) % ACROSS - BESIDE + at.column / 2;
            const int wy = line - image * DOWN - EDGE + at.row / 2;
            const bool beside = BESIDE && (wx < 0 || wx >= HALF);
            value[I] = Vec8{}, codes[I] = uint2{};
            if (wy >= 0 && wy < HALF && image < IMAGES && at.image + image < batch && !beside) {
                const int offset = ((image * HALF + wy) * HALF + wx) * ALL;
                value[I] = load8_constant(data + offset), codes[I] = *(const uint2*)(code + offset);
            }
        });
        each<0, SOME>([&](auto turn) {
            constexpr int I = decltype(turn)::value;
            const int line = (begin + I * walk.stride) / ACROSS, image = IMAGES == 1 ? 0 : line / DOWN;
            const int wx = (begin + I * walk.stride) % ACROSS - BESIDE, top = 2 * (line - image * DOWN) - EDGE;
            const Window w = window_of(value[I], codes[I], from.scale);
            each<0, 4>([&](auto pixel) {
                constexpr int P = decltype(pixel)::value;
                const bool beside = BESIDE && (2 * wx + P % 2 < -BESIDE || 2 * wx + P % 2 >= WIDE + BESIDE);
                if (line < IMAGES * DOWN && top + P / 2 >= 0 && top + P / 2 < HIGH && !beside)
                    store8(to + LAYOUT::at((image * HIGH + top + P / 2) * LINE + 2 * wx + P % 2, 0), part_of<P>(w));
            });
        });
    }
}
