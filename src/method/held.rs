//! A decoder in training.

use crate::backend::Backend;
use crate::error::Result;
use crate::model::{Decoder, ParamId, Weights};

/// A decoder whose weights change: in host memory ([`Held::update`]) or where they lie ([`Held::parts`]).
pub struct Held<B: Backend> {
    decoder: Decoder<B>,
    /// What lies on a device, copied when someone first asks to change it in host memory.
    mirror: Option<Vec<Vec<f32>>>,
}

/// Whether the memory of `backend` is the host's, in f32: updates are then made in place by the functions that replay uses.
pub fn is_host<B: Backend>(backend: &B) -> bool {
    backend.host_mut(&mut backend.zeros(0, 0)).is_some()
}

impl<B: Backend> Held<B> {
    /// Move `weights` to `backend`.
    pub fn new(backend: B, weights: Weights) -> Result<Self> {
        Ok(Self { decoder: Decoder::new(backend, weights)?, mirror: None })
    }

    /// The decoder as it stands.
    pub fn decoder(&self) -> &Decoder<B> {
        &self.decoder
    }

    /// Whether backward runs blocks again instead of keeping their activations ([`Decoder::recompute`]).
    pub fn recompute(&mut self, on: bool) {
        self.decoder.recompute = on;
    }

    /// The backend and the weights in its memory, in layout order, to be changed there.
    pub fn parts(&mut self) -> (&B, &mut [B::Weight]) {
        self.mirror = None;
        (&self.decoder.backend, &mut self.decoder.params)
    }

    /// Change weights in host memory: `f` gets every parameter in layout order, `touched` says which of them it may change. A device
    /// is sent what changed.
    pub fn update<R>(
        &mut self,
        touched: impl Fn(ParamId) -> bool,
        f: impl FnOnce(&mut [&mut [f32]]) -> Result<R>,
    ) -> Result<R> {
        let Self { decoder: Decoder { backend, params, .. }, mirror } = self;
        if is_host(backend) {
            let mut slices: Vec<&mut [f32]> =
                params.iter_mut().filter_map(|p| backend.host_mut(backend.master(p))).collect();
            return f(&mut slices);
        }
        let mirror = match mirror {
            Some(mirror) => mirror,
            None => mirror.insert(params.iter().map(|p| backend.download_weight(p)).collect::<Result<_>>()?),
        };
        let result = f(&mut mirror.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>())?;
        for (i, (param, data)) in params.iter_mut().zip(mirror).enumerate() {
            if touched(ParamId(i)) {
                backend.write(backend.master(param), data)?;
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
