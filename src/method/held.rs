//! A decoder whose weights are updated in host memory, wherever it computes.

use crate::backend::Backend;
use crate::error::Result;
use crate::model::{Decoder, ParamId, Weights};

/// A decoder in training. On the CPU updates work on the decoder's own memory; for a device they work on a copy in host memory,
/// and what changed is sent over.
pub struct Held<B: Backend> {
    decoder: Decoder<B>,
    mirror: Option<Vec<Vec<f32>>>,
}

impl<B: Backend> Held<B> {
    /// Move `weights` to `backend`.
    pub fn new(backend: B, weights: Weights) -> Result<Self> {
        // Whether the backend shares host memory is known only once it holds a tensor.
        let mut probe = backend.zeros(1, 1);
        let mirror = backend.host_mut(&mut probe).is_none().then(|| weights.tensors.clone());
        drop(probe);
        Ok(Self { decoder: Decoder::new(backend, weights)?, mirror })
    }

    /// The decoder as it stands.
    pub fn decoder(&self) -> &Decoder<B> {
        &self.decoder
    }

    /// Change weights: `f` gets every parameter in layout order, `touched` says which of them it may change.
    pub fn update<R>(
        &mut self,
        touched: impl Fn(ParamId) -> bool,
        f: impl FnOnce(&mut [&mut [f32]]) -> Result<R>,
    ) -> Result<R> {
        let Self { decoder: Decoder { backend, params, .. }, mirror } = self;
        let Some(mirror) = mirror else {
            let mut slices: Vec<&mut [f32]> =
                params.iter_mut().map(|p| backend.host_mut(p).expect("host memory, as when it was made")).collect();
            return f(&mut slices);
        };
        let result = f(&mut mirror.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>())?;
        for (i, (param, data)) in params.iter_mut().zip(mirror).enumerate() {
            if touched(ParamId(i)) {
                backend.write(param, data)?;
            }
        }
        Ok(result)
    }

    /// The weights, taking the decoder apart.
    pub fn into_weights(self) -> Result<Weights> {
        match self.mirror {
            None => self.decoder.weights(),
            Some(tensors) => {
                let Decoder { config, layout, .. } = self.decoder;
                Ok(Weights { config, layout, tensors })
            }
        }
    }
}
