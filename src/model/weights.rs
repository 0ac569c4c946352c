//! A decoder's parameters in host memory: what checkpoints hold, what replay rebuilds, what backends upload.

use super::config::Config;
use super::layout::{Layout, ParamId};
use crate::error::{Error, Result};
use rayon::prelude::*;

/// Config, layout and the scalars of every parameter, in f32, in layout order.
#[derive(Clone, Debug)]
pub struct Weights {
    /// The decoder's shape.
    pub config: Config,
    /// Names and shapes; derived from `config`.
    pub layout: Layout,
    /// One row-major buffer a parameter, in layout order.
    pub tensors: Vec<Vec<f32>>,
}

impl Weights {
    /// All zeros, in the shape of `config`.
    pub fn zeros(config: Config) -> Self {
        let layout = Layout::new(&config);
        let tensors = layout.specs().iter().map(|s| vec![0.0; s.len()]).collect();
        Self { config, layout, tensors }
    }

    /// Refuse what training for `steps` steps has driven out of the range of numbers.
    pub fn check_finite(&self, steps: u32) -> Result<()> {
        if self.tensors.par_iter().all(|t| t.iter().all(|x| x.is_finite())) {
            return Ok(());
        }
        Err(Error::Diverged(format!(
            "the weights are no longer numbers after {steps} steps: the run has diverged; lower `learning_rate`"
        )))
    }

    /// The scalars of `id`.
    pub fn get(&self, id: ParamId) -> &[f32] {
        &self.tensors[id.0]
    }
}
