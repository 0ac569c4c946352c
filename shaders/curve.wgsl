// Prepended to activation.wgsl and gated.wgsl. Mirrors ops::activation's value and slope: GELU in GPT-2's form (KIND 0) and exact
// (KIND 1), SiLU (KIND 2).
//
// Prepended constant: KIND. No tanh: it is NaN for large arguments on some drivers. gelu_new(x) = x sigma(2 a (x + b x^3)).

const A2: f32 = 1.5957691216057308;
const B: f32 = 0.044715;

// libm's erff: rational approximations on four intervals, below one unit in the last place.
fn erf(x: f32) -> f32 {
    let ax = abs(x);
    var y: f32;
    if (ax < 0.84375) {
        let z = x * x;
        let r = fma(z, fma(z, fma(z, fma(z, -2.3763017e-05, -5.7702702e-03), -2.8481749e-02), -3.2504210e-01), 1.2837917e-01);
        let s = fma(z, fma(z, fma(z, fma(z, fma(z, -3.9602282e-06, 1.3249473e-04), 5.0813062e-03), 6.5022250e-02), 3.9791721e-01), 1.0);
        return fma(x, r / s, x);
    } else if (ax < 1.25) {
        let s = ax - 1.0;
        let n = fma(s, fma(s, fma(s, fma(s, fma(s, fma(s, -2.1663755e-03, 3.5478305e-02), -1.1089469e-01), 3.1834662e-01), -3.7220788e-01), 4.1485611e-01), -2.3621185e-03);
        let d = fma(s, fma(s, fma(s, fma(s, fma(s, fma(s, 1.1984500e-02, 1.3637084e-02), 1.2617122e-01), 7.1828655e-02), 5.4039794e-01), 1.0642088e-01), 1.0);
        y = 8.4506291e-01 + n / d;
    } else if (ax < 6.0) {
        let s = 1.0 / (ax * ax);
        var r: f32;
        var d: f32;
        if (ax < 2.857143) {
            r = fma(s, fma(s, fma(s, fma(s, fma(s, fma(s, fma(s, -9.8143296e+00, -8.1287437e+01), -1.8460508e+02), -1.6239667e+02), -6.2375332e+01), -1.0558626e+01), -6.9385856e-01), -9.8649440e-03);
            d = fma(s, fma(s, fma(s, fma(s, fma(s, fma(s, fma(s, fma(s, -6.0424416e-02, 6.5702496e+00), 1.0863500e+02), 4.2900815e+02), 6.4538727e+02), 4.3456586e+02), 1.3765776e+02), 1.9651272e+01), 1.0);
        } else {
            r = fma(s, fma(s, fma(s, fma(s, fma(s, fma(s, -4.8351919e+02, -1.0250950e+03), -6.3756646e+02), -1.6063638e+02), -1.7757955e+01), -7.9928326e-01), -9.8649431e-03);
            d = fma(s, fma(s, fma(s, fma(s, fma(s, fma(s, fma(s, -2.2440952e+01, 4.7452853e+02), 2.5530503e+03), 3.1998582e+03), 1.5367296e+03), 3.2579251e+02), 3.0338060e+01), 1.0);
        }
        // exp(-x^2) in two factors, the first exact in x's upper bits.
        let z = bitcast<f32>(bitcast<u32>(ax) & 0xffffe000u);
        y = 1.0 - exp_safe(fma(-z, z, -0.5625)) * exp_safe(fma(z - ax, z + ax, r / d)) / ax;
    } else {
        y = 1.0;
    }
    return select(y, -y, x < 0.0);
}

// Value and slope of the activation.
fn curve(x: f32) -> vec2<f32> {
    if (KIND == 0u) {
        let t = clamp(x, -20.0, 20.0);
        let t2 = t * t;
        let inner = A2 * t * fma(B, t2, 1.0);
        let sigma = select(1.0 / (1.0 + exp_safe(-inner)), 0.0, inner < -87.0);
        let slope = A2 * fma(3.0 * B, t2, 1.0);
        return vec2<f32>(x * sigma, sigma + t * sigma * (1.0 - sigma) * slope);
    }
    if (KIND == 2u) {
        // Beyond 80 sigma is 1, or too small for what follows.
        let t = clamp(x, -80.0, 80.0);
        let sigma = 1.0 / (1.0 + exp_safe(-t));
        return vec2<f32>(x * select(sigma, 0.0, x < -80.0), sigma + t * sigma * (1.0 - sigma));
    }
    let phi = 0.5 * (1.0 + erf(x * 0.70710678));
    // Beyond 14 the density is zero; the clamp keeps x^2 finite.
    let t = clamp(x, -14.0, 14.0);
    let density = exp_safe(-0.5 * t * t) * 0.39894228;
    return vec2<f32>(x * phi, phi + t * density);
}
