//! Which norms are clipped together, and to what bound.

use super::Norms;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::model::ParamId;
pub use crate::ops::clip::ClipFunction;
use crate::ops::clip::LEAST_BOUND;

/// Which parameters share a norm, and so a factor. With L groups each is clipped to `C / sqrt(L)`, so that a sample's whole
/// contribution stays within `C`.
#[derive(Clone, Debug, PartialEq)]
pub enum Partition {
    /// All parameters together: L = 1.
    Flat,
    /// Every parameter tensor on its own.
    PerLayer,
    /// These groups, which hold each wanted parameter once.
    Groups(Vec<Vec<ParamId>>),
}

/// How every sample's gradient is bounded before it is added up.
#[derive(Clone, Debug)]
pub struct Clipping {
    function: ClipFunction,
    partition: Partition,
    bound: f64,
}

/// Every sample's factor for every parameter, in the backend's memory.
pub struct Factors<B: Backend> {
    /// One column a group, one row a sample.
    columns: Vec<B::Tensor>,
    /// The column of each parameter.
    of: Vec<Option<usize>>,
}

impl<B: Backend> Factors<B> {
    /// The column of factors (samples x 1) for `p`, if it was wanted.
    pub fn get(&self, p: ParamId) -> Option<&B::Tensor> {
        self.of[p.0].map(|group| &self.columns[group])
    }
}

impl Clipping {
    /// Clip to `bound` (C).
    pub fn new(function: ClipFunction, partition: Partition, bound: f64) -> Result<Self> {
        if !(bound >= LEAST_BOUND && bound.is_finite()) {
            return Err(Error::usage(format!(
                "a clipping bound is a positive number of at least {LEAST_BOUND:e}, not {bound}"
            )));
        }
        Ok(Self { function, partition, bound })
    }

    /// How far one sample can move the clipped sum, in Euclidean norm; none if nothing is clipped.
    pub fn sensitivity(&self) -> Option<f64> {
        (self.function != ClipFunction::None).then_some(self.bound)
    }

    /// The groups of the parameters that `wants` names, out of `count`; an error unless every one is in exactly one group.
    fn groups(&self, count: usize, wants: impl Fn(ParamId) -> bool) -> Result<Vec<Vec<ParamId>>> {
        let wanted = (0..count).map(ParamId).filter(|&p| wants(p));
        let groups: Vec<Vec<ParamId>> = match &self.partition {
            Partition::Flat => vec![wanted.collect()],
            Partition::PerLayer => wanted.map(|p| vec![p]).collect(),
            Partition::Groups(groups) => {
                let mut times = vec![0; count];
                for p in groups.iter().flatten() {
                    match times.get_mut(p.0) {
                        Some(n) => *n += 1,
                        None => {
                            return Err(Error::usage(format!("a clipping group names parameter {} of {count}", p.0)));
                        }
                    }
                }
                if let Some(p) = (0..count).find(|&p| times[p] != usize::from(wants(ParamId(p)))) {
                    return Err(Error::usage(format!(
                        "parameter {p} is in {} clipping groups; a trained parameter belongs to one, any other to none",
                        times[p]
                    )));
                }
                groups.clone()
            }
        };
        Ok(groups)
    }

    /// Every sample's factors, from its norms.
    pub fn factors<B: Backend>(&self, b: &B, norms: &Norms<B>) -> Result<Factors<B>> {
        let count = norms.params();
        let groups = self.groups(count, |p| norms.squares(p).is_some())?;
        let bound = self.bound / (groups.len().max(1) as f64).sqrt();
        let mut of = vec![None; count];
        let mut columns = Vec::with_capacity(groups.len());
        for (g, group) in groups.iter().enumerate() {
            let mut column = b.zeros(norms.samples(), 1);
            for &p in group {
                b.add_norm_bounds(norms.squares(p).expect("groups hold wanted parameters"), &mut column);
                of[p.0] = Some(g);
            }
            b.clip_factors(self.function, bound, &mut column);
            columns.push(column);
        }
        Ok(Factors { columns, of })
    }
}
