// Prepended to activation.wgsl and residual.wgsl. Mirrors the loops of kernel::lanes: y from y and x, a thread four numbers.

struct Params {
    start_x: u32,
    start_y: u32,
    // In vec4s; a row's padding is worked on like the rest and means nothing.
    count: u32,
    // Length of a row in vec4s, where x is one row for all of y's.
    line: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;

