//! Public scales: a number s for each tuned tensor, which its gradient is multiplied by before anything is clipped.
//!
//! ```text
//! v_t    mean square of an element of tensor t's gradient, on public text, at the base model
//! s_t    v_t^(-1/4), rounded to a power 2^(e_t / 4): e_t = -log2 v_t, a whole number, less one that all tensors share
//!
//! FERRET-k    U g = sum over tensors of s_t U_t g_t, entries of ±s in place of ±1; then clipping and noise in R^k, and s_t U_tᵀ b in tensor t
//! DPSGD       clipping and noise of s_t g_t; then s_t times what is released of tensor t
//! ```
//! Tensors whose gradients are small then have more of a say in what is asked, and less noise in proportion. What all exponents have in common lengthens what is
//! clipped, and no step of FERRET-k ([`Plan`](super::ferret_k::Plan)). Clipping comes after, and the second factor is post-processing, so that the guarantee holds for any
//! scales that are public: chosen from public text and the base model, never from the records.
//!
//! A tensor without a gradient there says nothing, and has s = 1: half of a fresh adapter's, whose other half is 0.

use super::Method;
use crate::backend::{Cpu, Memory};
use crate::data::{Example, batches, shared};
use crate::error::{Error, Result};
use crate::grad::Sum;
use crate::kernel::{Scalars, Stored};
use crate::model::{Decoder, ParamId, Reduction, Weights};
use serde::{Deserialize, Serialize};

/// The largest exponent, and the least with a minus: a factor of 2^16.
pub const MOST: i8 = 64;

/// The largest that [`Scales::of_moments`] gives, and the least with a minus: a factor of 16.
const MOST_MEASURED: i32 = 16;

/// Records of a batch whose gradient is measured, and batches.
const BATCH: usize = 8;
const BATCHES: usize = 80;

/// 2^(0/4), 2^(1/4), 2^(2/4) and 2^(3/4): the nearest numbers of single precision.
const ROOTS: [f32; 4] = [1.0, 1.189_207_1, std::f32::consts::SQRT_2, 1.681_792_9];

/// What a run that has scales rests on; `on` says on what.
pub(super) fn are_public(on: &str) -> String {
    format!(
        "The scales on {on}, one number for each tuned tensor, are settings, and public: they were chosen from public text or the base model, never from the records."
    )
}

/// What a user should know before such a run.
pub(super) fn note(has: &str) -> String {
    format!(
        "{has} scales, one for each tuned tensor: the promise holds if they come from public text or the base model, never from the records"
    )
}

impl Method {
    /// Its scales, where it has any.
    pub fn scales(&self) -> Option<&Scales> {
        match self {
            Self::Ferret(_) => None,
            Self::FerretK(s) => s.scales.as_ref(),
            Self::Dense(s) => s.scales.as_ref(),
        }
    }

    /// The same with these scales, if they suit it.
    pub fn with_scales(mut self, scales: Scales) -> Result<Self> {
        match &mut self {
            Self::Ferret(_) => return Err(Error::usage(MISPLACED)),
            Self::FerretK(s) => s.scales = Some(scales),
            Self::Dense(s) => s.scales = Some(scales),
        }
        self.check()?;
        Ok(self)
    }
}

/// Why scales are refused.
pub(super) const MISPLACED: &str = "`scales` belong to ferret-k and dpsgd, which clip what they are on: leave them out";

/// e of every tuned tensor, in the layout's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scales(pub Vec<i8>);

impl Scales {
    /// s of every tuned tensor: 2^(e / 4), the same bits everywhere.
    pub fn factors(&self) -> impl Iterator<Item = f32> + '_ {
        self.0.iter().map(|&e| {
            let e = i32::from(e);
            // A power of two times a number of single precision is exact.
            ROOTS[e.rem_euclid(4) as usize] * f32::from_bits(((127 + e.div_euclid(4)) as u32) << 23)
        })
    }

    /// Refuse exponents that are too large.
    pub(super) fn check(&self) -> Result<()> {
        match self.0.iter().find(|e| !(-MOST..=MOST).contains(*e)) {
            Some(e) => {
                Err(Error::usage(format!("`scales` has an exponent of {e} quarters, expected -{MOST} to {MOST}")))
            }
            None if self.0.is_empty() => {
                Err(Error::usage("`scales` lists nothing, expected a number for each tuned tensor"))
            }
            None => Ok(()),
        }
    }

    /// Refuse another number of them than there are tuned tensors.
    pub fn check_count(&self, tensors: usize) -> Result<()> {
        if self.0.len() == tensors {
            return Ok(());
        }
        Err(Error::usage(format!(
            "`scales` lists {} numbers, expected one for each of the {tensors} tuned tensors, in the order of `ferret inspect`",
            self.0.len()
        )))
    }

    /// Those of tensors with mean squares v, each of so many elements: the shared exponent is such that the mean of s² over all elements is nearest 1. A tensor without
    /// a gradient has s = 1.
    pub fn of_moments(moments: &[(f64, usize)]) -> Result<Self> {
        if moments.iter().any(|(v, _)| !v.is_finite() || *v < 0.0) {
            return Err(Error::usage(
                "the gradient on the public text is not finite: no scales follow from it; is the model whole?",
            ));
        }
        let logs: Vec<f64> = moments.iter().map(|(v, _)| -v.log2()).collect();
        let finite = || logs.iter().copied().filter(|x| x.is_finite());
        let (Some(least), Some(most)) = (finite().reduce(f64::min), finite().reduce(f64::max)) else {
            return Err(Error::usage("the public text has no gradient: give records with tokens to predict"));
        };
        let at = |shared: f64| -> Vec<i8> {
            let end = f64::from(MOST_MEASURED);
            let of = |x: f64| if x.is_finite() { (x - shared).round().clamp(-end, end) as i8 } else { 0 };
            logs.iter().map(|&x| of(x)).collect()
        };
        let square = |exponents: &[i8]| {
            let all: usize = moments.iter().map(|m| m.1).sum();
            let squares = exponents.iter().zip(moments).map(|(e, m)| 2f64.powf(f64::from(*e) / 2.0) * m.1 as f64);
            (squares.sum::<f64>() / all.max(1) as f64).log2().abs()
        };
        let shared = (least.floor() as i64..=most.ceil() as i64).map(|c| at(c as f64));
        Ok(Self(shared.min_by(|a, b| square(a).total_cmp(&square(b))).expect("at least one")))
    }

    /// s of every tensor of a layout of so many; 0 where it is not tuned.
    pub fn by_tensor(&self, tensors: usize, tuned: &[ParamId]) -> Result<Vec<f32>> {
        self.check_count(tuned.len())?;
        let mut all = vec![0.0; tensors];
        tuned.iter().zip(self.factors()).for_each(|(p, s)| all[p.0] = s);
        Ok(all)
    }

    /// Those of what a run tunes, from the gradients of its `base` on the first records of a public text; refused where one of its own `records`, each by itself, is
    /// among that text. On the CPU: the same at any number of threads.
    pub fn measure(
        method: &Method,
        base: &Weights<impl Scalars>,
        public: &[Example],
        records: &[Example],
    ) -> Result<Self> {
        match shared(records, public) {
            0 => {}
            n => {
                return Err(Error::usage(format!(
                    "{n} of the {} records that scales are to come from are trained on too: scales are public, and the promise rests on \
                     their coming from other text",
                    public.len()
                )));
            }
        }
        let weights = match method.adapter() {
            Some(adapter) => adapter.attach(base.clone(), method.common().seed)?,
            None => base.clone(),
        };
        let tuned = method.tune().ids(&weights.layout)?;
        Self::at(weights, &tuned, public)
    }

    fn at(weights: Weights<impl Into<Stored>>, tuned: &[ParamId], public: &[Example]) -> Result<Self> {
        let decoder = Decoder::new(Cpu::<f32>::new(), weights)?;
        let (b, layout) = (&decoder.backend, &decoder.layout);
        let mut squares = vec![0.0f64; tuned.len()];
        let mut count = 0;
        let usable: Vec<&Example> = public.iter().filter(|e| e.targets() > 0).take(BATCH * BATCHES).collect();
        for records in usable.chunks(BATCH) {
            let batch = batches::batch(records.iter().copied());
            let mut sum = Sum::new(b, layout, |p| tuned.contains(&p));
            decoder.backward(&batch, &batch.weights(Reduction::SampleMean), &mut sum);
            for (square, &p) in squares.iter_mut().zip(tuned) {
                let gradient = b.download(sum.get(p).expect("wanted"))?;
                *square += gradient.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>();
            }
            count += 1;
        }
        let moments = squares.iter().zip(tuned).map(|(square, &p)| {
            let n = layout.spec(p).len();
            (square / (n.max(1) * count.max(1)) as f64, n)
        });
        Self::of_moments(&moments.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_quarter_powers_of_two_to_the_last_bit() {
        let all: Vec<i8> = (-MOST..=MOST).collect();
        for (e, s) in all.iter().zip(Scales(all.clone()).factors()) {
            assert_eq!(s, 2f64.powf(f64::from(*e) / 4.0) as f32, "{e}");
        }
    }

    #[test]
    fn small_gradients_have_large_scales_and_squares_are_1_on_average() {
        let moments = [(2f64.powi(-20), 1000), (2f64.powi(-24), 500), (2f64.powf(-19.6), 10), (0.0, 1)];
        let scales = Scales::of_moments(&moments).unwrap();
        let e = &scales.0;
        // Ratios of v^(-1/4): 2^(4/4) for the second, none for the third, once rounded; the last is at the end.
        assert_eq!((e[1] - e[0], e[2] - e[0], e[3]), (4, 0, 0));
        let square: f64 = scales.factors().zip(moments).map(|(s, m)| f64::from(s).powi(2) * m.1 as f64).sum();
        assert!((square / 1511.0).log2().abs() <= 0.3, "{square}");
        // However large what has no gradient is: as half of a fresh adapter is.
        let half = Scales::of_moments(&[(0.0, 1 << 20), (2f64.powi(-30), 1000), (2f64.powi(-34), 1000)]).unwrap();
        assert!(half.0[0] == 0 && half.0[2] - half.0[1] == 4 && half.0[1] <= 0 && half.0[2] >= 0, "{half:?}");
        // What all have in common is of no account.
        let louder: Vec<(f64, usize)> = moments.iter().map(|m| (m.0 * 2f64.powi(30), m.1)).collect();
        assert_eq!(Scales::of_moments(&louder).unwrap(), scales);
        for bad in [&[(f64::NAN, 1)][..], &[(1.0, 1), (f64::INFINITY, 2)], &[(-1.0, 1)], &[(0.0, 5)], &[]] {
            assert!(Scales::of_moments(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_no_scale_is_refused() {
        Scales(vec![-64, 0, 64]).check().unwrap();
        for (bad, part) in [(vec![], "lists nothing"), (vec![65], "65 quarters"), (vec![0, -65], "-65 quarters")] {
            let error = Scales(bad).check().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = Scales(vec![0; 3]).check_count(4).unwrap_err().to_string();
        assert!(error.contains("3 numbers") && error.contains("4 tuned"), "{error}");
    }
}
