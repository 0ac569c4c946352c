//! Logarithms of binomial coefficients, and how much of them is rounding.

/// ln C(k, 0), ..., ln C(k, k), each off by at most [`error`].
///
/// Sums of ln((k - i) / (i + 1)) from C(k, 0) up to the middle, where no term is negative, each with what its additions round away carried
/// along (Neumaier), and the same from the other end.
pub(super) fn ln_choices(k: u32) -> Vec<f64> {
    let (mut sum, mut lost) = (0.0_f64, 0.0_f64);
    let mut half = Vec::with_capacity(k as usize + 1);
    for i in 0..=k / 2 {
        half.push(sum + lost);
        let term = (f64::from(k - i) / f64::from(i + 1)).ln();
        let next = sum + term;
        lost += if sum >= term { (sum - next) + term } else { (term - next) + sum };
        sum = next;
    }
    half.extend_from_within(..k.div_ceil(2) as usize);
    half[k as usize / 2 + 1..].reverse();
    half
}

/// How far an entry of [`ln_choices`] may be from the truth.
///
/// With u half of `EPSILON`: a quotient is rounded by u of itself, so its logarithm t by u, and a logarithm that is good to two last bits by
/// 4 u t more. Up to k/2 such terms that sum to S <= k ln 2 err by (k/2 + 4 S) u; the compensated sum adds u S, and (k u)^2 S that is
/// nothing. In all (1/2 + 5 ln 2) k u, less than 4 k u. The plain sum would add up to u S at each of k/2 steps: k^2 u / 3.
pub(super) fn error(k: u32) -> f64 {
    2.0 * f64::from(k) * f64::EPSILON
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All coefficients up to the most bits that are accounted for, from Pascal's triangle in whole numbers of 576 bits.
    ///
    /// C e^-x for x = ln C is 1 but for three roundings, where ln C itself would be rounded by as much as is to be seen.
    #[test]
    fn logarithms_of_coefficients_keep_to_their_declared_error() {
        let mut row: Vec<[u64; 9]> = vec![[1, 0, 0, 0, 0, 0, 0, 0, 0]];
        let add = |a: &[u64; 9], b: &[u64; 9]| {
            let mut carry = false;
            std::array::from_fn(|i| {
                let (sum, first) = a[i].overflowing_add(b[i]);
                let (sum, second) = sum.overflowing_add(carry.into());
                carry = first || second;
                sum
            })
        };
        // Two limbs hold all digits of a float: truncated to 64 bits and more, then rounded once.
        let float = |limbs: &[u64; 9]| {
            let top = limbs.iter().rposition(|limb| *limb > 0).unwrap();
            let below = if top > 0 { limbs[top - 1] } else { 0 };
            let both = u128::from(limbs[top]) << 64 | u128::from(below);
            both as f64 * 2.0_f64.powi(64 * (top as i32 - 1))
        };
        let mut plain_fails = 0;
        for k in 0..=crate::privacy::event::MAX_BITS {
            let found = ln_choices(k);
            assert_eq!(found.len(), row.len());
            let mut plain = 0.0;
            for (i, (limbs, &ln)) in row.iter().zip(&found).enumerate() {
                let off = |ln: f64| (float(limbs) * (-ln).exp() - 1.0).abs();
                assert!(off(ln) <= error(k) + 4.0 * f64::EPSILON, "C({k}, {i}): {:e}", off(ln));
                plain_fails += usize::from(off(plain) > error(k) + 4.0 * f64::EPSILON);
                plain += (f64::from(k - i as u32) / (i as f64 + 1.0)).ln();
            }
            row = (0..row.len() + 1)
                .map(|i| match i {
                    0 => row[0],
                    i if i == row.len() => row[0],
                    i => add(&row[i - 1], &row[i]),
                })
                .collect();
        }
        // It is no idle promise: what sums them plainly breaks it.
        assert!(plain_fails > 1000, "{plain_fails}");
    }
}
