//! A decoder's parameters in host memory: what checkpoints hold, what replay rebuilds, what backends upload.

use super::config::Config;
use super::layout::{Layout, ParamId};
use crate::error::{Error, Result};
use crate::kernel::{Scalars, Stored};
use rayon::prelude::*;

/// Config, layout and the scalars of every parameter in layout order: all in f32, or, as `Weights<Stored>`, each as it is stored, so that
/// what nobody changes takes no more memory than its file.
#[derive(Clone, Debug)]
pub struct Weights<T = Vec<f32>> {
    /// The decoder's shape.
    pub config: Config,
    /// Names and shapes; derived from `config`.
    pub layout: Layout,
    /// One row-major buffer a parameter, in layout order.
    pub tensors: Vec<T>,
}

impl Weights {
    /// All zeros, in the shape of `config`.
    pub fn zeros(config: Config) -> Self {
        let layout = Layout::new(&config);
        let tensors = layout.specs().iter().map(|s| vec![0.0; s.len()]).collect();
        Self { config, layout, tensors }
    }

    /// The scalars of `id`.
    pub fn get(&self, id: ParamId) -> &[f32] {
        &self.tensors[id.0]
    }
}

impl<T: Scalars> Weights<T> {
    /// Refuse what training for `steps` steps has driven out of the range of numbers.
    pub fn check_finite(&self, steps: u32) -> Result<()> {
        let finite =
            |t: &T| t.view().pieces(|x| if x.iter().all(|x| x.is_finite()) { Ok(()) } else { Err(()) }).is_ok();
        if self.tensors.par_iter().all(finite) {
            return Ok(());
        }
        Err(Error::Diverged(format!(
            "the weights are no longer numbers after {steps} steps: the run has diverged; lower `learning_rate`"
        )))
    }

    /// Each parameter as it is stored; what is in f32 stays in f32.
    pub fn into_stored(self) -> Weights<Stored> {
        let Self { config, layout, tensors } = self;
        Weights { config, layout, tensors: tensors.into_iter().map(T::into).collect() }
    }

    /// The content, leaving config and layout behind.
    pub fn take(&mut self) -> Self {
        let Self { config, layout, tensors } = self;
        Self { config: config.clone(), layout: layout.clone(), tensors: std::mem::take(tensors) }
    }
}

impl Weights<Stored> {
    /// The same in f32, or in the form asked for.
    pub fn into_form<T: From<Stored>>(self) -> Weights<T> {
        let Self { config, layout, tensors } = self;
        Weights { config, layout, tensors: tensors.into_iter().map(T::from).collect() }
    }
}
