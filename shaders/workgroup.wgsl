// Prepended to shaders that sum over a workgroup, which say how many LANES it has. Mirrors kernel::lanes::lane_sum and max, a
// lane a thread: the tree is fixed, so that a sum has the same bits every time.

var<workgroup> partial: array<vec2<f32>, LANES>;

// The sum of v over the workgroup.
fn sum_all(v: vec2<f32>, lane: u32) -> vec2<f32> {
    partial[lane] = v;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            partial[lane] += partial[lane + half];
        }
        workgroupBarrier();
    }
    let total = partial[0];
    workgroupBarrier();
    return total;
}

// As sum_all, for one number.
fn sum_one(v: f32, lane: u32) -> f32 {
    partial[lane].x = v;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            partial[lane].x += partial[lane + half].x;
        }
        workgroupBarrier();
    }
    let total = partial[0].x;
    workgroupBarrier();
    return total;
}

// The largest v of the workgroup.
fn max_all(v: f32, lane: u32) -> f32 {
    partial[lane].x = v;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            partial[lane].x = max(partial[lane].x, partial[lane + half].x);
        }
        workgroupBarrier();
    }
    let largest = partial[0].x;
    workgroupBarrier();
    return largest;
}
