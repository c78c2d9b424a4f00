// Bias, ReLU, pooling, dropout or a mask for a tile of results. Needs convolution.cu before it.

constexpr bool RELU = RESULT < 2, BIAS = RELU || RESULT > 3, POOL = RESULT == 1 || RESULT == 5;

struct Target {
    bf16* data;
    u8* code;          // of pooling: index of the largest of the four pixels, 4: none, or dropped
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

// A number of the bias; 0 in channels that belong to no learner, and for gradients.
DEVICE float bias_of(const float* bias, int channel) {
    return BIAS && channel < LEARNERS * LO ? bias[channel] : 0.0f;
}

// Sums of a patch in the order of the tensor cores: two adjacent channels of a pixel, and of the pixel below it.
template <int STRIDE> DEVICE void put(char* pixel, const float (&v)[4]) {
    *(u32*)pixel = RELU ? pack_positive(v[0], v[1]) : pack(v[0], v[1]);
    *(u32*)(pixel + WIDE * STRIDE) = RELU ? pack_positive(v[2], v[3]) : pack(v[2], v[3]);
}

// Two bfloat16 as unsigned numbers in the same order, nan above all, and back. After a ReLU they are such already.
DEVICE u32 ordered(u32 word) { return RELU ? word : word ^ ((word >> 15 & 0x00010001u) * 0xFFFFu | 0x80008000u); }
DEVICE u32 unordered(u32 word) { return RELU ? word : word ^ ((~word >> 15 & 0x00010001u) * 0xFFFFu | 0x80008000u); }

// Pools a window of four pixels (eight channels), applies dropout, and stores the index of the largest pixel. Channels
// are processed in pairs, two halves of a word. After a ReLU a window of zeros has no largest pixel.
template <int STRIDE>
DEVICE void pool_window(const char* corner, u32 first, u32 second, u32 word, const Target& to, i64 offset) {
    const Vec8 pixel[4] = {load8(corner), load8(corner + STRIDE), load8(corner + WIDE * STRIDE),
                           load8(corner + (WIDE + 1) * STRIDE)};
    const u32 threshold = to.threshold * 0x01010101u;
    Vec8 out;
    u32 codes[4];
    each<0, 4>([&](auto pair) {
        constexpr int W = decltype(pair)::value;
        u32 best = ordered(pixel[0].word[W]), where = 0;
        each<1, 4>([&](auto number) {
            constexpr int P = decltype(number)::value;
            const u32 other = ordered(pixel[P].word[W]), wins = above_halves(other, best);
            best = larger_halves(best, other);
            where = (where & ~wins) | (P * 0x00010001u & wins);
        });
        const u32 nothing = RELU ? equal_halves(best, 0) : 0;
        out.word[W] = unordered(best), codes[W] = (where & ~nothing) | (0x00040004u & nothing);
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

// Results outside of all tiles are set to zero, so that no nan there meets a gradient of zero. Each tile at the side of
// the covered area clears the pixels beyond it; for the first and last row of tiles, the leftmost clears all columns.
template <int C> DEVICE void clear_rest(Place at, int first, const Target& to, int batch) {
    constexpr int SHARE = POOL ? 2 : 1, ALL = MAP / SHARE;  // below, all numbers are pixels of the result
    constexpr int UPPER = TOP / SHARE, LOWER = UPPER + TILES_DOWN * ROWS / SHARE;
    constexpr int BEGIN = LEFT / SHARE, END = BEGIN + TILES_ACROSS * WIDE / SHARE;
    static_assert(IMAGES == 1 || (LOWER - UPPER == ALL && END - BEGIN == ALL), "tiles of several images cover them");
    const Walk<C> walk;
    bf16* image = to.data + (i64)(at.run * batch + at.image) * (ALL * ALL * CO) + first + walk.chunk * 8;
    const int row = at.row / SHARE, column = at.column / SHARE;
    auto clear = [&](int y, int x, int high, int broad) {
        for (int i = walk.first; i < high * broad; i += walk.stride)
            store8(image + ((y + i / broad) * ALL + x + i % broad) * CO, Vec8{});
    };
    if (column == BEGIN) {
        if (row == UPPER) clear(0, 0, UPPER, ALL);
        if (row + ROWS / SHARE == LOWER) clear(LOWER, 0, ALL - LOWER, ALL);
        clear(row, 0, ROWS / SHARE, BEGIN);
    }
    if (column + WIDE / SHARE == END) clear(row, END, ROWS / SHARE, ALL - END);
}

// Stores the results (pixels, C) of a tile from shared memory: C of CO channels, beginning at `first`.
template <int C> DEVICE void leave(const char* tile, Place at, int first, const Target& to, int batch) {
    constexpr int STRIDE = stride_of(C);
    const Walk<C> walk;
    const int channel = first + walk.chunk * 8;
    if constexpr (POOL) {
        const u32 key = to.threshold ? to.first[at.run] : 0, second = to.threshold ? to.second[at.run] : 0;
        for (int window = walk.first; window < PIXELS / 4; window += walk.stride) {
            const int left = window % HALF_WIDE, line = window / HALF_WIDE, image = line / (ROWS / 2);
            if (at.image + image >= batch) continue;
            const char* corner = tile + (2 * line * WIDE + 2 * left) * STRIDE + walk.chunk * 16;
            const int y = at.row / 2 + line % (ROWS / 2), x = at.column / 2 + left;
            const i64 within = (((at.image + image) * HALF + y) * HALF + x) * CO + channel;
            const u32 word = (u32)((to.first_byte + within) / 4);
            pool_window<STRIDE>(corner, key, second, word, to, (i64)at.run * batch * (HALF * HALF * CO) + within);
        }
    } else {
        const i64 line = (i64)(at.run * batch + at.image) * MAP + at.row;
        const i64 start = line * (MAP * CO) + (at.column * CO + channel);
#pragma unroll 4
        for (int pixel = walk.first; pixel < PIXELS; pixel += walk.stride) {
            if (IMAGES > 1 && at.image + pixel / (WIDE * ROWS) >= batch) continue;
            const i64 offset = start + (FOLLOWING ? pixel : behind_first<MAP, ROWS, WIDE>(pixel)) * CO;
            Vec8 v = load8(tile + pixel * STRIDE + walk.chunk * 16);
            if constexpr (RESULT == 3) {
                const Vec8 mask = load8_constant(to.mask + offset);
                each<0, 4>([&](auto word) {
                    constexpr int W = decltype(word)::value;
                    v.word[W] &= ~equal_halves(mask.word[W], 0);  // after a ReLU nothing is negative
                });
            }
            store8(to.data + offset, v);
        }
    }
}
