//! The paper's Eq. (12), for study. It is **not** a bound.
//!
//! It claims D_a <= p^a/(a-1) exp(2 a (a-1) C^2 / sigma^2) + p^a/(a-1) for the dithered release of one group that fires
//! with probability p. The proof uses "p <= p^a", false for 0 < p < 1 < a. With the mask public and the direction
//! shared by neighbours (it is public too), only the sign differs, a shift of 2 C, and convexity gives
//! D_a <= ln(1 - p + p exp(2 a (a-1) C^2 / sigma^2)) / (a - 1), which is attained.

/// What Eq. (12) says, for noise `sigma` in units of C.
pub fn claimed(p: f64, sigma: f64, order: f64) -> f64 {
    let exponent = 2.0 * order * (order - 1.0) / (sigma * sigma);
    // In logarithms: the exponential overflows long before p^a has lost its say.
    ((order * p.ln() + exponent).exp() + (order * p.ln()).exp()) / (order - 1.0)
}

/// The divergence itself, attained by a record that turns the sign.
pub fn correct(p: f64, sigma: f64, order: f64) -> f64 {
    let exponent = 2.0 * order * (order - 1.0) / (sigma * sigma);
    let inner = if exponent < 30.0 { (p * exponent.exp_m1()).ln_1p() } else { p.ln() + exponent };
    inner / (order - 1.0)
}

/// One line of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Row {
    /// Noise in units of C.
    pub sigma: f64,
    /// Rényi order.
    pub order: f64,
    /// Eq. (12).
    pub claimed: f64,
    /// The divergence.
    pub correct: f64,
    /// Whether Eq. (12) claims less than is true.
    pub fails: bool,
}

/// Where Eq. (12) fails at firing probability `p`, over noises and orders.
pub fn table(p: f64) -> Vec<Row> {
    let cells = [
        (1.0, 2.0),
        (1.0, 4.0),
        (2.0, 2.0),
        (2.0, 4.0),
        (2.0, 8.0),
        (4.0, 4.0),
        (4.0, 8.0),
        (8.0, 8.0),
        (8.0, 16.0),
        (1e-3, 2.0),
    ];
    cells
        .into_iter()
        .map(|(sigma, order)| {
            let (claimed, correct) = (claimed(p, sigma, order), correct(p, sigma, order));
            Row { sigma, order, claimed, correct, fails: claimed < correct }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_the_critique_come_out() {
        let p = 7.2e-4;
        for (sigma, order, says, is) in
            [(1.0, 2.0, 2.9e-5, 3.8e-2), (2.0, 4.0, 3.6e-11, 8.5e-2), (4.0, 8.0, 1.1e-23, 8.3e-2)]
        {
            approx::assert_relative_eq!(claimed(p, sigma, order), says, max_relative = 0.03);
            approx::assert_relative_eq!(correct(p, sigma, order), is, max_relative = 0.01);
        }
        assert!(table(p).iter().filter(|r| r.fails).count() >= 8);
        assert!(correct(p, 1e-3, 2.0) > 3.9e6, "the paper's own noise is vacuous");
    }
}
