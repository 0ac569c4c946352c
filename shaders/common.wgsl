// Prepended to every other shader: what several of them need.

// Which workgroup, of how many. Both are the same for all of its threads, so that what depends on them may lie around a barrier. An
// entry point hands them on one by one: Direct3D 12 has no `groups`, and naga puts it only where a member is named.
struct Grid {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
}

// The index of a workgroup whose grid was folded because it has more than 65,535 groups.
fn linear_group(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.x + group.y * groups.x;
}

// Drivers need not keep `x != x`.
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

// The lanes of v that lie in columns first..cols, zero elsewhere: what lies in a row's padding is unknown, even NaN.
fn keep(v: vec4<f32>, first: u32, cols: u32) -> vec4<f32> {
    return select(vec4<f32>(0.0), v, vec4<u32>(first, first + 1u, first + 2u, first + 3u) < vec4<u32>(cols));
}

// As `keep`, with what loses every maximum elsewhere.
fn masked(v: vec4<f32>, first: u32, cols: u32) -> vec4<f32> {
    return select(vec4<f32>(LOWEST), v, vec4<u32>(first, first + 1u, first + 2u, first + 3u) < vec4<u32>(cols));
}

const LOWEST: f32 = -3.0e38;

fn max4(v: vec4<f32>) -> f32 {
    return max(max(v.x, v.y), max(v.z, v.w));
}

// Mirrors kernel::real::exp_f32, because drivers differ: some return NaN for large arguments, some a number for NaN.
// NaN stays NaN, results under 2^-126 are zero, and overflow saturates at 2^127, since WGSL need not have infinity.
fn exp_safe(x: f32) -> f32 {
    if (is_nan(x)) {
        return x;
    }
    let c = clamp(x, -87.33, 88.0);
    let n = round(c * 1.44269504);
    let r = fma(n, 2.12194440e-4, fma(n, -0.693359375, c));
    var p = 1.9875691e-4;
    p = fma(p, r, 1.3982e-3);
    p = fma(p, r, 8.333452e-3);
    p = fma(p, r, 4.1665796e-2);
    p = fma(p, r, 1.6666665e-1);
    p = fma(p, r, 0.5);
    let e = fma(p, r * r, r) + 1.0;
    let y = e * bitcast<f32>(u32(i32(n) + 127) << 23u);
    return select(y, 0.0, x < -87.33);
}

// ln of a positive number; NaN stays NaN, which drivers do not promise.
fn log_safe(x: f32) -> f32 {
    if (is_nan(x)) {
        return x;
    }
    return log(x);
}

fn exp4(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(exp_safe(x.x), exp_safe(x.y), exp_safe(x.z), exp_safe(x.w));
}

// The sum of a vector's lanes, in a fixed order.
fn sum4(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}
